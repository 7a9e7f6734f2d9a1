"""The device a run computes on: dtype, compilation, and peak speed."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from glassformer.core.precision import dtype_for
from glassformer.errors import GlassformerError
from glassformer.training.recipe import Training

# Dense bfloat16 (on older cards float16) operations a second, from the makers' data sheets; the longer
# name stands before the shorter one that it contains.
PEAKS = {
    "GB200": 2.5e15,
    "B200": 2.25e15,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "V100": 125e12,
    "T4": 65e12,
}


def peak_flops(device_name: str) -> float | None:
    """Operations a second of a card by the name the driver gives it; None where it is not known.

    >>> peak_flops("NVIDIA H200"), peak_flops("a toaster")
    (989000000000000.0, None)
    """
    return next((peak for name, peak in PEAKS.items() if name in device_name), None)


# oneDNN, which multiplies on a CPU, keeps what it made for each of the last thousand shapes: half a megabyte
# each, scattered so that the memory between them comes to little use. Batches by length hardly ever have a
# shape twice, and making one anew costs little beside the product. A step has some ten shapes, with two
# entries each in the first of these. Both are read when the first product is done.
SHAPES_KEPT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "64"}


def device_for(name: str) -> torch.device:
    """The device a recipe names; `auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if torch.empty(0, device=device).is_meta:  # holds no numbers, so nothing can be learned there
            raise RuntimeError
    except (RuntimeError, AssertionError):
        raise GlassformerError(
            f"training.device is '{name}', which is not there; `glassformer env` lists devices"
        ) from None
    return device


def precision_for(words: Training, device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU and float32 on a CPU, unless the recipe says otherwise."""
    if words.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return dtype_for(words.precision, device) or torch.float32


def casting(device: torch.device, precision: torch.dtype) -> AbstractContextManager[object]:
    """Products in `precision`, weights and sums in float32."""
    if precision == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision)


def settle_machine(words: Training, device: torch.device) -> None:
    """Process-wide switches that a run wants."""
    torch.set_float32_matmul_precision("highest" if words.deterministic else "high")
    if device.type == "cpu":
        for name, kept in SHAPES_KEPT.items():
            os.environ.setdefault(name, kept)
    if device.type == "cuda":
        # The thread that reads ahead may else keep the one that launches waiting for 5 ms at a time.
        sys.setswitchinterval(2e-4)
    if words.deterministic and device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False


def compile_learner(learner: nn.Module, words: Training, device: torch.device) -> str | None:
    """Compile in place (names stay as they are); a sentence where it was wanted and cannot be."""
    if words.compile == "off" or (words.compile == "auto" and device.type != "cuda"):
        return None
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            return "not compiled: torch finds no Triton for this GPU; training runs uncompiled, slower"
    from torch._inductor import config

    if words.batching == "rows" and hasattr(config.triton, "mix_order_reduction"):
        config.triton.mix_order_reduction = False  # a sixth slower with it, on rows as short as these
    mode = words.compile
    if mode == "auto":  # rows come in one shape, whose launches can be recorded once and played back
        mode = "reduce-overhead" if words.batching == "rows" else "default"
    learner.compile(
        mode={"default": None, "max-autotune": "max-autotune-no-cudagraphs"}.get(mode, mode),
        dynamic=False if words.batching == "rows" else None,
    )
    return None


def uncompile(learner: nn.Module) -> None:
    """Run as written again."""
    learner._compiled_call_impl = None


def best_speed(device: torch.device, precision: torch.dtype) -> float | None:
    """Operations a second that the device could do at best, where its name is known."""
    if device.type != "cuda" or precision != torch.bfloat16:
        return None
    return peak_flops(torch.cuda.get_device_name(device))

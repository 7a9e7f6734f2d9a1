"""Choose the device and dtype of a run, compile the model, and measure FLOP/s."""

from __future__ import annotations

import math
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from glassformer.core.precision import resolve_device, resolve_dtype
from glassformer.inference.memory import limit_onednn_cache
from glassformer.training.recipe import TrainingOptions

# Dense bfloat16 (on older cards float16) FLOP/s from the data sheets. A name comes before shorter names that
# it contains.
PEAK_FLOPS = {
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
UNKNOWN_GPU_FLOPS = 100e12
# Assumed FLOP/s of training. Model size and number of steps depend on them, and not on a measurement, so that
# the same data and settings give the same run on a busy or a faster machine.
NOMINAL_FLOPS = {"cpu": 35e9, "cuda": 35e12}
UTILIZATION = 0.35  # fraction of the peak that training reaches


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak bfloat16 FLOP/s of a GPU by its name; None if unknown."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    device_name = torch.cuda.get_device_name(device)
    return next((peak for name, peak in PEAK_FLOPS.items() if name in device_name), None)


@dataclass(kw_only=True)
class Hardware:
    """A device, and the FLOP/s that training reaches on it: assumed (`flops`) and measured.

    Defaults are chosen with `flops`; `measured_flops` is only for estimates of time.
    """

    device: torch.device

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def flops(self) -> float:
        return NOMINAL_FLOPS["cuda" if self.on_gpu else "cpu"]

    @cached_property
    def measured_flops(self) -> float:
        """Time a matrix multiplication on a CPU; look up a GPU by name."""
        if self.on_gpu:
            return UTILIZATION * (peak_flops(self.device, torch.bfloat16) or UNKNOWN_GPU_FLOPS)
        matrix = torch.randn(512, 512)
        fastest = math.inf
        for _ in range(6):
            start = time.perf_counter()
            matrix @ matrix
            fastest = min(fastest, time.perf_counter() - start)
        return UTILIZATION * 2 * 512**3 / fastest


def device_for(name: str) -> torch.device:
    """Return the device that a recipe names; `auto` is a GPU if there is one."""
    return resolve_device(name, "training.device")


def dtype_of(options: TrainingOptions, device: torch.device) -> torch.dtype:
    """Return the compute dtype: by default bfloat16 on a GPU and float32 on a CPU."""
    if options.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return resolve_dtype(options.precision, device) or torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Context for mixed precision: matrix multiplications in `dtype`, weights and sums in float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)


def configure_torch(options: TrainingOptions, device: torch.device) -> None:
    """Set the global options of torch for a run."""
    torch.set_float32_matmul_precision("highest" if options.deterministic else "high")
    if device.type == "cpu":
        limit_onednn_cache()
    if device.type == "cuda":
        # otherwise the prefetch thread may block the thread that launches kernels for 5 ms at a time
        sys.setswitchinterval(2e-4)
        if options.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.backends.cudnn.benchmark = False


def compile_learner(learner: nn.Module, options: TrainingOptions, device: torch.device) -> str | None:
    """Compile the learner in place, without changing parameter names; return a message if impossible."""
    if options.compile == "off" or (options.compile == "auto" and device.type != "cuda"):
        return None
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            return "not compiled: torch finds no Triton for this GPU; training runs uncompiled, slower"
    from torch._inductor import config

    packed = options.packing
    if packed and hasattr(config.triton, "mix_order_reduction"):
        config.triton.mix_order_reduction = False  # it makes short rows such as these a sixth slower
    mode = options.compile
    if mode == "auto":  # packed rows have one shape, so CUDA graphs can be captured
        mode = "reduce-overhead" if packed else "default"
    learner.compile(
        mode={"default": None, "max-autotune": "max-autotune-no-cudagraphs"}.get(mode, mode),
        dynamic=False if packed else None,
    )
    return None

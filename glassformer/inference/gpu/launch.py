"""How the kernels of a step follow one another, and where the programs of one kernel meet.

A kernel may begin while the one before it still runs, where the GPU can do that: it fetches what no kernel
writes (the matrices) and waits, on the GPU, before it reads anything else. Every kernel here waits, so
that when one goes on, all before it are done.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import (
    gdc_launch_dependents,
    gdc_wait,
)

_COUNTERS = 16_384
_counters: dict[tuple[torch.device, int], Tensor] = {}


def overlaps(x: Tensor) -> bool:
    """Whether kernels on x's device may begin before the one before them has ended."""
    return x.is_cuda and _capability(x.device) >= (9, 0)


def processors(x: Tensor) -> int:
    """The multiprocessors that work on x; a few where a CPU stands in for a GPU."""
    return _processors(x.device) if x.is_cuda else 4


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def counters(x: Tensor) -> Tensor:
    """Zeros (int32) that a kernel's programs count in, and leave zero; each stream has its own."""
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    key = (x.device, stream)
    if key not in _counters:
        _counters[key] = torch.zeros(_COUNTERS, dtype=torch.int32, device=x.device)
    return _counters[key]


@triton.jit
def follow(OVERLAP: tl.constexpr):
    """Let the next kernel begin, and wait until the one before has ended."""
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def let_next_begin(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait_for_last(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_wait()


@triton.jit
def last_of(counter, count):
    """True in the one program of `count` that comes last, which then sees what all of them have stored."""
    tl.debug_barrier()  # every thread of this program has stored before one of them counts it
    return tl.atomic_add(counter, 1, sem="acq_rel") == count - 1

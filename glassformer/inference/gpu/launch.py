"""How the kernels of a step follow one another, and CUDA graphs of whole steps.

A kernel may begin while the one before it still runs, where the GPU can do that: it fetches what no kernel
writes (the matrices) and waits, on the GPU, before it reads anything else. Every kernel here waits, so
that when one goes on, all before it are done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Generic, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

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


Out = TypeVar("Out")


class CudaGraph(Generic[Out]):
    """`step()` as a graph, which a call replays.

    The step may read and write any tensors, in place, and must do the same each time: no shape and no branch
    may depend on their values. It is run `warmups` times here, so what it counts up must
    be set back afterwards. What a call gives is written over by the next; nothing waits for the GPU.
    """

    def __init__(self, step: Callable[[], Out], *, warmups: int = 2) -> None:
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(stream):
            counters(torch.empty(0, device="cuda"))  # made before: what a capture makes is the graph's
            for _ in range(warmups):
                step()
            stream.synchronize()
            with torch.cuda.graph(self.graph, stream=stream):
                self.output = step()
        torch.cuda.current_stream().wait_stream(stream)

    def __call__(self) -> Out:
        self.graph.replay()
        return self.output

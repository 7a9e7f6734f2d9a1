"""Programmatic dependent launch (PDL) of the kernels of a step, and CUDA graphs of steps.

With PDL, a kernel starts while the previous one still runs: it loads the weights, which no kernel writes, and
waits on the GPU before it reads anything else. Every kernel here waits, so when a kernel continues, all
earlier kernels have finished.
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


def supports_pdl(x: Tensor) -> bool:
    """Whether x's device supports programmatic dependent launch."""
    return x.is_cuda and _capability(x.device) >= (9, 0)


def num_sms(x: Tensor) -> int:
    """Return the number of multiprocessors of x's device; 4 in Triton's interpreter on a CPU."""
    return _num_sms(x.device) if x.is_cuda else 4


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@cache
def _num_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def completion_counters(x: Tensor) -> Tensor:
    """Return int32 counters of finished programs, which kernels reset to zero; one buffer per stream."""
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    key = (x.device, stream)
    if key not in _counters:
        _counters[key] = torch.zeros(_COUNTERS, dtype=torch.int32, device=x.device)
    return _counters[key]


@triton.jit
def trigger_and_wait(PDL: tl.constexpr):
    """Let the next kernel start, and wait until the previous one has finished."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def trigger_next(PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_on_prior(PDL: tl.constexpr):
    if PDL:
        gdc_wait()


@triton.jit
def is_last_program(counter, count):
    """Return True in the last of `count` programs to call it, which can then read the results of all."""
    tl.debug_barrier()  # all threads of this program must have stored before it is counted
    return tl.atomic_add(counter, 1, sem="acq_rel") == count - 1


Out = TypeVar("Out")


class CudaGraph(Generic[Out]):
    """Capture `step()` as a CUDA graph; calling the object replays it.

    The step may read and write any tensors in place, but no shape or branch may depend on their values. The
    step runs `warmups` times before the capture, so counters must be reset afterwards. A call overwrites the
    output of the previous one, and does not synchronize.
    """

    def __init__(self, step: Callable[[], Out], *, warmups: int = 2) -> None:
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(stream):
            completion_counters(
                torch.empty(0, device="cuda")
            )  # allocated before the capture, whose allocations belong to the graph
            for _ in range(warmups):
                step()
            stream.synchronize()
            # other threads, e.g. of another model, may allocate memory meanwhile
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.output = step()
        torch.cuda.current_stream().wait_stream(stream)

    def __call__(self) -> Out:
        self.graph.replay()
        return self.output

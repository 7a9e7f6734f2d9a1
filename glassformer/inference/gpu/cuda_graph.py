"""A step of decoding captured once and replayed: one call of the host for all of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from glassformer.errors import UnsupportedError
from glassformer.inference.gpu.launch import counters

Out = TypeVar("Out")


class CudaGraph(Generic[Out]):
    """`step()` as a graph, which a call replays.

    The step may read and write any tensors, in place, and must do the same each time: no shape and no branch
    may depend on their values. It is run `warmups` times here, so what it counts up must
    be set back afterwards. What a call gives is written over by the next; nothing waits for the GPU.
    """

    def __init__(self, step: Callable[[], Out], *, warmups: int = 2) -> None:
        if not torch.cuda.is_available():
            raise UnsupportedError("this machine", "CUDA graphs", hint="it has no CUDA GPU")
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

"""Decoding on a GPU: one decode step is captured as a CUDA graph and replayed for all later steps.

B inputs, W beams, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from glassformer.generation.inference_model import CachedDecoder
from glassformer.generation.step_decoder import GRAPH_WARMUP_STEPS, TokenSelector
from glassformer.inference.gpu.kv_cache import TritonBeamCache, TritonCrossCache
from glassformer.inference.gpu.launch import CudaGraph

if TYPE_CHECKING:
    from glassformer.generation.inference_model import InferenceModel

CAPACITY_STRIDE = 64  # capacities are multiples of this, so that graphs are often reused
Output = TypeVar("Output")


class CUDAGraphDecoder(CachedDecoder):
    """Replay decode steps as a CUDA graph; see `SelectingDecoder`. A step overwrites the previous output."""

    cache: TritonBeamCache
    cross: TritonCrossCache | None
    positions: Tensor

    def __init__(
        self,
        model: InferenceModel,
        embed: nn.Module,
        cache: TritonBeamCache,
        cross: TritonCrossCache | None,
        positions: Tensor,
        limit: int | None,
    ) -> None:
        super().__init__(model, embed, cache, cross, positions, limit)
        self.selector: TokenSelector | None = None
        self.captured: TokenSelector | None = None  # the selector in the graph, whose tensors must stay alive
        self._allocate()

    def _allocate(self) -> None:
        """Allocate the input tensors of a step, and discard the graph."""
        rows = self.cache.batch * self.cache.width
        self.ids = torch.zeros(rows, dtype=torch.int64, device=self.positions.device)
        self.rows = torch.arange(rows, device=self.positions.device)
        self.reordered = False  # whether `rows` was set for the next step
        self.graph: CudaGraph[tuple[Tensor, ...]] | None = None

    def step(self, ids: Tensor) -> Tensor:
        (logits,) = self.step_and_select(ids, None)
        return logits

    def step_and_select(self, ids: Tensor, selector: TokenSelector | None) -> tuple[Tensor, ...]:
        """Return `selector.choose(step(ids))`; without a selector, the logits."""
        if ids.is_cuda and (self.graph is None or self.selector is not selector):
            self._capture(selector)
        return self._next(ids, self.graph or (lambda: self._step(selector)))

    def step_once(self, ids: Tensor) -> Tensor:
        """Run a step without a graph, e.g. for the decoder's start tokens."""
        (logits,) = self._next(ids, lambda: self._step(None))
        return logits

    def _next(self, ids: Tensor, run: Callable[[], Output]) -> Output:
        self.ids.copy_(ids)
        if not self.reordered:
            torch.arange(len(self.rows), out=self.rows)
        output = run()
        self.cache.position += 1
        self.reordered = False
        return output

    def _step(self, selector: TokenSelector | None) -> tuple[Tensor, ...]:
        self.cache.reorder(self.rows)
        logits = super().step(self.ids)
        return (logits,) if selector is None else selector.choose(logits)

    def _capture(self, selector: TokenSelector | None) -> None:
        last = vars(self.model).pop("captured", None)  # atomic, so that only one thread takes it
        if last is not None and last.owner() is None and last.form == self.form(selector):
            for own, new in zip(last.state, self.state(selector), strict=True):
                own.copy_(new)
            last.hand_over(self)
            if selector is not None:
                selector.adopt(last.selector_state)
        else:
            cache = self.cache
            counters = [x for x in (cache.filled, self.positions, cache.ancestors) if x is not None]
            if selector is not None:
                counters += selector.state().values()
            before = [x.clone() for x in counters]
            self.graph = CudaGraph(lambda: self._step(selector), warmups=GRAPH_WARMUP_STEPS)
            self.captured = selector
            for x, value in zip(counters, before, strict=True):
                x.copy_(value)
        self.selector = selector
        self.model.captured = CapturedGraph(self, selector)

    def state(self, selector: TokenSelector | None) -> list[Tensor]:
        """Return all tensors that the graph reads and writes from step to step."""
        cross = self.cross.state() if self.cross else []
        chosen = {} if selector is None else selector.state()
        return [*self.cache.state(), *cross, self.positions, self.rows, *chosen.values()]

    def form(self, selector: TokenSelector | None) -> Hashable:
        """Return a key; decoders with equal keys can reuse each other's graph."""
        shapes = tuple((x.shape, x.dtype) for x in self.state(selector))
        return self.cache.width, self.cache.prompt, shapes, None if selector is None else selector.form

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self._allocate()

    def expand_beams(self, count: int) -> None:
        super().expand_beams(count)
        self._allocate()

    def reorder(self, rows: Tensor) -> None:
        self.rows.copy_(rows)
        self.reordered = True


class CapturedGraph:
    """A CUDA graph with its tensors; once its decoder is gone, a decoder of the same form can reuse it."""

    PARTS = ("cache", "cross", "layers", "positions", "ids", "rows", "graph", "captured")

    def __init__(self, decoder: CUDAGraphDecoder, selector: TokenSelector | None) -> None:
        self.owner = weakref.ref(decoder)
        self.form, self.state = decoder.form(selector), decoder.state(selector)
        self.selector_state = {} if selector is None else selector.state()
        self.parts: dict[str, Any] = {name: getattr(decoder, name) for name in self.PARTS}

    def hand_over(self, decoder: CUDAGraphDecoder) -> None:
        """Let a decoder of the same form, whose state was copied here, continue with this graph."""
        self.parts["cache"].position = decoder.cache.position
        vars(decoder).update(self.parts)

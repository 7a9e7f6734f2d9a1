"""Decoding on a GPU: the kernels of one step are captured in a CUDA graph and replayed for all others.

B inputs, W beams, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from glassformer.core.reading import first_vectors
from glassformer.generation.decoder import TokenSelector
from glassformer.generation.request import SPARE as WARMUPS
from glassformer.inference.gpu.cuda_graph import CudaGraph
from glassformer.inference.gpu.kv_cache import TritonBeamCache, TritonCrossCache

if TYPE_CHECKING:
    from glassformer.generation.inference_model import InferenceModel


CAPACITY_STRIDE = 64  # capacities are multiples of this, so that graphs are often reused
Output = TypeVar("Output")


class GraphDecoder:
    """See `Decoder`, `BeamDecoder` and `SelectingDecoder`. The next step overwrites what `step` returned."""

    def __init__(
        self,
        model: InferenceModel,
        embed: nn.Module,
        cache: TritonBeamCache,
        *,
        cross: TritonCrossCache | None = None,
        positions: Tensor,
        limit: int | None,
    ) -> None:
        """positions (B,): of each input's next token; limit: how many positions the embedding has."""
        self.model, self.embed, self.cache, self.cross = model, embed, cache, cross
        self.positions, self.limit = positions, limit
        self.graph: CudaGraph[tuple[Tensor, ...]] | None = None
        self.selector: TokenSelector = _LOGITS
        self.captured: TokenSelector = _LOGITS  # the one in the graph, which keeps reading its tensors
        self._allocate()

    def _allocate(self) -> None:
        """Fresh tensors for the inputs of a step, and no graph yet."""
        rows = self.cache.batch * self.cache.width
        self.ids = torch.zeros(rows, dtype=torch.int64, device=self.positions.device)
        self.rows = torch.arange(rows, device=self.positions.device)
        self.reordered = False  # whether `rows` was set for the next step
        self.graph = None

    def step(self, ids: Tensor) -> Tensor:
        (logits,) = self.step_and_select(ids, _LOGITS)
        return logits

    def step_and_select(self, ids: Tensor, selector: TokenSelector) -> tuple[Tensor, ...]:
        if ids.is_cuda and (self.graph is None or self.selector is not selector):
            self._capture(selector)
        return self._next(ids, self.graph or (lambda: selector(self._step())))

    def step_once(self, ids: Tensor) -> Tensor:
        """A step that is not worth a graph."""
        return self._next(ids, self._step)

    def _next(self, ids: Tensor, run: Callable[[], Output]) -> Output:
        self.ids.copy_(ids)
        if not self.reordered:
            torch.arange(len(self.rows), out=self.rows)
        output = run()
        self.cache.position += 1
        self.reordered = False
        return output

    def _step(self) -> Tensor:
        cache = self.cache
        cache.reorder(self.rows)
        # finished rows may continue beyond the limit
        positions = self.positions if self.limit is None else self.positions.clamp(max=self.limit - 1)
        by_row = positions.repeat_interleave(cache.width)[:, None]  # (B * W, 1)
        embedded = first_vectors(self.embed, self.ids[:, None], by_row, 0, None).x[:, 0]
        cache.prepare(positions)
        x = self.model.to_stream(embedded)
        x = self.model.decoder.run(x, cache.attend, None if self.cross is None else self.cross.attend)
        cache.advance()
        self.positions.add_(1)
        return self.model.logits(x)

    def _capture(self, selector: TokenSelector) -> None:
        last, self.model.captured = self.model.captured, None
        if last is not None and last.owner() is None and last.form == self.form(selector):
            for kept, new in zip(last.state, self.state(selector), strict=True):
                kept.copy_(new)
            last.hand_over(self)
            selector.adopt(last.selector_state)
        else:
            cache = self.cache
            counters = [x for x in (cache.filled, self.positions, cache.ancestors) if x is not None]
            counters += selector.state().values()
            before = [x.clone() for x in counters]
            self.graph = CudaGraph(lambda: selector(self._step()), warmups=WARMUPS)
            self.captured = selector
            for x, value in zip(counters, before, strict=True):
                x.copy_(value)
        self.selector = selector
        self.model.captured = CapturedGraph(self, selector)

    def state(self, selector: TokenSelector) -> list[Tensor]:
        """All tensors that the graph reads and writes from step to step."""
        cross = self.cross.state() if self.cross else []
        return [*self.cache.state(), *cross, self.positions, self.rows, *selector.state().values()]

    def form(self, selector: TokenSelector) -> Hashable:
        """Decoders of one form can take over each other's graph."""
        shapes = tuple((x.shape, x.dtype) for x in self.state(selector))
        return self.cache.width, self.cache.prompt, shapes, type(selector), selector.form()

    def select(self, rows: Tensor) -> None:
        inputs = self.cache.inputs_of(rows)
        self.cache.select(rows)
        if self.cross is not None:
            self.cross.select(inputs)
        self.positions = self.positions.index_select(0, inputs)
        self._allocate()

    def widen(self, count: int) -> None:
        self.cache.widen(count)
        self._allocate()

    def reorder(self, rows: Tensor) -> None:
        self.rows.copy_(rows)
        self.reordered = True


class _Logits(TokenSelector):
    """Selects nothing: returns the logits."""

    def __call__(self, logits: Tensor) -> tuple[Tensor, ...]:
        return (logits,)

    def form(self) -> Hashable:
        return None

    def state(self) -> dict[str, Tensor]:
        return {}

    def adopt(self, state: dict[str, Tensor]) -> None:
        pass


_LOGITS = _Logits()


class CapturedGraph:
    """A graph and what it reads and writes: free for other decoders of its form once its own is gone."""

    def __init__(self, decoder: GraphDecoder, selector: TokenSelector) -> None:
        self.owner = weakref.ref(decoder)
        self.form, self.state = decoder.form(selector), decoder.state(selector)
        self.selector_state = selector.state()
        self.cache, self.cross, self.positions = decoder.cache, decoder.cross, decoder.positions
        self.ids, self.rows = decoder.ids, decoder.rows
        self.graph, self.captured = decoder.graph, decoder.captured

    def hand_over(self, decoder: GraphDecoder) -> None:
        """Let a decoder of the same form, whose state was copied here, continue with this graph."""
        self.cache.position = decoder.cache.position
        decoder.cache, decoder.cross, decoder.positions = self.cache, self.cross, self.positions
        decoder.ids, decoder.rows = self.ids, self.rows
        decoder.graph, decoder.captured = self.graph, self.captured

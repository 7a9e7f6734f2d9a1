"""Decoding on a GPU: the kernels of one are captured once and replayed for all, with nothing to wait for.

B sentences or prompts, W beams, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from glassformer.core.reading import first_vectors
from glassformer.generation.decoder import TokenSelector
from glassformer.generation.request import SPARE
from glassformer.inference.gpu.graph import Captured
from glassformer.inference.gpu.growing import GrowingOnGpu
from glassformer.inference.gpu.source import SourceOnGpu

if TYPE_CHECKING:
    from glassformer.generation.inference_model import InferenceModel


ROOM = 64  # capacities are multiples of this, so that captured graphs are often reused
Found = TypeVar("Found")
_PARTS = ("growing", "source", "places", "ids", "rows", "graph", "captured")


class GraphDecoder:
    """See `Decoder` and `BeamDecoder`. What `step` gives is written over by the next step."""

    def __init__(
        self,
        model: InferenceModel,
        embed: nn.Module,
        growing: GrowingOnGpu,
        *,
        source: SourceOnGpu | None = None,
        places: Tensor,
        table: int | None,
    ) -> None:
        """places (B,): where the next token of each row stands; table: the positions the embedding knows."""
        self.model, self.embed, self.growing, self.source = model, embed, growing, source
        self.places, self.table = places, table
        self.graph: Captured[tuple[Tensor, ...]] | None = None
        self.follow: TokenSelector = _LOGITS
        self.captured: TokenSelector = _LOGITS  # what the graph was made with: it goes on reading its tensors
        self._shaped()

    def _shaped(self) -> None:
        """Fresh tensors for what a step is given, and no graph yet."""
        rows = self.growing.sentences * self.growing.width
        self.ids = torch.zeros(rows, dtype=torch.int64, device=self.places.device)
        self.rows = torch.arange(rows, device=self.places.device)
        self.moved = False  # whether the rows were set for the next step
        self.graph = None

    def step(self, ids: Tensor) -> Tensor:
        (found,) = self.step_and_select(ids, _LOGITS)
        return found

    def step_and_select(self, ids: Tensor, selector: TokenSelector) -> tuple[Tensor, ...]:
        if ids.is_cuda and (self.graph is None or self.follow is not selector):
            self._capture(selector)
        return self._next(ids, self.graph or (lambda: selector(self._advanced())))

    def once(self, ids: Tensor) -> Tensor:
        """A step that is not worth a graph."""
        return self._next(ids, self._advanced)

    def _next(self, ids: Tensor, advance: Callable[[], Found]) -> Found:
        self.ids.copy_(ids)
        if not self.moved:
            torch.arange(len(self.rows), out=self.rows)
        found = advance()
        self.growing.position += 1
        self.moved = False
        return found

    def _advanced(self) -> Tensor:
        growing = self.growing
        growing.reorder(self.rows)
        # rows that have ended may go on beyond the table
        places = self.places if self.table is None else self.places.clamp(max=self.table - 1)
        where = places.repeat_interleave(growing.width)[:, None]  # (B * W, 1)
        embedded = first_vectors(self.embed, self.ids[:, None], where, 0, None).x[:, 0]
        growing.ready(places)
        x = self.model.decoder(self.model.streamed(embedded), growing, self.source)
        growing.advance()
        self.places.add_(1)
        return self.model.logits(x)

    def _capture(self, follow: TokenSelector) -> None:
        left, self.model.left_over = self.model.left_over, None
        if left is not None and left.owner() is None and left.form == self.form(follow):
            for kept, new in zip(left.state, self.state(follow), strict=True):
                kept.copy_(new)
            left.parts["growing"].position = self.growing.position
            vars(self).update(left.parts)
            follow.adopt(left.follows)
        else:
            growing = self.growing
            counts = [x for x in (growing.length, self.places, growing.ancestors) if x is not None]
            counts += follow.state().values()
            before = [x.clone() for x in counts]
            self.graph = Captured(lambda: follow(self._advanced()), warmups=SPARE)
            self.captured = follow
            for x, value in zip(counts, before, strict=True):
                x.copy_(value)
        self.follow = follow
        self.model.left_over = LeftOver(self, follow)

    def state(self, follow: TokenSelector) -> list[Tensor]:
        """All that the graph reads and writes from step to step."""
        source = self.source.state() if self.source else []
        return [*self.growing.state(), *source, self.places, self.rows, *follow.state().values()]

    def form(self, follow: TokenSelector) -> Hashable:
        """Decoders of one form can take over each other's graph."""
        shapes = tuple((x.shape, x.dtype) for x in self.state(follow))
        return self.growing.width, self.growing.read, shapes, type(follow), follow.form()

    def select(self, rows: Tensor) -> None:
        width = self.growing.width
        sentences = rows if width == 1 else rows.view(-1, width)[:, 0] // width
        self.growing.select(rows)
        if self.source is not None:
            self.source.select(sentences)
        self.places = self.places.index_select(0, sentences)
        self._shaped()

    def widen(self, count: int) -> None:
        self.growing.widen(count)
        self._shaped()

    def reorder(self, rows: Tensor) -> None:
        self.rows.copy_(rows)
        self.moved = True


class _Logits(TokenSelector):
    """Nothing follows: the scores themselves."""

    def __call__(self, logits: Tensor) -> tuple[Tensor, ...]:
        return (logits,)

    def form(self) -> Hashable:
        return None

    def state(self) -> dict[str, Tensor]:
        return {}

    def adopt(self, state: dict[str, Tensor]) -> None:
        pass


_LOGITS = _Logits()


class LeftOver:
    """A graph and what it reads and writes: free for other steps of its form once its own are gone."""

    def __init__(self, steps: GraphDecoder, follow: TokenSelector) -> None:
        self.owner = weakref.ref(steps)
        self.form, self.state = steps.form(follow), steps.state(follow)
        self.follows = follow.state()
        self.parts = {name: getattr(steps, name) for name in _PARTS}

"""Steps on a GPU: the kernels of one are captured once and replayed for all, with nothing to wait for.

B sentences or prompts, W beams, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from glassformer.core.reading import first_vectors
from glassformer.quick.gpu.graph import Captured
from glassformer.quick.gpu.growing import GrowingOnGpu
from glassformer.quick.gpu.source import SourceOnGpu

if TYPE_CHECKING:
    from glassformer.decoding.ready import Ready


ROOM = 64  # positions are made room for in such pieces, so that steps often have the form of others
_PARTS = ("growing", "source", "places", "ids", "rows", "graph")


class CapturedSteps:
    """See `Steps` and `SharedSource`. What `step` gives is written over by the next step."""

    def __init__(
        self,
        model: Ready,
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
        self.graph: Captured[Tensor] | None = None
        self._shaped()

    def _shaped(self) -> None:
        """Fresh tensors for what a step is given, and no graph yet."""
        rows = self.growing.sentences * self.growing.width
        self.ids = torch.zeros(rows, dtype=torch.int64, device=self.places.device)
        self.rows = torch.arange(rows, device=self.places.device)
        self.moved = False  # whether the rows were set for the next step
        self.graph = None

    def step(self, ids: Tensor) -> Tensor:
        if self.graph is None and ids.is_cuda:
            self._capture()
        return self._next(ids, self.graph or self._advanced)

    def once(self, ids: Tensor) -> Tensor:
        """A step that is not worth a graph."""
        return self._next(ids, self._advanced)

    def _next(self, ids: Tensor, advance: Callable[[], Tensor]) -> Tensor:
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

    def _capture(self) -> None:
        left = self.model.left_over
        self.model.left_over = None
        if left is not None and left.owner() is None and left.form == self.form():
            for kept, new in zip(left.state, self.state(), strict=True):
                kept.copy_(new)
            left.parts["growing"].position = self.growing.position
            vars(self).update(left.parts)
        else:
            growing = self.growing
            counts = [x for x in (growing.length, self.places, growing.ancestors) if x is not None]
            before = [x.clone() for x in counts]
            self.graph = Captured(self._advanced)
            for x, value in zip(counts, before, strict=True):
                x.copy_(value)
        self.model.left_over = LeftOver(self)

    def state(self) -> list[Tensor]:
        """All that the graph reads and writes from step to step."""
        return [*self.growing.state(), *(self.source.state() if self.source else []), self.places]

    def form(self) -> Any:
        """Steps of one form can take over each other's graph."""
        growing = self.growing
        return growing.width, growing.read, [(x.shape, x.dtype) for x in self.state()]

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


class LeftOver:
    """A graph and what it reads and writes: free for other steps of its form once its own are gone."""

    def __init__(self, steps: CapturedSteps) -> None:
        self.owner = weakref.ref(steps)
        self.form, self.state = steps.form(), steps.state()
        self.parts = {name: getattr(steps, name) for name in _PARTS}

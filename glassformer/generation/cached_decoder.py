"""The steps of a model made ready: each reads one token a row and gives the scores of the next.

B sentences or prompts, W beams, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from glassformer.core.reading import first_vectors
from glassformer.inference.growing import Growing
from glassformer.inference.source import Source

if TYPE_CHECKING:
    from glassformer.generation.inference_model import InferenceModel


class CachedDecoder:
    """The steps of a model made ready; see `Decoder` and `BeamDecoder`."""

    def __init__(
        self,
        model: InferenceModel,
        embed: nn.Module,
        growing: Growing,
        *,
        source: Source | None = None,
        places: Tensor | None = None,
        table: int | None,
    ) -> None:
        """places (B,): where the next token of each row stands, if not after all that is filled.

        table: how many positions the embedding knows.
        """
        self.model, self.embed, self.growing, self.source = model, embed, growing, source
        self.places, self.table = places, table

    def step(self, ids: Tensor) -> Tensor:
        growing, width = self.growing, self.growing.width
        places = self.places
        if places is not None and self.table is not None:
            places = places.clamp(max=self.table - 1)  # rows that have ended may go on beyond it
        where = None if places is None else places.repeat_interleave(width)[:, None]  # (B * W, 1)
        embedded = first_vectors(self.embed, ids[:, None], where, growing.position, None).x[:, 0]
        x = self.model.streamed(embedded)
        growing.ready(places, x.dtype, x.device)
        x = self.model.decoder(x, growing, self.source)
        growing.advance()
        if self.places is not None:
            self.places = self.places + 1
        return self.model.logits(x)

    def once(self, ids: Tensor) -> Tensor:
        """The same; on a GPU steps differ in this."""
        return self.step(ids)

    def select(self, rows: Tensor) -> None:
        width = self.growing.width
        sentences = rows if width == 1 else rows.view(-1, width)[:, 0] // width
        self.growing.select(rows)
        if self.source is not None:
            self.source.select(sentences)
        self.places = None if self.places is None else self.places.index_select(0, sentences)

    def widen(self, count: int) -> None:
        self.growing.widen(count)

    def reorder(self, rows: Tensor) -> None:
        self.growing.reorder(rows)

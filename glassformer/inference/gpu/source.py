"""A source's keys and values on a GPU: as `quick.source`, by one kernel a step.

B sentences, W beams, S source positions, H query heads, K head width.
"""

from __future__ import annotations

from torch import Tensor

from glassformer.inference.gpu.look import look_across
from glassformer.inference.layers import Layers
from glassformer.inference.source import Source
from glassformer.inference.whole import Rows


class SourceOnGpu(Source):
    """Cross-attention, as a `Look`."""

    def __init__(self, decoder: Layers, memory: Tensor, rows: Rows, real: Tensor) -> None:
        super().__init__(decoder, memory, rows, real)
        self.real = None if rows.index is None else real  # (B, S)

    def state(self) -> list[Tensor]:
        """All that a captured step reads."""
        some = [self.real, self.empty]
        return [*(x for pair in self.kv for x in pair), *(x for x in some if x is not None)]

    def __call__(self, n: int, q: Tensor) -> Tensor:
        assert self.attention is not None
        k, v = self.kv[n]
        heads, width = self.attention.num_heads, self.attention.head_dim
        asked = q.view(len(k), -1, heads, width)  # (B, W, H, K)
        found = look_across(asked, k, v, scale=self.attention.scale, real=self.real)
        if self.empty is not None:
            found = found.masked_fill(self.empty, 0.0)
        return found.view(len(q), heads * width)

    def select(self, sentences: Tensor) -> None:
        super().select(sentences)
        self.real = None if self.real is None else self.real.index_select(0, sentences)

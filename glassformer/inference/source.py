"""What was read of a source, as keys and values that every step looks at.

B sentences, W beams, S source positions, N real source tokens, D d_model, H query heads, K head width,
V value width.
"""

from __future__ import annotations

from torch import Tensor

from glassformer.inference.few import attend_few
from glassformer.inference.layers import Layers, joined, split
from glassformer.inference.whole import Rows, hidden, nothing_read


class Source:
    """A source's keys and values, seen by all beams of its sentence: cross-attention, as a `Look`."""

    def __init__(self, decoder: Layers, memory: Tensor, rows: Rows, real: Tensor) -> None:
        """memory (N, D): the real rows of the source (B, S)."""
        self.attention = decoder.cross
        self.kv: list[tuple[Tensor, Tensor]] = []
        if self.attention is None:
            return
        groups, batch = self.attention.num_kv_heads, rows.shape[0]
        widths = [groups * self.attention.head_dim, groups * self.attention.value_dim]
        for layer in decoder.layers:
            whole = rows.put(layer.cross_kv(memory)).view(batch, rows.shape[1], -1)
            k, v = whole.split_with_sizes(widths, -1)
            # laid out by heads once, as every step will read it
            self.kv.append((split(k, groups).contiguous(), split(v, groups).contiguous()))
        dtype = self.kv[0][0].dtype if self.kv else memory.dtype
        self.hidden, self.empty = hidden(real, dtype), nothing_read(real)

    def __call__(self, n: int, q: Tensor) -> Tensor:
        """Layer n's queries (B * W, H * K) -> heads (B * W, H * V)."""
        assert self.attention is not None
        k, v = self.kv[n]
        asked = split(q.view(len(k), -1, q.shape[-1]), self.attention.num_heads)  # (B, H, W, K)
        heads = attend_few(asked, k, v, self.hidden, self.attention.scale)
        return joined(heads if self.empty is None else heads.masked_fill(self.empty, 0.0))

    def select(self, sentences: Tensor) -> None:
        """Go on with these sentences, in this order."""
        if self.attention is None:
            return
        self.kv = [(k.index_select(0, sentences), v.index_select(0, sentences)) for k, v in self.kv]
        self.hidden = None if self.hidden is None else self.hidden.index_select(0, sentences)
        self.empty = None if self.empty is None else self.empty.index_select(0, sentences)

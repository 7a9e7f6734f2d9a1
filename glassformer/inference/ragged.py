"""Sequences of any lengths read at once, one after another as flat rows: nothing is padded.

Products see all rows together; attention sees each sequence alone, as if nothing else were read. A sequence
can be read in pieces: the later ones look back at the keys and values of those before.

N tokens of all, T of one piece, P read before it, G key/value heads, K head width, V value width, D d_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.kernels import Settled, sdpa
from glassformer.core.masks import Mask
from glassformer.core.positions import Place, rotate
from glassformer.inference.layers import Layers, heads_of, joined


@dataclass(eq=False)
class Past:
    """The keys (1, G, P, K) and values (1, G, P, V) of what was read of one sequence, by layers."""

    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.k[0].shape[2] if self.k else 0

    def extend(self, n: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Layer n's of the tokens that follow -> all so far."""
        if n == len(self.k):
            self.k.append(k)
            self.v.append(v)
        else:
            self.k[n], self.v[n] = torch.cat((self.k[n], k), 2), torch.cat((self.v[n], v), 2)
        return self.k[n], self.v[n]


class Ragged:
    """Self-attention within each piece, as a `Look`."""

    def __init__(
        self, layers: Layers, lengths: Sequence[int], pasts: Sequence[Past] | None, like: Tensor
    ) -> None:
        """pasts: what was read of each sequence, which grows by this; None: nothing was, nor is kept.

        like (N, D): vectors of the precision and on the device that attention will see.
        """
        assert layers.own is not None
        self.attention: MultiHeadAttention = layers.own
        self.lengths, self.pasts = list(lengths), pasts
        before = [0] * len(self.lengths) if pasts is None else [past.length for past in pasts]
        told = list(zip(self.lengths, before, strict=True))
        alike = {form: self._settled(layers, *form, like) for form in set(told)}
        self.seen = [alike[form] for form in told]

    def _settled(self, layers: Layers, length: int, past: int, like: Tensor) -> tuple[Place, Settled]:
        mask = Mask(causal=layers.stack.causal)
        place = layers.stack.place(None, past, length, past + length, mask, like.device)
        sized = like[:length][None]  # (1, T, D)
        settled = self.attention.settle(
            mask, sized, past + length, dtype=like.dtype, bias=place.bias, kernel="sdpa"
        )
        return place, settled

    def __call__(self, n: int, qkv: Tensor) -> Tensor:
        """Layer n's projections (N, ...) -> heads (N, H * V)."""
        return torch.cat([self._piece(n, i, part) for i, part in enumerate(qkv.split(self.lengths))])

    def _piece(self, n: int, piece: int, qkv: Tensor) -> Tensor:
        place, settled = self.seen[piece]
        q, k, v = heads_of(self.attention, qkv, 1)
        if place.rotary is not None:
            q, k = rotate(q, place.rotary), rotate(k, place.rotary)
        if self.pasts is not None:
            k, v = self.pasts[piece].extend(n, k, v)
        return joined(sdpa(q, k, v, settled, self.attention.scale))


def read_ragged(
    layers: Layers, x: Tensor, lengths: Sequence[int], pasts: Sequence[Past] | None = None
) -> Tensor:
    """Vectors of all pieces (N, D), one piece after another -> those after all layers (N, D)."""
    if layers.own is None:
        return layers.final_norm(x)
    return layers(x, Ragged(layers, lengths, pasts, x))

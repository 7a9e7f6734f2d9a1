"""Sequences read whole, without their padding: an encoder's, or a prompt's.

Between attentions only the real tokens are there, as flat rows. Attention sees them in their places.

B sequences, S positions, N real tokens, H heads, G key/value heads, K head width, V value width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.kernels import sdpa
from glassformer.core.masks import Mask
from glassformer.core.positions import Place, rotate
from glassformer.inference.layers import Layers, heads_of, joined

Keep = Callable[[int, Tensor, Tensor], None]  # layer, k (B, G, S, K), v (B, G, S, V)


class Rows:
    """Which flat rows (N,) of B sequences of S places are real."""

    def __init__(self, real: Tensor) -> None:
        self.shape = real.shape
        self.index = None if bool(real.all()) else real.reshape(-1).nonzero()[:, 0]

    def taken(self, x: Tensor) -> Tensor:
        """(B, S, ...) -> the real rows (N, ...)."""
        flat = x.flatten(0, 1)
        return flat if self.index is None else flat.index_select(0, self.index)

    def put(self, rows: Tensor) -> Tensor:
        """The real rows (N, E) -> (B * S, E), zeros where nothing is."""
        if self.index is None:
            return rows
        return rows.new_zeros(self.shape.numel(), rows.shape[-1]).index_copy_(0, self.index, rows)


class Whole:
    """Self-attention of whole sequences, as a `Look`; `keep` is given every layer's keys and values."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        rows: Rows,
        mask: Mask,
        place: Place,
        *,
        like: Tensor,
        keep: Keep | None = None,
    ) -> None:
        """`like` (B, S, D): vectors of the precision and on the device that attention will see."""
        self.attention, self.rows, self.place, self.keep = attention, rows, place, keep
        self.mask = attention.settle(
            mask, like, rows.shape[1], dtype=like.dtype, bias=place.bias, kernel="sdpa"
        )

    def __call__(self, n: int, qkv: Tensor) -> Tensor:
        q, k, v = heads_of(self.attention, self.rows.put(qkv), self.rows.shape[0])
        if self.place.rotary is not None:
            q, k = rotate(q, self.place.rotary), rotate(k, self.place.rotary)
        if self.keep is not None:
            self.keep(n, k, v)
        found = joined(sdpa(q, k, v, self.mask, self.attention.scale))  # (B * S, H * V)
        return found if self.rows.index is None else found.index_select(0, self.rows.index)


def last_rows(real: Tensor) -> Tensor:
    """Where each sequence's last real token stands among the real rows of all (B,)."""
    return real.sum(1).cumsum(0) - 1


def nothing_read(real: Tensor) -> Tensor | None:
    """Sequences (B, 1, 1, 1) without a real token; None where there are none."""
    empty = ~real.any(1)
    return empty[:, None, None, None] if bool(empty.any()) else None


def hidden(real: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What is added to scores against these keys (B, 1, 1, S): 0, or -inf for padding; None: all are real."""
    if bool(real.all()):
        return None
    return torch.zeros(real.shape, dtype=dtype, device=real.device).masked_fill_(~real, -torch.inf)[
        :, None, None
    ]


def read_whole(
    layers: Layers, x: Tensor, rows: Rows, mask: Mask, places: Tensor | None, keep: Keep | None = None
) -> Tensor:
    """Vectors (B, S, D) -> those of the real tokens (N, D) after all layers."""
    if layers.own is None:
        return layers.final_norm(rows.taken(x))
    length = x.shape[1]
    mask = replace(mask, causal=mask.causal or layers.stack.causal)
    place = layers.stack.place(places, 0, length, length, mask, x.device)
    own = Whole(layers.own, rows, mask, place, like=x, keep=keep)
    return layers(rows.taken(x), own)

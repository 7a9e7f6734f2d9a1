"""What was read and written so far, as keys and values that grow with every step.

The beams of a sentence are the queries of one attention over all that the sentence holds. What was read lies
there once, for all of them; of what was written, a beam sees its own ancestors. So when beams change places
only the table of who sees what is moved about, and never a key.

B sentences, W beams, H query heads, G key/value heads, K head width, V value width, L slots.
A step fills W slots: slot `read + W * step + beam`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.masks import Mask
from glassformer.core.positions import Place, rotate
from glassformer.core.stack import Stack
from glassformer.quick.layers import heads_of, joined


class Growing:
    """Self-attention of what is being written, as a `Look` between `ready` and `advance`."""

    def __init__(self, stack: Stack, sentences: int, room: int, real: Tensor | None = None) -> None:
        """Room for `room` positions; `real` (B, P) are those of a prompt, that will be kept at first."""
        blocks: Any = stack.blocks
        self.stack, self.attention = stack, blocks[0].self_attn if len(blocks) else None
        self.sentences, self.width, self.room = sentences, 1, room
        self.read = self.written = 0
        self.real = real  # (B, P), None: nothing is padding
        self.k: list[Tensor] = [torch.empty(0)] * len(blocks)  # (B, G, L, K)
        self.v: list[Tensor] = [torch.empty(0)] * len(blocks)
        self.seen: Tensor | None = None  # (B, 1, W, L), 0 or -inf; None: everything
        self._extra: Tensor | None = None  # what this step adds to the scores (B|1, 1|H, W|1, filled)
        self._rotary: tuple[Tensor, Tensor] | None = None

    @property
    def filled(self) -> int:
        return self.read + self.width * self.written

    # ---- what was read -------------------------------------------------------------------------------

    def keep(self, n: int, k: Tensor, v: Tensor) -> None:
        """A prompt's keys (B, G, P, K) and values (B, G, P, V) of layer n."""
        self.read = k.shape[2]
        self.k[n], self.v[n] = (self._allocated(x, self.room) for x in (k, v))
        self.k[n][:, :, : self.read] = k
        self.v[n][:, :, : self.read] = v
        if n == 0 and self.real is not None:
            self.seen = torch.zeros(self.sentences, 1, 1, self.room, dtype=k.dtype, device=k.device)
            self.seen[..., : self.read].masked_fill_(~self.real[:, None, None], -torch.inf)

    @staticmethod
    def _allocated(like: Tensor, slots: int) -> Tensor:
        return like.new_empty(like.shape[0], like.shape[1], slots, like.shape[3])

    # ---- a step --------------------------------------------------------------------------------------

    def ready(self, places: Tensor | None, dtype: torch.dtype, device: torch.device) -> None:
        """Work out once for all layers what positions and beams mean for this step's scores.

        `places` (B,): where the tokens of this step stand, if not simply after all that is filled.
        """
        if self.attention is None:
            return
        at = self.read + self.written
        first, until = self.filled, self.filled + self.width
        place = self._place(places, at, device)
        self._rotary = place.rotary
        seen = self.seen
        if seen is not None:
            if self.width > 1:
                own = torch.full((self.width, self.width), -torch.inf, dtype=seen.dtype, device=device)
                seen[..., first:until] = own.fill_diagonal_(0.0)
            seen = seen[..., :until]
        extra = seen
        if place.bias is not None:  # (B|1, H, 1, at + 1)
            bias = self._by_slot(place.bias).to(dtype)
            extra = bias if seen is None else bias + seen
        window = self.attention.window
        if window is not None and at + 1 > window:
            gone = torch.zeros(1, 1, 1, at + 1, dtype=dtype, device=device)
            gone[..., : at + 1 - window] = -torch.inf
            extra = self._by_slot(gone) if extra is None else extra + self._by_slot(gone)
        self._extra = extra

    def _place(self, places: Tensor | None, at: int, device: torch.device) -> Place:
        real = self.real
        if real is not None:
            real = F.pad(real, (0, at + 1 - real.shape[1]), value=True)
        positions = None if places is None else places[:, None]  # (B, 1)
        return self.stack.place(positions, at, 1, at + 1, Mask(padding=real), device)

    def _by_slot(self, by_position: Tensor) -> Tensor:
        """(..., positions) -> (..., slots): the beams' slots of one step stand at one position."""
        if self.width == 1:
            return by_position
        read, written = by_position[..., : self.read], by_position[..., self.read :]
        return torch.cat((read, written.repeat_interleave(self.width, -1)), -1)

    def __call__(self, n: int, qkv: Tensor) -> Tensor:
        """Layer n's projections of the tokens just chosen (B * W, ...) -> heads (B * W, H * V)."""
        assert self.attention is not None
        q, k, v = heads_of(self.attention, qkv, self.sentences)
        if self._rotary is not None:
            q, k = rotate(q, self._rotary), rotate(k, self._rotary)
        first, until = self.filled, self.filled + self.width
        if not self.k[n].numel():
            self.k[n], self.v[n] = (self._allocated(x, self.room * self.width) for x in (k, v))
        self.k[n][:, :, first:until] = k
        self.v[n][:, :, first:until] = v
        extra = self._extra
        heads = F.scaled_dot_product_attention(
            q,
            self.k[n][:, :, :until],
            self.v[n][:, :, :until],
            attn_mask=None if extra is None else extra.expand(self.sentences, -1, self.width, -1),
            scale=self.attention.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return joined(heads)

    def advance(self) -> None:
        """Count the step; called once all layers have seen it."""
        self.written += 1

    # ---- rows come and go ----------------------------------------------------------------------------

    def widen(self, count: int) -> None:
        """Each sentence goes on with `count` beams; what it holds so far is read by all of them."""
        if count == 1 or self.attention is None:
            self.width = count
            return
        self.read, self.written = self.filled, 0
        slots = self.read + (self.room - self.read) * count
        for cache in (self.k, self.v):
            for n, old in enumerate(cache):
                cache[n] = self._allocated(old, slots)
                cache[n][:, :, : self.read] = old[:, :, : self.read]
        seen = self.k[0].new_full((self.sentences, 1, count, slots), -torch.inf)
        seen[..., : self.read] = 0.0 if self.seen is None else self.seen[..., : self.read]
        self.seen, self.width = seen, count

    def reorder(self, rows: Tensor) -> None:
        """Each row is replaced by a row (B * W,) of the same sentence."""
        if self.seen is None:
            return
        filled = self.seen[..., : self.filled]
        moved = filled.flatten(0, 2).index_select(0, rows)  # (B * W, filled)
        self.seen[..., : self.filled] = moved.view_as(filled)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order; of a sentence all beams go on, or none."""
        sentences = rows if self.width == 1 else rows.view(-1, self.width)[:, 0] // self.width
        for cache in (self.k, self.v):
            for n, old in enumerate(cache):
                cache[n] = self._allocated(old[:1].expand(len(sentences), -1, -1, -1), old.shape[2])
                cache[n][:, :, : self.filled] = old[:, :, : self.filled].index_select(0, sentences)
        if self.seen is not None:
            moved = self.seen.flatten(0, 2).index_select(0, rows)
            self.seen = moved.view(len(sentences), 1, self.width, -1)
        self.real = None if self.real is None else self.real.index_select(0, sentences)
        self.sentences = len(sentences)

"""What was read and written so far, on a GPU: as `quick.growing`, in tensors whose shapes never change.

How much is filled is counted on the device, so one captured graph serves every step.

B sentences, W beams, H query heads, G key/value heads, K head width, L slots.
Slots hold what was read, and then W for each step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glassformer.core.positions import AlibiBias, RelativeBias, RotaryPositions
from glassformer.core.stack import Stack
from glassformer.inference.gpu.look import look


def takes(stack: Stack) -> bool:
    """Whether the kernel knows what this stack does inside attention."""
    blocks: Any = stack.blocks
    if not len(blocks) or blocks[0].self_attn.value_dim != blocks[0].self_attn.head_dim:
        return False
    rounded = isinstance(stack.position, AlibiBias) and stack.position.rounding != "none"
    return not rounded  # which goes by where a key stands, not by how far away


class GrowingOnGpu:
    """Self-attention of what is being written, as a `Look` between `ready` and `advance`."""

    def __init__(self, stack: Stack, sentences: int, room: int, real: Tensor | None, *, like: Tensor) -> None:
        """Room for `room` positions; `real` (B, P): those of a prompt; `like`: the precision and device."""
        blocks: Any = stack.blocks
        self.stack, self.attention = stack, blocks[0].self_attn
        self.sentences, self.width, self.room = sentences, 1, room
        self.read = self.position = 0
        groups, width = self.attention.num_kv_heads, self.attention.head_dim
        shape = (sentences, groups, room, width)
        self.k = [torch.empty(shape, dtype=like.dtype, device=like.device) for _ in blocks]
        self.v = [torch.empty(shape, dtype=like.dtype, device=like.device) for _ in blocks]
        self.length = torch.zeros(1, dtype=torch.int64, device=like.device)
        self.ancestors: Tensor | None = None  # (B, W, L); None: every beam sees all that is filled
        self.real: Tensor | None = None  # (B, L)
        if real is not None:
            self.real = torch.ones(sentences, room, dtype=torch.bool, device=like.device)
            self.real[:, : real.shape[1]] = real
        self.bias = _by_distance(stack, room, like)
        self._rotary: tuple[Tensor, Tensor] | None = None

    def state(self) -> list[Tensor]:
        """All that a captured step reads and writes."""
        some = [self.ancestors, self.real]
        return [*self.k, *self.v, self.length, *(x for x in some if x is not None)]

    def keep(self, n: int, k: Tensor, v: Tensor) -> None:
        """A prompt's keys and values (B, G, P, K) of layer n."""
        self.read = self.position = k.shape[2]
        self.k[n][:, :, : self.read] = k
        self.v[n][:, :, : self.read] = v
        if n == 0:
            self.length.fill_(self.read)

    def ready(self, places: Tensor) -> None:
        """Work out for all layers what the places (B,) of this step's tokens mean; a new slot is seen."""
        if isinstance(self.stack.position, RotaryPositions):
            self._rotary = self.stack.position(places[:, None]).rotary  # (B, 1, 1, R) each
        if self.ancestors is not None:
            own = self.length + torch.arange(self.width, device=places.device)  # (W,)
            self.ancestors.scatter_(2, own[None, :, None].expand(self.sentences, -1, 1), True)

    def __call__(self, n: int, qkv: Tensor) -> Tensor:
        """Layer n's projections of the tokens just chosen (B * W, ...) -> heads (B * W, H * K)."""
        heads, groups, width = self.attention.num_heads, self.attention.num_kv_heads, self.attention.head_dim
        whole = qkv.view(self.sentences, self.width, heads + 2 * groups, width)
        q, k, v = whole.split((heads, groups, groups), 2)
        found = look(
            q,
            k,
            v,
            self.k[n],
            self.v[n],
            self.length,
            scale=self.attention.scale,
            real=self.real,
            ancestors=self.ancestors,
            rotary=self._rotary,
            window=self.attention.window,
            bias=self.bias,
            shared=self.read,
        )
        return found.view(self.sentences * self.width, heads * width)

    def advance(self) -> None:
        """Count the step on the device; the host counts for itself."""
        self.length.add_(self.width)

    def widen(self, count: int) -> None:
        """Each sentence goes on with `count` beams; what it holds so far is read by all of them."""
        self.read = self.position
        if count == 1:
            return
        slots = self.read + (self.room - self.read) * count
        for cache in (self.k, self.v):
            for n, old in enumerate(cache):
                cache[n] = old.new_empty(self.sentences, old.shape[1], slots, old.shape[3])
                cache[n][:, :, : self.read] = old[:, :, : self.read]
        if self.real is not None:
            real = torch.ones(self.sentences, slots, dtype=torch.bool, device=self.real.device)
            real[:, : self.read] = self.real[:, : self.read]
            self.real = real
        self.ancestors = torch.zeros(
            self.sentences, count, slots, dtype=torch.bool, device=self.length.device
        )
        self.ancestors[..., : self.read] = True
        self.width = count

    def reorder(self, rows: Tensor) -> None:
        """Each row is replaced by a row (B * W,) of the same sentence."""
        if self.ancestors is not None:
            self.ancestors.copy_(self.ancestors.flatten(0, 1).index_select(0, rows).view_as(self.ancestors))

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order; of a sentence all beams go on, or none."""
        sentences = rows if self.width == 1 else rows.view(-1, self.width)[:, 0] // self.width
        for cache in (self.k, self.v):
            for n, old in enumerate(cache):
                cache[n] = old.index_select(0, sentences)
        if self.ancestors is not None:
            moved = self.ancestors.flatten(0, 1).index_select(0, rows)
            self.ancestors = moved.view(len(sentences), self.width, -1)
        self.real = None if self.real is None else self.real.index_select(0, sentences)
        self.sentences = len(sentences)


def _by_distance(stack: Stack, room: int, like: Tensor) -> Tensor | None:
    """What the stack adds to scores: a slope for each head (H,), or a number for each distance (H, room)."""
    position = stack.position
    if isinstance(position, AlibiBias):
        return position.slopes * position.scale
    if isinstance(position, RelativeBias):
        there = torch.arange(room, device=like.device)[None]
        bias = position(there[:, -1:], there).bias  # (1, H, 1, room), the farthest first
        assert bias is not None
        return bias[0, :, 0].flip(-1).float().contiguous()
    return None

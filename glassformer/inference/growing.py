"""What was read and written so far, as keys and values that grow with every step.

The beams of a sentence are the queries of one attention over all that the sentence holds. What was read lies
there once, for all of them; of what was written, a beam sees its own ancestors. So when beams change places
only the table of who sees what is moved about, and never a key. Now and then, what no beam descends from any
more is forgotten: most beams soon share all but their last few tokens.

B sentences, W beams, H query heads, G key/value heads, K head width, V value width, L slots.
Slots hold, in this order: what was `read`, what was `kept` when others were forgotten, W for each step since.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.masks import Mask
from glassformer.core.positions import Place, rotate
from glassformer.core.stack import Stack
from glassformer.inference.few import attend_few
from glassformer.inference.layers import heads_of, joined

FORGET_EVERY: Final = 8  # steps between two looks at what could be forgotten
WORTHWHILE: Final = 0.7  # it is done where at most this share would be left


class Growing:
    """Self-attention of what is being written, as a `Look` between `ready` and `advance`."""

    def __init__(self, stack: Stack, sentences: int, room: int, real: Tensor | None = None) -> None:
        """Room for `room` positions; `real` (B, P) are those of a prompt, that will be kept at first."""
        blocks: Any = stack.blocks
        self.stack, self.attention = stack, blocks[0].self_attn if len(blocks) else None
        self.sentences, self.width, self.room = sentences, 1, room
        self.position = 0  # where the next token stands
        self.read = self.kept = self.since = 0
        self.standing: Tensor | None = None  # (B, kept), the positions of what was kept
        self.real = real  # (B, P), None: nothing is padding
        self.k: list[Tensor] = [torch.empty(0)] * len(blocks)  # (B, G, L, K)
        self.v: list[Tensor] = [torch.empty(0)] * len(blocks)
        self.seen: Tensor | None = None  # (B, 1, W, L), 0 or -inf; None: everything
        self._extra: Tensor | None = None  # what this step adds to the scores (B|1, 1|H, W|1, filled)
        self._rotary: tuple[Tensor, Tensor] | None = None

    @property
    def filled(self) -> int:
        return self.read + self.kept + self.width * self.since

    # ---- what was read -------------------------------------------------------------------------------

    def keep(self, n: int, k: Tensor, v: Tensor) -> None:
        """A prompt's keys (B, G, P, K) and values (B, G, P, V) of layer n."""
        self.read = self.position = k.shape[2]
        self.k[n], self.v[n] = (_allocated(x, len(x), self.room) for x in (k, v))
        self.k[n][:, :, : self.read] = k
        self.v[n][:, :, : self.read] = v
        if n == 0 and self.real is not None:
            self.seen = torch.zeros(self.sentences, 1, 1, self.room, dtype=k.dtype, device=k.device)
            self.seen[..., : self.read].masked_fill_(~self.real[:, None, None], -torch.inf)

    # ---- a step --------------------------------------------------------------------------------------

    def ready(self, places: Tensor | None, dtype: torch.dtype, device: torch.device) -> None:
        """Work out once for all layers what positions and beams mean for this step's scores.

        `places` (B,): where the tokens of this step stand, if not simply after all that is filled.
        """
        if self.attention is None:
            return
        if self.width > 1 and self.since and self.since % FORGET_EVERY == 0 and device.type == "cpu":
            self._forget()
        at, first, until = self.position, self.filled, self.filled + self.width
        place = self._place(places, device)
        self._rotary = place.rotary
        extra = self.seen
        if extra is not None:
            if self.width > 1:
                own = torch.full((self.width, self.width), -torch.inf, dtype=extra.dtype, device=device)
                extra[..., first:until] = own.fill_diagonal_(0.0)
            extra = extra[..., :until]
        by_position = None if place.bias is None else place.bias.to(dtype)  # (B|1, H, 1, at + 1)
        window = self.attention.window
        if window is not None and at + 1 > window:
            gone = torch.zeros(1, 1, 1, at + 1, dtype=dtype, device=device)
            gone[..., : at + 1 - window] = -torch.inf
            by_position = gone if by_position is None else by_position + gone
        if by_position is not None:
            by_slot = self._by_slot(by_position)
            extra = by_slot if extra is None else by_slot + extra
        self._extra = extra

    def _place(self, places: Tensor | None, device: torch.device) -> Place:
        at, real = self.position, self.real
        if real is not None:
            real = F.pad(real, (0, at + 1 - real.shape[1]), value=True)
        positions = None if places is None else places[:, None]  # (B, 1)
        return self.stack.place(positions, at, 1, at + 1, Mask(padding=real), device)

    def _by_slot(self, by_position: Tensor) -> Tensor:
        """(B|1, H|1, 1, positions) -> (..., slots): the beams' slots of one step stand at one position."""
        if self.width == 1:
            return by_position
        parts = [by_position[..., : self.read]]
        if self.standing is not None:
            there = self.standing[:, None, None].expand(-1, by_position.shape[1], -1, -1)
            parts.append(by_position.expand(self.sentences, -1, -1, -1).gather(-1, there))
            parts[0] = parts[0].expand(self.sentences, -1, -1, -1)
        lately = by_position[..., self.position - self.since :].repeat_interleave(self.width, -1)
        parts.append(lately if self.standing is None else lately.expand(self.sentences, -1, -1, -1))
        return torch.cat(parts, -1)

    def __call__(self, n: int, qkv: Tensor) -> Tensor:
        """Layer n's projections of the tokens just chosen (B * W, ...) -> heads (B * W, H * V)."""
        assert self.attention is not None
        q, k, v = heads_of(self.attention, qkv, self.sentences)
        if self._rotary is not None:
            q, k = rotate(q, self._rotary), rotate(k, self._rotary)
        first, until = self.filled, self.filled + self.width
        if not self.k[n].numel():
            self.k[n], self.v[n] = (_allocated(x, len(x), self.room) for x in (k, v))
        self.k[n][:, :, first:until] = k
        self.v[n][:, :, first:until] = v
        keys, values = self.k[n][:, :, :until], self.v[n][:, :, :until]
        return joined(attend_few(q, keys, values, self._extra, self.attention.scale))

    def advance(self) -> None:
        """Count the step; called once all layers have seen it."""
        self.since += 1
        self.position += 1

    def _forget(self) -> None:
        """Move together what some beam still descends from, where much else can go."""
        assert self.seen is not None
        written = slice(self.read, self.filled)
        alive = (self.seen[:, 0, :, written] == 0).any(1)  # (B, written)
        most = int(alive.sum(1).max())
        if most > WORTHWHILE * alive.shape[1]:
            return
        steps = torch.arange(self.position - self.since, self.position, device=alive.device)
        lately = steps.repeat_interleave(self.width).expand(self.sentences, -1)
        standing = lately if self.standing is None else torch.cat((self.standing, lately), 1)
        order = alive.int().argsort(dim=1, descending=True, stable=True)[:, :most]  # (B, most)
        for cache in (self.k, self.v):
            for x in cache:
                there = order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
                x[:, :, self.read : self.read + most] = x[:, :, written].gather(2, there)
        # where a sentence has fewer, what comes along is seen by none of its beams
        seen = self.seen[..., written].gather(-1, order[:, None, None].expand(-1, -1, self.width, -1))
        self.seen[..., self.read : self.read + most] = seen
        self.standing, self.kept, self.since = standing.gather(1, order), most, 0

    # ---- rows come and go ----------------------------------------------------------------------------

    def widen(self, count: int) -> None:
        """Each sentence goes on with `count` beams; what it holds so far is read by all of them."""
        self.read, self.since = self.filled, 0
        slots = self.read + (self.room - self.position) * count
        if count > 1 and self.attention is not None:
            for cache in (self.k, self.v):
                for n, old in enumerate(cache):
                    cache[n] = _allocated(old, len(old), slots)
                    cache[n][:, :, : self.read] = old[:, :, : self.read]
            seen = self.k[0].new_full((self.sentences, 1, count, slots), -torch.inf)
            seen[..., : self.read] = 0.0 if self.seen is None else self.seen[..., : self.read]
            self.seen = seen
        self.width = count

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
                cache[n] = _allocated(old, len(sentences), old.shape[2])
                cache[n][:, :, : self.filled] = old[:, :, : self.filled].index_select(0, sentences)
        if self.seen is not None:
            moved = self.seen.flatten(0, 2).index_select(0, rows)
            self.seen = moved.view(len(sentences), 1, self.width, -1)
        self.real = None if self.real is None else self.real.index_select(0, sentences)
        self.standing = None if self.standing is None else self.standing.index_select(0, sentences)
        self.sentences = len(sentences)


def _allocated(like: Tensor, sentences: int, slots: int) -> Tensor:
    return like.new_empty(sentences, like.shape[1], slots, like.shape[3])

"""What is being written, and what from, in slots: texts come and go between any two steps.

All of a shelf's capacity is looked at, filled or not: so what comes out for a slot is the same to the bit,
whoever else is there. The beams of a text are the queries of one slot. As in `growing`, what was read lies
there once for all of them; of what was written a beam sees its own ancestors, and what none descends from is
forgotten when the slot would outgrow its shelf.

E slots of a shelf, W beams of a slot, N rows of all, H query heads, G key/value heads, K head width,
V value width, C capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from glassformer.core.positions import RotaryPositions, rotate
from glassformer.inference.few import attend_few
from glassformer.inference.layers import Layers, heads_of, joined, split
from glassformer.inference.shelves import Form, Shelves, Slot, Turn, capacity_for

WORTHWHILE: Final = 0.7  # a slot stays on its shelf where forgetting leaves at most this share of it filled


@dataclass
class _Step:
    """What positions and beams mean for one shelf's scores in this step."""

    turn: Turn
    columns: Tensor  # (E, W), where this step's keys go
    extra: Tensor  # (E, 1|H, W, C)
    rotary: tuple[Tensor, Tensor] | None  # cos, sin (E, 1, 1, R)


class Slots(Shelves):
    """Self-attention of what is being written, as a `Look` between `ready` and `advance`."""

    def __init__(self, decoder: Layers, dtype: torch.dtype, device: torch.device) -> None:
        assert decoder.own is not None
        super().__init__(Form(attention=decoder.own, layers=len(decoder.layers), dtype=dtype, device=device))
        self.stack, self.attention = decoder.stack, decoder.own
        self._steps: list[_Step] = []

    def add(self, width: int, k: Sequence[Tensor], v: Sequence[Tensor]) -> Slot:
        """A slot after all others; keys (G, P, K) and values (G, P, V) of what was read, by layers."""
        read = k[0].shape[1]
        slot = Slot(width, read=read, filled=read, position=read)
        seen = torch.zeros(width, read, dtype=self.form.dtype, device=self.form.device)
        standing = torch.arange(read, device=self.form.device)[None]
        self.put(slot, [*k, *v, seen, standing], seers=width, capacity=capacity_for(read + width))
        self.order.append(slot)
        return slot

    def add_empty(self, width: int) -> Slot:
        """A slot where nothing was read."""
        form, own = self.form, self.attention
        nothing = [
            torch.empty(own.num_kv_heads, 0, each, dtype=form.dtype, device=form.device)
            for each in (own.head_dim, own.value_dim)
        ]
        return self.add(width, nothing[:1] * form.layers, nothing[1:] * form.layers)

    def reorder(self, slot: Slot, beams: Tensor) -> None:
        """Each beam is replaced by one (W,) of the same slot."""
        seen = slot.shelf.seen[slot.at, :, : slot.filled]  # (W, filled)
        seen.copy_(seen.index_select(0, beams))

    def positions(self) -> Tensor:
        """Where the next token of every row (N,) stands."""
        return torch.tensor(
            [slot.position for slot in self.order for _ in range(slot.width)], device=self.form.device
        )

    # ---- a step --------------------------------------------------------------------------------------

    def ready(self) -> None:
        """Make room, and work out once for all layers what positions and beams mean for this step."""
        for slot in self.order:
            if slot.filled + slot.width > slot.shelf.capacity:
                self._make_room(slot)
        self._steps = [self._step(turn) for turn in self.turns()]

    def _step(self, turn: Turn) -> _Step:
        shelf, device, count = turn.shelf, self.form.device, len(turn.shelf.held)
        filled = torch.tensor([slot.filled for slot in shelf.held], device=device)
        places = torch.tensor([slot.position for slot in shelf.held], device=device)[:, None]  # (E, 1)
        columns = filled[:, None] + torch.arange(turn.width, device=device)  # (E, W)
        shelf.seen[turn.at, :, columns] = self._apart(turn.width)
        shelf.standing[turn.at, 0, columns] = places.expand_as(columns)
        extra = shelf.seen[:count, None]  # (E, 1, W, C)
        position, rotary = self.stack.position, None
        standing = shelf.standing[:count, 0]  # (E, C)
        if isinstance(position, RotaryPositions):
            rotary = position(places).rotary
        elif position is not None:
            extra = position(places, standing).bias.to(self.form.dtype) + extra  # (E, H, W, C)
        window = self.attention.window
        if window is not None and shelf.capacity > window:
            extra = extra.masked_fill((standing <= places - window)[:, None, None], -torch.inf)
        return _Step(turn, columns, extra, rotary)

    def _apart(self, width: int) -> Tensor:
        """(W, W): a beam sees its own token of this step alone."""
        apart = torch.full((width, width), -torch.inf, dtype=self.form.dtype, device=self.form.device)
        return apart.fill_diagonal_(0.0)

    def __call__(self, n: int, qkv: Tensor) -> Tensor:
        """Layer n's projections of the tokens just chosen (N, ...) -> heads (N, H * V)."""
        return self.in_order([self._attended(n, step, step.turn.rows_of(qkv)) for step in self._steps])

    def _attended(self, n: int, step: _Step, qkv: Tensor) -> Tensor:
        shelf, at = step.turn.shelf, step.turn.at
        q, k, v = heads_of(self.attention, qkv, len(at))  # (E, H, W, K), (E, G, W, K), (E, G, W, V)
        if step.rotary is not None:
            q, k = rotate(q, step.rotary), rotate(k, step.rotary)
        keys, values = shelf.k[n], shelf.v[n]
        keys[at, :, step.columns] = k.transpose(1, 2)
        values[at, :, step.columns] = v.transpose(1, 2)
        count = len(at)
        return joined(attend_few(q, keys[:count], values[:count], step.extra, self.attention.scale))

    def advance(self) -> None:
        """Count the step; called once all layers have seen it."""
        for slot in self.order:
            slot.filled += slot.width
            slot.position += 1

    def _make_room(self, slot: Slot) -> None:
        if slot.width > 1:
            self._forget(slot)
            if slot.filled + slot.width <= WORTHWHILE * slot.shelf.capacity:
                return
        parts = [part.clone() for part in slot.shelf.content(slot)]
        self.take_away(slot)
        self.put(slot, parts, seers=slot.width, capacity=capacity_for(slot.filled + slot.width))

    def _forget(self, slot: Slot) -> None:
        """Move together what some beam still descends from."""
        shelf, written = slot.shelf, slice(slot.read, slot.filled)
        kept = (shelf.seen[slot.at, :, written] == 0).any(0).nonzero()[:, 0]  # (kept,)
        until = slot.read + len(kept)
        for own in shelf.parts:
            own[slot.at, :, slot.read : until] = own[slot.at, :, written].index_select(1, kept)
        shelf.clear(slot, until)
        slot.filled = until


class Sources(Shelves):
    """What each text is written from: cross-attention, as a `Look`, for the rows of `Slots`."""

    def __init__(self, decoder: Layers, dtype: torch.dtype, device: torch.device) -> None:
        assert decoder.cross is not None
        super().__init__(
            Form(attention=decoder.cross, layers=len(decoder.layers), dtype=dtype, device=device)
        )
        self.attention = decoder.cross

    def add(self, width: int, k: Sequence[Tensor], v: Sequence[Tensor]) -> Slot:
        """A source's keys (G, S, K) and values (G, S, V), by layers; an empty one gives zeros."""
        length = k[0].shape[1]
        slot = Slot(width, read=length, filled=max(1, length), position=length)
        seen = torch.zeros(1, slot.filled, dtype=self.form.dtype, device=self.form.device)
        standing = torch.zeros(1, slot.filled, dtype=torch.long, device=self.form.device)
        if not length:
            k, v = ([x.new_zeros(x.shape[0], 1, x.shape[2]) for x in given] for given in (k, v))
        self.put(slot, [*k, *v, seen, standing], seers=1, capacity=capacity_for(slot.filled))
        self.order.append(slot)
        return slot

    def __call__(self, n: int, q: Tensor) -> Tensor:
        """Layer n's queries (N, H * K) -> heads (N, H * V)."""
        return self.in_order([self._attended(n, turn, turn.rows_of(q)) for turn in self.turns()])

    def _attended(self, n: int, turn: Turn, q: Tensor) -> Tensor:
        shelf, count = turn.shelf, len(turn.shelf.held)
        asked = split(q.view(count, turn.width, -1), self.attention.num_heads)  # (E, H, W, K)
        hidden = shelf.seen[:count, None]  # (E, 1, 1, C)
        return joined(attend_few(asked, shelf.k[n][:count], shelf.v[n][:count], hidden, self.attention.scale))

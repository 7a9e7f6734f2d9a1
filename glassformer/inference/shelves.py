"""Where the keys and values of texts lie that come and go, each with a length of its own.

A text has a slot. Slots of like length lie side by side on a shelf, so that one product reads them all and
none is read for much longer than it is; a slot that outgrows its shelf moves to one of twice the capacity.
Rows of a shelf are always its first ones: where one leaves, the last takes its place. What no slot holds is
zero, and seen by nobody, so that nothing a text left behind can come back as a number that is none.

E slots held, G key/value heads, C capacity, K head width, V value width, W queries of a slot, N rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from glassformer.core.attention import MultiHeadAttention

LEAST: Final = 32  # the smallest capacity; finer shelves would be more calls than their padding costs
STRIDE: Final = 256  # capacities above this are its multiples
FEWEST: Final = 4  # the fewest slots a shelf has room for


@dataclass(eq=False)
class Slot:
    """One text's place. `width` queries look at it together: the beams of a search, or one."""

    width: int
    read: int  # what was there before the first step, seen by all queries
    filled: int
    position: int  # where the next token stands
    at: int = -1  # its row on the shelf
    shelf: Shelf = field(init=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Form:
    """What the tensors of every shelf have in common."""

    attention: MultiHeadAttention
    layers: int
    dtype: torch.dtype
    device: torch.device


class Shelf:
    """Slots of one width and capacity. All its parts hold slots first and positions third."""

    def __init__(self, form: Form, seers: int, capacity: int) -> None:
        """seers: how many queries of a slot see differently."""
        self.form, self.seers, self.capacity = form, seers, capacity
        self.held: list[Slot] = []
        self._adopt(self._empty(FEWEST))

    def _empty(self, room: int) -> list[Tensor]:
        form, groups, capacity = self.form, self.form.attention.num_kv_heads, self.capacity
        widths = [form.attention.head_dim] * form.layers + [form.attention.value_dim] * form.layers
        parts = [
            torch.zeros(room, groups, capacity, width, dtype=form.dtype, device=form.device)
            for width in widths
        ]
        seen = torch.full((room, self.seers, capacity), -torch.inf, dtype=form.dtype, device=form.device)
        standing = torch.zeros(room, 1, capacity, dtype=torch.long, device=form.device)
        return [*parts, seen, standing]

    def _adopt(self, parts: list[Tensor]) -> None:
        layers = self.form.layers
        self.parts, self.room = parts, len(parts[-1])
        self.k, self.v = parts[:layers], parts[layers : 2 * layers]  # (room, G, C, K), (room, G, C, V)
        self.seen, self.standing = parts[-2:]  # (room, W, C) 0 or -inf; (room, 1, C), positions

    def _resize(self, room: int) -> None:
        fresh = self._empty(room)
        count = len(self.held)
        for new, old in zip(fresh, self.parts, strict=True):
            new[:count] = old[:count]
        self._adopt(fresh)

    def take(self, slot: Slot, parts: Sequence[Tensor]) -> None:
        """Hold this slot, which is filled with these parts: (G, filled, K), and so on."""
        if len(self.held) == self.room:
            self._resize(2 * self.room)
        slot.shelf, slot.at = self, len(self.held)
        self.held.append(slot)
        for own, part in zip(self.parts, parts, strict=True):
            own[slot.at, :, : slot.filled] = part

    def content(self, slot: Slot) -> list[Tensor]:
        return [own[slot.at, :, : slot.filled] for own in self.parts]

    def leave(self, slot: Slot) -> None:
        last = self.held.pop()
        self.clear(slot, 0)
        if last is not slot:
            for own, part in zip(self.parts, self.content(last), strict=True):
                own[slot.at, :, : last.filled] = part
            self.clear(last, 0)
            last.at = slot.at
            self.held[last.at] = last
        if self.room > FEWEST and len(self.held) <= self.room // 4:
            self._resize(self.room // 2)

    def clear(self, slot: Slot, first: int) -> None:
        """Nothing is left of the slot from here on."""
        for own in self.parts:
            own[slot.at, :, first : slot.filled] = -torch.inf if own is self.seen else 0


@dataclass
class Turn:
    """One shelf's part in a step."""

    shelf: Shelf
    rows: Tensor | None  # (E * W,), where its rows stand among all; None: they are all, in order
    width: int
    at: Tensor  # (E, 1)

    def rows_of(self, x: Tensor) -> Tensor:
        return x if self.rows is None else x.index_select(0, self.rows)


class Shelves:
    """All slots, in the order of their rows."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.order: list[Slot] = []
        self.shelves: dict[tuple[int, int], Shelf] = {}
        self._turns: list[Turn] | None = None
        self._back: Tensor | None = None

    @property
    def rows(self) -> int:
        return sum(slot.width for slot in self.order)

    def put(self, slot: Slot, parts: Sequence[Tensor], *, seers: int, capacity: int) -> None:
        """On the shelf for its width and this capacity."""
        shelf = self.shelves.get((slot.width, capacity))
        if shelf is None:
            shelf = self.shelves[slot.width, capacity] = Shelf(self.form, seers, capacity)
        shelf.take(slot, parts)
        self._turns = None

    def take_away(self, slot: Slot) -> None:
        shelf = slot.shelf
        shelf.leave(slot)
        if not shelf.held:
            del self.shelves[slot.width, shelf.capacity]
        self._turns = None

    def drop(self, slot: Slot) -> None:
        """The slot's text goes, and its rows with it."""
        self.order.remove(slot)
        self.take_away(slot)

    def turns(self) -> list[Turn]:
        """The shelves' parts; worked out anew when slots have moved."""
        if self._turns is None:
            begins, at = {}, 0
            for slot in self.order:
                begins[slot] = at
                at += slot.width
            rows = [list(_rows(shelf, begins)) for shelf in self.shelves.values()]
            together = [row for of_shelf in rows for row in of_shelf]
            device = self.form.device
            in_order = len(rows) == 1 and together == list(range(at))
            self._back = None if in_order else torch.tensor(together, device=device).argsort()
            self._turns = [
                Turn(
                    shelf,
                    None if in_order else torch.tensor(of_shelf, device=device),
                    shelf.held[0].width,
                    torch.arange(len(shelf.held), device=device)[:, None],
                )
                for shelf, of_shelf in zip(self.shelves.values(), rows, strict=True)
            ]
        return self._turns

    def in_order(self, found: list[Tensor]) -> Tensor:
        """What each turn gave (E * W, ...) -> all rows (N, ...)."""
        return found[0] if self._back is None else torch.cat(found).index_select(0, self._back)


def _rows(shelf: Shelf, begins: dict[Slot, int]) -> Iterator[int]:
    for slot in shelf.held:
        yield from range(begins[slot], begins[slot] + slot.width)


def capacity_for(count: int) -> int:
    """The capacity of the shelf for a slot of so many positions: doubled up to STRIDE, and then by as much.

    >>> capacity_for(3), capacity_for(64), capacity_for(65), capacity_for(600)
    (32, 64, 128, 768)
    """
    if count <= STRIDE:
        return max(LEAST, 1 << (count - 1).bit_length())
    return -(-count // STRIDE) * STRIDE

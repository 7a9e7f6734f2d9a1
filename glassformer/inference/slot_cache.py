"""KV caches of continuous batching: requests join and leave between any two steps, each with its own length.

A request has a slot. Slots of similar length share a bucket, so that one product reads them all and none is
read for much longer than it is; a slot that outgrows its bucket moves to one of twice the capacity. The slots
of a bucket are always its first rows: when one leaves, the last takes its row. Unused memory is zero and
invisible, so that nothing a request left behind can come back as a NaN. All of a bucket's capacity is
attended to, filled or not: the result for a slot is the same to the bit whoever else is there.

The beams of a request are the queries of one slot. As in `kv_cache.BeamCache`, the prompt is stored once for
all beams, a beam sees its own ancestors among the generated positions, and dead positions are dropped when
the slot would outgrow its bucket.

E slots of a bucket, W beams of a slot, N rows of all, H query heads, G key/value heads, K head width, V value
width, C capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.observe import Observer
from glassformer.core.positions import RotaryPositions, rotate
from glassformer.core.stack import Stack
from glassformer.inference.attention import attend_few

MIN_CAPACITY: Final = 32  # finer buckets would be more calls than their padding costs
STRIDE: Final = 256  # capacities above this are its multiples
MIN_SLOTS: Final = 4  # the fewest slots a bucket allocates
WORTHWHILE: Final = 0.7  # a slot stays in its bucket if dropping leaves at most this share of it filled


def capacity_for(count: int) -> int:
    """The capacity of the bucket for a slot of `count` positions: doubled up to STRIDE, then multiples of it.

    >>> capacity_for(3), capacity_for(64), capacity_for(65), capacity_for(600)
    (32, 64, 128, 768)
    """
    if count <= STRIDE:
        return max(MIN_CAPACITY, 1 << (count - 1).bit_length())
    return -(-count // STRIDE) * STRIDE


@dataclass(eq=False)
class Slot:
    """One request's keys and values. `width` queries attend to it together: the beams of a search, or one."""

    width: int
    prompt: int  # positions before the first step, visible to all queries
    filled: int
    position: int  # of the next token
    row: int = -1  # in its bucket
    bucket: Bucket = field(init=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the tensors of all buckets have in common."""

    attentions: Sequence[MultiHeadAttention]  # one per layer
    dtype: torch.dtype
    device: torch.device


class Bucket:
    """Slots of one width and capacity. All its tensors have slots first and positions third."""

    def __init__(self, layout: Layout, viewers: int, capacity: int) -> None:
        """viewers: how many queries of a slot have their own visibility."""
        self.layout, self.viewers, self.capacity = layout, viewers, capacity
        self.slots: list[Slot] = []
        self._adopt(self._allocate(MIN_SLOTS))

    def _allocate(self, rows: int) -> list[Tensor]:
        dtype, device = self.layout.dtype, self.layout.device
        keys = [(one.num_kv_heads, one.head_dim) for one in self.layout.attentions]
        values = [(one.num_kv_heads, one.value_dim) for one in self.layout.attentions]
        parts = [
            torch.zeros(rows, groups, self.capacity, width, dtype=dtype, device=device)
            for groups, width in (*keys, *values)
        ]
        visible = torch.full((rows, self.viewers, self.capacity), -torch.inf, dtype=dtype, device=device)
        positions = torch.zeros(rows, 1, self.capacity, dtype=torch.long, device=device)
        return [*parts, visible, positions]

    def _adopt(self, parts: list[Tensor]) -> None:
        layers = len(self.layout.attentions)
        self.parts, self.rows = parts, len(parts[-1])
        self.k, self.v = parts[:layers], parts[layers : 2 * layers]  # (rows, G, C, K), (rows, G, C, V)
        self.visible, self.positions = parts[-2:]  # (rows, W, C) 0 or -inf; (rows, 1, C)

    def _resize(self, rows: int) -> None:
        fresh = self._allocate(rows)
        count = len(self.slots)
        for new, old in zip(fresh, self.parts, strict=True):
            new[:count] = old[:count]
        self._adopt(fresh)

    def add(self, slot: Slot, parts: Sequence[Tensor]) -> None:
        """Hold this slot, filled with these parts: (G, filled, K), and so on."""
        if len(self.slots) == self.rows:
            self._resize(2 * self.rows)
        slot.bucket, slot.row = self, len(self.slots)
        self.slots.append(slot)
        for own, part in zip(self.parts, parts, strict=True):
            own[slot.row, :, : slot.filled] = part

    def content(self, slot: Slot) -> list[Tensor]:
        return [own[slot.row, :, : slot.filled] for own in self.parts]

    def remove(self, slot: Slot) -> None:
        last = self.slots.pop()
        self.clear(slot, 0)
        if last is not slot:
            for own, part in zip(self.parts, self.content(last), strict=True):
                own[slot.row, :, : last.filled] = part
            self.clear(last, 0)
            last.row = slot.row
            self.slots[last.row] = last
        if self.rows > MIN_SLOTS and len(self.slots) <= self.rows // 4:
            self._resize(self.rows // 2)

    def clear(self, slot: Slot, first: int) -> None:
        """Zero and hide the slot's positions from `first` on."""
        for own in self.parts:
            own[slot.row, :, first : slot.filled] = -torch.inf if own is self.visible else 0


@dataclass
class BucketRows:
    """Which rows of a step belong to a bucket."""

    bucket: Bucket
    rows: Tensor | None  # (E * W,) among all rows; None: they are all, in order
    width: int
    index: Tensor  # (E, 1)

    def split(self, x: Tensor) -> Tensor:
        """x (N, heads, K) of all rows -> (E, heads, W, K) of the bucket's."""
        own = x if self.rows is None else x.index_select(0, self.rows)
        return own.view(len(self.index), self.width, *own.shape[1:]).transpose(1, 2)


class SlotBuckets:
    """All slots, in the order of their rows; the base of both caches."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.slots: list[Slot] = []
        self.buckets: dict[tuple[int, int], Bucket] = {}
        self._bucket_rows: list[BucketRows] | None = None
        self._order: Tensor | None = None

    @property
    def rows(self) -> int:
        return sum(slot.width for slot in self.slots)

    def _place(self, slot: Slot, parts: Sequence[Tensor], *, viewers: int, capacity: int) -> None:
        """Put the slot into the bucket for its width and this capacity."""
        bucket = self.buckets.get((slot.width, capacity))
        if bucket is None:
            bucket = self.buckets[slot.width, capacity] = Bucket(self.layout, viewers, capacity)
        bucket.add(slot, parts)
        self._bucket_rows = None

    def _displace(self, slot: Slot) -> None:
        bucket = slot.bucket
        bucket.remove(slot)
        if not bucket.slots:
            del self.buckets[slot.width, bucket.capacity]
        self._bucket_rows = None

    def remove(self, slot: Slot) -> None:
        """The request of this slot ends, and its rows leave the batch."""
        self.slots.remove(slot)
        self._displace(slot)

    def bucket_rows(self) -> list[BucketRows]:
        """The rows of each bucket; computed again when slots have moved."""
        if self._bucket_rows is None:
            begins, at = {}, 0
            for slot in self.slots:
                begins[slot] = at
                at += slot.width
            rows = [list(_rows(bucket, begins)) for bucket in self.buckets.values()]
            together = [row for of_bucket in rows for row in of_bucket]
            device = self.layout.device
            in_order = len(rows) == 1 and together == list(range(at))
            self._order = None if in_order else torch.tensor(together, device=device).argsort()
            self._bucket_rows = [
                BucketRows(
                    bucket,
                    None if in_order else torch.tensor(of_bucket, device=device),
                    bucket.slots[0].width,
                    torch.arange(len(bucket.slots), device=device)[:, None],
                )
                for bucket, of_bucket in zip(self.buckets.values(), rows, strict=True)
            ]
        return self._bucket_rows

    def join(self, heads: list[Tensor]) -> Tensor:
        """Heads (E, H, W, V) of each bucket -> those of all rows (N, H, V)."""
        rows = [x.transpose(1, 2).flatten(0, 1) for x in heads]
        return rows[0] if self._order is None else torch.cat(rows).index_select(0, self._order)


def _rows(bucket: Bucket, begins: dict[Slot, int]) -> Iterator[int]:
    for slot in bucket.slots:
        yield from range(begins[slot], begins[slot] + slot.width)


@dataclass
class _BucketStep:
    """What positions and beams mean for one bucket's scores in this step; by window."""

    rows: BucketRows
    columns: Tensor  # (E, W), where this step's keys go
    bias: dict[int | None, Tensor]  # (E, 1|H, W, C)
    rotary: dict[int | None, tuple[Tensor, Tensor] | None]  # cos, sin (E, 1, 1, R)


class SlotCache(SlotBuckets):
    """Self-attention of the requests of a batch. A step: `prepare`, `attend` of each layer, `advance`."""

    def __init__(self, stack: Stack, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(Layout(attentions=stack.attentions, dtype=dtype, device=device))
        self.stack = stack
        self.attend = [SlotAttention(self, n) for n in range(len(stack.attentions))]
        self.windows = list(dict.fromkeys(attention.window for attention in stack.attentions))
        self.steps: list[_BucketStep] = []

    def add(self, width: int, k: Sequence[Tensor], v: Sequence[Tensor]) -> Slot:
        """A slot after all others; keys (G, P, K) and values (G, P, V) of its prompt, by layer."""
        prompt = k[0].shape[1]
        slot = Slot(width, prompt=prompt, filled=prompt, position=prompt)
        visible = torch.zeros(width, prompt, dtype=self.layout.dtype, device=self.layout.device)
        positions = torch.arange(prompt, device=self.layout.device)[None]
        capacity = capacity_for(prompt + width)
        self._place(slot, [*k, *v, visible, positions], viewers=width, capacity=capacity)
        self.slots.append(slot)
        return slot

    def add_empty(self, width: int) -> Slot:
        """A slot without a prompt."""
        layout = self.layout

        def empty(groups: int, size: int) -> Tensor:
            return torch.empty(groups, 0, size, dtype=layout.dtype, device=layout.device)

        keys = [empty(one.num_kv_heads, one.head_dim) for one in layout.attentions]
        return self.add(width, keys, [empty(one.num_kv_heads, one.value_dim) for one in layout.attentions])

    def reorder(self, slot: Slot, beams: Tensor) -> None:
        """Replace each beam by one (W,) of the same slot."""
        visible = slot.bucket.visible[slot.row, :, : slot.filled]  # (W, filled)
        visible.copy_(visible.index_select(0, beams))

    def positions(self) -> Tensor:
        """The position of the next token of every row (N,)."""
        return torch.tensor(
            [slot.position for slot in self.slots for _ in range(slot.width)], device=self.layout.device
        )

    # ---- a step --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Grow full slots, and compute what positions and beams mean for this step, by kind of layer."""
        for slot in self.slots:
            if slot.filled + slot.width > slot.bucket.capacity:
                self._grow(slot)
        self.steps = [self._step(rows) for rows in self.bucket_rows()]

    def _step(self, rows: BucketRows) -> _BucketStep:
        bucket, device, count = rows.bucket, self.layout.device, len(rows.bucket.slots)
        filled = torch.tensor([slot.filled for slot in bucket.slots], device=device)
        here = torch.tensor([slot.position for slot in bucket.slots], device=device)[:, None]  # (E, 1)
        columns = filled[:, None] + torch.arange(rows.width, device=device)  # (E, W)
        bucket.visible[rows.index, :, columns] = self._own_token(rows.width)
        bucket.positions[rows.index, 0, columns] = here.expand_as(columns)
        visible, positions = bucket.visible[:count, None], bucket.positions[:count, 0]  # (E, 1, W, C), (E, C)
        step = _BucketStep(rows, columns, {}, {})
        for window in self.windows:
            position, bias = self.stack.position_of(window), visible
            step.rotary[window] = position(here).rotary if isinstance(position, RotaryPositions) else None
            if position is not None and not isinstance(position, RotaryPositions):
                bias = position(here, positions).bias.to(self.layout.dtype) + bias  # (E, H, W, C)
            if window is not None and bucket.capacity > window:
                bias = bias.masked_fill((positions <= here - window)[:, None, None], -torch.inf)
            step.bias[window] = bias
        return step

    def _own_token(self, width: int) -> Tensor:
        """(W, W): of this step's tokens a beam sees only its own."""
        own = torch.full((width, width), -torch.inf, dtype=self.layout.dtype, device=self.layout.device)
        return own.fill_diagonal_(0.0)

    def advance(self) -> None:
        """Count the step; called once, after all layers have appended it."""
        for slot in self.slots:
            slot.filled += slot.width
            slot.position += 1

    def _grow(self, slot: Slot) -> None:
        if slot.width > 1:
            self._drop_dead_positions(slot)
            if slot.filled + slot.width <= WORTHWHILE * slot.bucket.capacity:
                return
        parts = [part.clone() for part in slot.bucket.content(slot)]
        self._displace(slot)
        capacity = capacity_for(slot.filled + slot.width)
        self._place(slot, parts, viewers=slot.width, capacity=capacity)

    def _drop_dead_positions(self, slot: Slot) -> None:
        """Compact the positions that some beam still descends from."""
        bucket, generated = slot.bucket, slice(slot.prompt, slot.filled)
        kept = (bucket.visible[slot.row, :, generated] == 0).any(0).nonzero()[:, 0]  # (kept,)
        end = slot.prompt + len(kept)
        for own in bucket.parts:
            own[slot.row, :, slot.prompt : end] = own[slot.row, :, generated].index_select(1, kept)
        bucket.clear(slot, end)
        slot.filled = end


class SlotAttention:
    """One layer of a `SlotCache`, as an `Attend`."""

    stored = False

    def __init__(self, cache: SlotCache, layer: int) -> None:
        self.cache, self.layer = cache, layer

    def __call__(
        self,
        attention: MultiHeadAttention,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        obs: Observer | None = None,
    ) -> Tensor:
        assert k is not None and v is not None
        steps = self.cache.steps
        return self.cache.join([self._bucket(attention, step, q, k, v) for step in steps])

    def _bucket(
        self, attention: MultiHeadAttention, step: _BucketStep, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        rows, window = step.rows, attention.window
        q, k, v = (rows.split(x) for x in (q, k, v))  # (E, H, W, K), (E, G, W, K), (E, G, W, V)
        rotary = step.rotary[window]
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        keys, values, count = rows.bucket.k[self.layer], rows.bucket.v[self.layer], len(rows.index)
        keys[rows.index, :, step.columns] = k.transpose(1, 2)
        values[rows.index, :, step.columns] = v.transpose(1, 2)
        return attend_few(q, keys[:count], values[:count], step.bias[window], attention.scale)


class CrossSlotCache(SlotBuckets):
    """Keys and values of the encoder's output of each request, for the rows of a `SlotCache`."""

    def __init__(self, stack: Stack, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(Layout(attentions=stack.cross_attentions, dtype=dtype, device=device))
        self.attend = [CrossSlotAttention(self, n) for n in range(len(stack.cross_attentions))]

    def add(self, width: int, k: Sequence[Tensor], v: Sequence[Tensor]) -> Slot:
        """A source's keys (G, S, K) and values (G, S, V), by layer; an empty one gives zeros."""
        length = k[0].shape[1]
        slot = Slot(width, prompt=length, filled=max(1, length), position=length)
        visible = torch.zeros(1, slot.filled, dtype=self.layout.dtype, device=self.layout.device)
        positions = torch.zeros(1, slot.filled, dtype=torch.long, device=self.layout.device)
        if not length:
            k, v = ([x.new_zeros(x.shape[0], 1, x.shape[2]) for x in parts] for parts in (k, v))
        self._place(slot, [*k, *v, visible, positions], viewers=1, capacity=capacity_for(slot.filled))
        self.slots.append(slot)
        return slot


class CrossSlotAttention:
    """One layer of a `CrossSlotCache`, as an `Attend`."""

    stored = True

    def __init__(self, cache: CrossSlotCache, layer: int) -> None:
        self.cache, self.layer = cache, layer

    def __call__(
        self,
        attention: MultiHeadAttention,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        obs: Observer | None = None,
    ) -> Tensor:
        heads = []
        for rows in self.cache.bucket_rows():
            bucket, count = rows.bucket, len(rows.index)
            keys, values = bucket.k[self.layer][:count], bucket.v[self.layer][:count]
            bias = bucket.visible[:count, None]  # (E, 1, 1, C)
            heads.append(attend_few(rows.split(q), keys, values, bias, attention.scale))
        return self.cache.join(heads)

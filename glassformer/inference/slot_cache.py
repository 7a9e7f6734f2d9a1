"""KV caches for continuous batching: requests join and leave between steps, each with its own length.

Each request has a slot. Slots of similar length share a bucket, so that one batched attention covers them
with little padding; a slot that outgrows its bucket moves to a larger one. The slots of a bucket are always
its first rows: when a slot leaves, the last slot takes its row. Unused memory is zeroed and masked, so that
stale values cannot produce NaNs. Attention always covers the full capacity of a bucket, so the result for a
slot is bit-identical whatever the other slots hold.

The beams of a request are the queries of one slot. As in `kv_cache.BeamKVCache`, the prompt is stored once
for all beams, a beam attends only to its ancestors among the generated positions, and positions without
descendants are dropped when the slot would outgrow its bucket.

E slots of a bucket, W beams of a slot, N rows of all slots, H query heads, G key/value heads, K head width, V
value width, C capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.kv_cache import LayerCache
from glassformer.core.positions import PositionTerms, RotaryPositions
from glassformer.core.stack import Stack
from glassformer.inference.kv_cache import COMPACT_THRESHOLD, DecodeKVCache

MIN_CAPACITY: Final = 32  # smaller buckets would save little padding and cost more kernel calls
STRIDE: Final = 256  # larger capacities are multiples of this
MIN_SLOTS: Final = 4  # minimum number of slots that a bucket allocates


def capacity_for(count: int) -> int:
    """Return the bucket capacity for `count` positions: a power of 2 up to STRIDE, then a multiple of it.

    >>> capacity_for(3), capacity_for(64), capacity_for(65), capacity_for(600)
    (32, 64, 128, 768)
    """
    if count <= STRIDE:
        return max(MIN_CAPACITY, 1 << (count - 1).bit_length())
    return -(-count // STRIDE) * STRIDE


@dataclass(eq=False)
class Slot:
    """Keys and values of one request. width: number of queries per step, the beams of a search or 1."""

    width: int
    prompt: int  # positions before the first step, visible to all queries
    filled: int
    position: int  # of the next token
    shift: int = 0  # position id of the next token minus `position`, which counts tokens
    source: Slot | None = None  # the request's slot in the cache of cross-attention
    row: int = -1  # in its bucket
    bucket: SlotBucket = field(init=False, repr=False)


class SlotBucket(DecodeKVCache):
    """Slots of the same width and capacity; slots are dimension 0 of all tensors, positions dimension 2."""

    def __init__(self, stack: Stack, width: int, capacity: int, like: Tensor, *, cross: bool) -> None:
        """cross: for cross-attention, whose keys are complete from the start. like: dtype and device."""
        super().__init__()
        self.stack, self.width, self.cross = stack, width, cross
        self.attentions = stack.cross_attentions if cross else stack.attentions
        self.slots: list[Slot] = []
        self.visible = like.new_full((0, 1 if cross else width, capacity), -torch.inf)  # or 0
        self.positions = like.new_zeros((0, 1, capacity), dtype=torch.long)
        for attention in self.attentions:
            shape = (0, attention.num_kv_heads, capacity)
            keys = like.new_zeros(*shape, attention.head_dim)
            values = like.new_zeros(*shape, attention.value_dim)
            self.layers.append(LayerCache(keys, values))
        self._resize(MIN_SLOTS)
        # where this step's keys are written: (E, 1), (E, W)
        self.index = self.columns = self.positions.new_zeros(0, 0)

    @property
    def capacity(self) -> int:
        return self.positions.shape[2]

    @property
    def parts(self) -> list[Tensor]:
        """All tensors: keys (rows, G, C, K) and values (rows, G, C, V) by layer, visibility, positions."""
        return [x for layer in self.layers for x in (layer.k, layer.v)] + [self.visible, self.positions]

    def _resize(self, rows: int) -> None:
        parts = []
        for old in self.parts:
            new = old.new_full((rows, *old.shape[1:]), -torch.inf if old is self.visible else 0)
            new[: len(self.slots)] = old[: len(self.slots)]
            parts.append(new)
        *buffers, self.visible, self.positions = parts
        self.layers = [LayerCache(k, v) for k, v in zip(buffers[::2], buffers[1::2], strict=True)]

    def add(self, slot: Slot, parts: Sequence[Tensor]) -> None:
        """Add a slot and fill it. parts: the slot's rows of `self.parts`, e.g. keys (G, filled, K)."""
        if len(self.slots) == len(self.visible):
            self._resize(2 * len(self.visible))
        slot.bucket, slot.row = self, len(self.slots)
        self.slots.append(slot)
        self.batch = len(self.slots)
        for buffer, part in zip(self.parts, parts, strict=True):
            buffer[slot.row, :, : slot.filled] = part

    def content(self, slot: Slot) -> list[Tensor]:
        return [buffer[slot.row, :, : slot.filled] for buffer in self.parts]

    def remove(self, slot: Slot) -> None:
        last = self.slots.pop()
        self.batch = len(self.slots)
        self.clear(slot, 0)
        if last is not slot:
            for buffer, part in zip(self.parts, self.content(last), strict=True):
                buffer[slot.row, :, : last.filled] = part
            self.clear(last, 0)
            last.row = slot.row
            self.slots[last.row] = last
        if len(self.visible) > MIN_SLOTS and len(self.slots) <= len(self.visible) // 4:
            self._resize(len(self.visible) // 2)

    def clear(self, slot: Slot, first: int) -> None:
        """Zero and mask the slot's positions from `first` on."""
        for buffer in self.parts:
            buffer[slot.row, :, first : slot.filled] = -torch.inf if buffer is self.visible else 0

    def compact(self, slot: Slot) -> None:
        """Keep only the positions that some beam still descends from."""
        generated = slice(slot.prompt, slot.filled)
        alive = (self.visible[slot.row, :, generated] == 0).any(0).nonzero()[:, 0]  # (alive,)
        end = slot.prompt + len(alive)
        for buffer in self.parts:
            buffer[slot.row, :, slot.prompt : end] = buffer[slot.row, :, generated].index_select(1, alive)
        self.clear(slot, end)
        slot.filled = end

    # ---- a step --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Compute this step's bias and position terms for each window of the layers."""
        device, dtype = self.visible.device, self.visible.dtype
        if self.cross:
            self.bias[None] = self.visible[: self.batch, None]  # (E, 1, 1, C)
            return
        diagonal = torch.full((self.width, self.width), -torch.inf, dtype=dtype, device=device)
        filled = torch.tensor([slot.filled for slot in self.slots], device=device)
        current = torch.tensor([slot.position for slot in self.slots], device=device)[:, None]  # (E, 1)
        shifts = [slot.shift for slot in self.slots]
        rotary_ids = current + current.new_tensor(shifts)[:, None] if any(shifts) else current
        self.index = torch.arange(self.batch, device=device)[:, None]
        self.columns = filled[:, None] + torch.arange(self.width, device=device)
        self.visible[self.index, :, self.columns] = diagonal.fill_diagonal_(0.0)  # its own token
        self.positions[self.index, 0, self.columns] = current.expand_as(self.columns)
        visible, positions = self.visible[: self.batch, None], self.positions[: self.batch, 0]
        for window in dict.fromkeys(attention.window for attention in self.attentions):
            position, bias = self.stack.position_of(window), visible  # (E, 1, W, C)
            self.terms[window] = PositionTerms()
            if isinstance(position, RotaryPositions):
                self.terms[window] = position(rotary_ids)  # cos, sin (E, 1, 1, R)
            elif position is not None:
                bias = position(current, positions).bias.to(dtype) + bias  # (E, H, W, C)
            if window is not None and self.capacity > window:
                bias = bias.masked_fill((positions <= current - window)[:, None, None], -torch.inf)
            self.bias[window] = bias

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys (E, G, W, K) and values (E, G, W, V); return the full buffers (E, G, C, K|V)."""
        cache = self.layers[layer]
        cache.k[self.index, :, self.columns] = k.transpose(1, 2)
        cache.v[self.index, :, self.columns] = v.transpose(1, 2)
        return self.view(layer)

    def view(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.layers[layer].k[: self.batch], self.layers[layer].v[: self.batch]

    def advance(self, steps: int = 1) -> None:
        for slot in self.slots:
            slot.filled += slot.width * steps
            slot.position += steps

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by `rows[i]`, a row of the same slot; rows (E * W,)."""
        visible = self.visible[: self.batch]
        visible.copy_(visible.flatten(0, 1).index_select(0, rows).view_as(visible))


class SlotKVCache(DecodeKVCache):
    """The slots of all requests of a batch, in the order of their rows, stored in buckets."""

    def __init__(self, stack: Stack, like: Tensor, *, cross: bool = False) -> None:
        """cross: for cross-attention, whose keys are complete from the start. like: dtype and device."""
        super().__init__()
        self.stack, self.like, self.cross = stack, like, cross
        self.slots: list[Slot] = []
        self.buckets: dict[tuple[int, int], SlotBucket] = {}
        self._rows: list[tuple[SlotBucket, Tensor | None]] | None = None  # of buckets; None: all, in order
        self._order: Tensor | None = None  # of the rows of all buckets; None: unchanged

    @property
    def rows(self) -> int:
        return sum(slot.width for slot in self.slots)

    @property
    def capacity(self) -> int:
        """Total capacity of all slots, in positions."""
        return sum(bucket.capacity * bucket.batch for bucket in self.buckets.values())

    def add(self, width: int, k: Sequence[Tensor] = (), v: Sequence[Tensor] = ()) -> Slot:
        """Append a slot. k, v: keys (G, P, K) and values (G, P, V) of its prompt or source, by layer."""
        if not k:  # without a prompt
            attentions, empty = self.stack.attentions, self.like.new_empty
            k = [empty(a.num_kv_heads, 0, a.head_dim) for a in attentions]
            v = [empty(a.num_kv_heads, 0, a.value_dim) for a in attentions]
        length = k[0].shape[1]
        slot = Slot(width, prompt=length, filled=length, position=length)
        if self.cross and not length:  # one position of zeros, whose attention output is zero
            slot.filled = 1
            k, v = ([x.new_zeros(x.shape[0], 1, x.shape[2]) for x in parts] for parts in (k, v))
        visible = self.like.new_zeros(1 if self.cross else width, slot.filled)
        positions = torch.arange(slot.filled, device=self.like.device)[None]
        layers = [part for pair in zip(k, v, strict=True) for part in pair]
        self._place(slot, [*layers, visible, positions])
        self.slots.append(slot)
        return slot

    def remove(self, slot: Slot) -> None:
        """Remove a slot, and its rows from the batch."""
        self.slots.remove(slot)
        self._take_out(slot)

    def first_row(self, slot: Slot) -> int:
        """Return the index of the first row of a slot in the batch."""
        return sum(other.width for other in self.slots[: self.slots.index(slot)])

    def select(self, rows: Tensor) -> None:
        """Keep only the slots of these rows; either all rows of a slot or none."""
        owners = [slot for slot in self.slots for _ in range(slot.width)]
        selected = {owners[row] for row in rows.tolist()}
        for slot in [slot for slot in self.slots if slot not in selected]:
            self.remove(slot)

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by `rows[i]`, a row of the same slot; rows (N,)."""
        for bucket, bucket_rows in self._bucket_rows():
            if bucket_rows is None:
                bucket.reorder(rows)
                continue
            index = torch.arange(len(bucket_rows), device=rows.device)
            local = torch.empty_like(rows).index_copy_(0, bucket_rows, index)
            bucket.reorder(local[rows[bucket_rows]])

    def _place(self, slot: Slot, parts: Sequence[Tensor]) -> None:
        """Put the slot into the bucket for its width and length."""
        capacity = capacity_for(slot.filled if self.cross else slot.filled + slot.width)
        bucket = self.buckets.get((slot.width, capacity))
        if bucket is None:
            bucket = SlotBucket(self.stack, slot.width, capacity, self.like, cross=self.cross)
            self.buckets[slot.width, capacity] = bucket
        bucket.add(slot, parts)
        self._rows = None

    def _take_out(self, slot: Slot) -> None:
        bucket = slot.bucket
        bucket.remove(slot)
        if not bucket.slots:
            del self.buckets[slot.width, bucket.capacity]
        self._rows = None

    # ---- a step --------------------------------------------------------------------------------------

    def next_positions(self) -> Tensor:
        """Return the position (N,) of the next token of every row."""
        positions = [slot.position + slot.shift for slot in self.slots for _ in range(slot.width)]
        return torch.tensor(positions, device=self.like.device)

    def prepare(self) -> None:
        """Grow full slots, and compute this step's bias and position terms."""
        if not self.cross:
            for slot in self.slots:
                if slot.filled + slot.width > slot.bucket.capacity:
                    self._grow(slot)
        for bucket, _ in self._bucket_rows():
            bucket.prepare()

    def _grow(self, slot: Slot) -> None:
        if slot.width > 1:
            slot.bucket.compact(slot)
            if slot.filled + slot.width <= COMPACT_THRESHOLD * slot.bucket.capacity:
                return
        parts = [part.clone() for part in slot.bucket.content(slot)]
        self._take_out(slot)
        self._place(slot, parts)

    def _bucket_rows(self) -> list[tuple[SlotBucket, Tensor | None]]:
        """Return each bucket with its rows; recomputed after slots have moved."""
        if self._rows is None:
            first_row, count = {}, 0
            for slot in self.slots:
                first_row[slot] = count
                count += slot.width
            device, buckets = self.like.device, list(self.buckets.values())
            rows = [
                [first_row[slot] + n for slot in bucket.slots for n in range(slot.width)]
                for bucket in buckets
            ]
            if rows == [list(range(count))]:
                self._rows, self._order = [(buckets[0], None)], None
            else:
                indices = [torch.tensor(bucket_rows, device=device) for bucket_rows in rows]
                self._rows = list(zip(buckets, indices, strict=True))
                self._order = torch.cat(indices).argsort() if indices else None
        return self._rows

    def attend(
        self, layer: int, attention: MultiHeadAttention, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> Tensor:
        """Append k (N, G, K) and v (N, G, V) of all rows, and attend from q (N, H, K) -> (N, H, V)."""
        outputs = []
        for bucket, rows in self._bucket_rows():
            parts = (x if x is None or rows is None else x.index_select(0, rows) for x in (q, k, v))
            outputs.append(bucket.attend(layer, attention, *parts))  # type: ignore[arg-type]
        return outputs[0] if self._order is None else torch.cat(outputs).index_select(0, self._order)

    def advance(self, steps: int = 1) -> None:
        """Count the step; call it once, after all layers have appended their keys."""
        for bucket in self.buckets.values():
            bucket.advance(steps)

"""KV caches for the Triton kernels: those of `inference.kv_cache` with static shapes.

The number of filled slots is counted on the device, so that one CUDA graph serves every step.

B inputs, W beams, H query heads, G key/value heads, K head width, L slots, S source positions.
The first slots hold the prompt; each step fills W more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.kv_cache import LayerCache
from glassformer.core.positions import AlibiBias, RelativeBias, RotaryPositions
from glassformer.core.stack import Stack
from glassformer.inference.gpu.decode_attention import decode_attention
from glassformer.inference.kv_cache import CrossKVCache, DecodeKVCache, SharedPromptKVCache
from glassformer.inference.slot_cache import Slot


def supports(stack: Stack) -> bool:
    """Whether the kernels support this stack's attention."""
    attentions = [*stack.attentions, *stack.cross_attentions]
    if not attentions or any(a.value_dim != a.head_dim for a in attentions):
        return False
    # a rounded bias depends on absolute positions, but the kernel uses distances
    positions = (stack.position, stack.local_position)
    return not any(isinstance(p, AlibiBias) and p.rounding != "none" for p in positions)


class TritonBeamCache(SharedPromptKVCache):
    """KV cache of self-attention with W beams per input."""

    def __init__(self, stack: Stack, batch: int, capacity: int, mask: Tensor | None, *, like: Tensor) -> None:
        """mask (B, P): True for the real tokens of the prompt. like: has the dtype and device."""
        super().__init__(stack, batch, capacity)
        for attention in stack.attentions:
            shape = (batch, attention.num_kv_heads, capacity, attention.head_dim)
            self.layers.append(LayerCache(like.new_empty(shape), like.new_empty(shape)))
        self.filled = torch.zeros(1, dtype=torch.int64, device=like.device)
        self.ancestors: Tensor | None = None  # (B, W, L); None: every beam attends to all filled slots
        self.mask: Tensor | None = None if mask is None else _extend_mask(mask, capacity)  # (B, L)
        self.bias = {window: _bias_by_distance(stack, window, capacity, like) for window in self.windows}
        self.rotary: dict[int | None, tuple[Tensor, Tensor] | None] = dict.fromkeys(self.windows)

    def state(self) -> list[Tensor]:
        """Return all tensors that a captured step reads and writes."""
        buffers = [x for layer in self.layers for x in (layer.k, layer.v)]
        return [*buffers, self.filled, *(x for x in (self.ancestors, self.mask) if x is not None)]

    def store_prompt(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.prompt = self.position = k.shape[2]
        cache = self.layers[layer]
        cache.k[:, :, : self.prompt] = k
        cache.v[:, :, : self.prompt] = v
        if layer == 0:
            self.filled.fill_(self.prompt)

    def prepare(self, positions: Tensor | None, like: Tensor) -> None:
        assert positions is not None
        for window in self.windows:
            position = self.stack.position_of(window)
            if isinstance(position, RotaryPositions):
                self.rotary[window] = position(positions[:, None]).rotary  # (B, 1, 1, R) each
        if self.ancestors is not None:  # a beam's new slot is visible to it
            new_slots = self.filled + torch.arange(self.width, device=positions.device)  # (W,)
            self.ancestors.scatter_(2, new_slots[None, :, None].expand(self.batch, -1, 1), True)

    def attend(
        self, layer: int, attention: MultiHeadAttention, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> Tensor:
        """Rotate q and k, append k and v, and attend, in one kernel."""
        assert k is not None and v is not None
        cache, window = self.layers[layer], attention.window
        q, k, v = (x.view(self.batch, self.width, *x.shape[1:]) for x in (q, k, v))  # (B, W, heads, K)
        heads = decode_attention(
            q,
            k,
            v,
            cache.k,
            cache.v,
            self.filled,
            scale=attention.scale,
            softcap=attention.softcap,
            mask=self.mask,
            ancestors=self.ancestors,
            rotary=self.rotary[window],
            window=window,
            bias=self.bias[window],
            prompt_length=self.prompt,
        )
        return heads.flatten(0, 1)  # (B * W, H, K)

    def advance(self, steps: int = 1) -> None:
        """Count the step on the device; the caller increments `position`."""
        self.filled.add_(self.width * steps)

    def expand_beams(self, count: int) -> None:
        self.prompt = self.position
        if count == 1:
            return
        slots = self.prompt + (self.max_positions - self.prompt) * count
        self._resize(slots)
        if self.mask is not None:
            self.mask = _extend_mask(self.mask[:, : self.prompt], slots)
        self.ancestors = torch.zeros(self.batch, count, slots, dtype=torch.bool, device=self.filled.device)
        self.ancestors[..., : self.prompt] = True
        self.width = count

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by `rows[i]`, a row of the same input; rows (B * W,)."""
        if self.ancestors is not None:
            self.ancestors.copy_(self.ancestors.flatten(0, 1).index_select(0, rows).view_as(self.ancestors))

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order; either all beams of an input or none."""
        inputs = self.inputs_of(rows)
        super().select(inputs)
        if self.ancestors is not None:
            selected = self.ancestors.flatten(0, 1).index_select(0, rows)
            self.ancestors = selected.view(len(inputs), self.width, -1)
        self.mask = None if self.mask is None else self.mask.index_select(0, inputs)
        self.batch = len(inputs)


class TritonSlotCache(DecodeKVCache):
    """KV cache of self-attention for continuous batching: a row per request, each with its own length.

    All rows have the same capacity, and the rows in use come first: when a slot leaves, the last slot takes
    its row. A step computes any number of the first rows; rows without a slot are ignored.
    """

    def __init__(self, stack: Stack, rows: int, capacity: int, like: Tensor) -> None:
        """rows: maximum number of slots. capacity: maximum number of positions. like: dtype and device."""
        super().__init__()
        self.stack, self.max_positions = stack, capacity
        for attention in stack.attentions:
            shape = (rows, attention.num_kv_heads, capacity, attention.head_dim)
            self.layers.append(LayerCache(like.new_zeros(shape), like.new_zeros(shape)))
        self.slots: list[Slot] = []  # in the order in which they were added
        self.filled = torch.zeros(rows, dtype=torch.int64, device=like.device)
        self.in_use = torch.zeros_like(self.filled)  # 1 for rows with a slot
        windows = dict.fromkeys(attention.window for attention in stack.attentions)
        self.distance_bias = {window: _bias_by_distance(stack, window, capacity, like) for window in windows}
        self.rotary: dict[int | None, tuple[Tensor, Tensor] | None] = dict.fromkeys(windows)

    @property
    def rows(self) -> int:
        return len(self.slots)

    def add(self, k: Sequence[Tensor], v: Sequence[Tensor]) -> Slot:
        """Append a slot. k, v: keys and values (G, P, K) of its prompt, by layer."""
        length, row = k[0].shape[1], len(self.slots)
        slot = Slot(1, prompt=length, filled=length, position=length, row=row)
        for layer, keys, values in zip(self.layers, k, v, strict=True):
            layer.k[row, :, :length], layer.v[row, :, :length] = keys, values
        self.filled[row], self.in_use[row] = length, 1
        self.slots.append(slot)
        return slot

    def remove(self, slot: Slot) -> None:
        self.slots.remove(slot)
        last = max(self.slots, key=lambda other: other.row, default=slot)
        if last.row > slot.row:
            for layer in self.layers:
                layer.k[slot.row, :, : last.filled] = layer.k[last.row, :, : last.filled]
                layer.v[slot.row, :, : last.filled] = layer.v[last.row, :, : last.filled]
            self.filled[slot.row] = last.filled
            last.row, slot.row = slot.row, last.row
        self.filled[slot.row] = self.in_use[slot.row] = 0

    def prepare(self, rows: int) -> None:
        """Start a step of the first `rows` rows."""
        self.batch = rows
        for window in self.rotary:
            position = self.stack.position_of(window)
            if isinstance(position, RotaryPositions):
                self.rotary[window] = position(self.filled[:rows, None]).rotary  # (B, 1, 1, R) each

    def attend(
        self, layer: int, attention: MultiHeadAttention, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> Tensor:
        """Rotate q and k, append k and v, and attend, in one kernel."""
        assert k is not None and v is not None
        cache, window, rows = self.layers[layer], attention.window, self.batch
        heads = decode_attention(
            q[:, None],
            k[:, None],
            v[:, None],
            cache.k[:rows],
            cache.v[:rows],
            self.filled[:rows],
            scale=attention.scale,
            softcap=attention.softcap,
            rotary=self.rotary[window],
            window=window,
            bias=self.distance_bias[window],
        )
        return heads[:, 0]

    def advance(self, steps: int = 1) -> None:
        """Count the step on the device; the caller counts it in the slots."""
        self.filled[: self.batch].add_(self.in_use[: self.batch], alpha=steps)


def _extend_mask(mask: Tensor, slots: int) -> Tensor:
    """Extend a prompt mask (B, P) to (B, slots); slots after the prompt are True."""
    return torch.nn.functional.pad(mask, (0, slots - mask.shape[1]), value=True)


def _bias_by_distance(stack: Stack, window: int | None, capacity: int, like: Tensor) -> Tensor | None:
    """Return the position bias: a slope per head (H,), or a value per distance (H, capacity)."""
    position = stack.position_of(window)
    if isinstance(position, AlibiBias):
        return position.slopes * position.scale
    if isinstance(position, RelativeBias):
        keys = torch.arange(capacity, device=like.device)[None]
        bias: Tensor | None = position(keys[:, -1:], keys).bias  # (1, H, 1, capacity), the farthest first
        assert bias is not None
        return bias[0, :, 0].flip(-1).float().contiguous()
    return None


class TritonCrossCache(CrossKVCache):
    """KV cache of cross-attention, for the Triton kernel."""

    def state(self) -> list[Tensor]:
        """Return all tensors that a captured step reads."""
        buffers = [x for layer in self.layers for x in (layer.k, layer.v)]
        return buffers if self.mask is None else [*buffers, self.mask]

    def attend(
        self, layer: int, attention: MultiHeadAttention, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> Tensor:
        q = q.view(self.batch, -1, *q.shape[1:])  # (B, W, H, K)
        heads = decode_attention(
            q,
            None,
            None,
            *self.view(layer),
            None,
            scale=attention.scale,
            softcap=attention.softcap,
            mask=self.mask,
        )
        return heads.flatten(0, 1)

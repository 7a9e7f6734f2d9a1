"""KV caches of decode steps; see `core.kv_cache`.

A `DecodeKVCache` grows by one token per row at each step: call `prepare`, then `attend` for each layer, which
appends the new keys and attends, then `advance`. `reorder` replaces rows, `select` drops rows.

In `BeamKVCache`, the beams of an input are the queries of one attention over all slots of the input. The
prompt is stored once for all beams; among the generated slots, a beam attends only to its ancestors. So
reordering beams changes only the mask and moves no keys. Slots that no beam descends from any more are
dropped periodically: beams soon share all but their last few tokens. With one beam, this is a plain
contiguous cache.

`CrossKVCache` holds the keys and values of the encoder's output. `slot_cache` has the caches of continuous
batching, `gpu.kv_cache` those of the GPU kernels.

B inputs, W beams, H query heads, G key/value heads, K head width, V value width, L slots, S source positions.
Order of slots: `prompt`, then `compacted` (those that remained when others were dropped), then W per step.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import LayerContext
from glassformer.core.kv_cache import KVCache, LayerCache
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer
from glassformer.core.positions import PositionTerms
from glassformer.core.stack import Stack
from glassformer.inference.attention import UnpadIndex, decode_attention

COMPACT_INTERVAL: Final = 8  # steps between attempts to drop slots
COMPACT_THRESHOLD: Final = 0.7  # slots are dropped only if at most this fraction remains


class DecodeKVCache(KVCache):
    """Base of KV caches for decode steps: keys and values of B inputs, to which W rows per input attend."""

    cross: bool = False  # cross-attention: nothing is appended

    def __init__(self, batch: int = 0) -> None:
        self.layers, self.batch = [], batch
        # this step's bias (B|1, 1|H, W|1, keys) and position terms, by the window of the layers
        self.bias: dict[int | None, Tensor | None] = {}
        self.terms: dict[int | None, PositionTerms] = {}

    def view(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys (B, G, S, K) and values (B, G, S, V) to attend to."""
        return self.layers[layer].k, self.layers[layer].v

    def attend(
        self, layer: int, attention: MultiHeadAttention, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> Tensor:
        """Append k (B * W, G, K) and v (B * W, G, V) and attend from q (B * W, H, K) -> (B * W, H, V)."""
        batch, window = self.batch, None if self.cross else attention.window
        q = q.view(batch, -1, *q.shape[1:]).transpose(1, 2)  # (B, H, W, K)
        if k is None or v is None:
            k, v = self.view(layer)
        else:
            k, v = (x.view(batch, -1, *x.shape[1:]).transpose(1, 2) for x in (k, v))  # (B, G, W, K)
            q, k = self.terms[window].rotate(q, k)
            k, v = self.append(layer, k, v)
        heads = decode_attention(
            q, k, v, self.bias[window], attention.scale, attention.softcap
        )  # (B, H, W, V)
        return heads.transpose(1, 2).flatten(0, 1)

    def attention_layers(self, stack: Stack) -> list[CachedAttention]:
        """Create an `AttentionBackend` for every layer; the cache keeps no reference, to avoid a cycle."""
        return [CachedAttention(self, n) for n in range(len(stack.blocks))]


def layer_contexts(stack: Stack, cache: DecodeKVCache, cross: DecodeKVCache | None) -> list[LayerContext]:
    """Return the context of every layer in a decode step with these caches."""
    attend = cache.attention_layers(stack)
    if cross is None:
        return [LayerContext(backend) for backend in attend]
    return [LayerContext(*pair) for pair in zip(attend, cross.attention_layers(stack), strict=True)]


class CachedAttention:
    """`AttentionBackend` for one layer of a cache."""

    def __init__(self, cache: DecodeKVCache, layer: int) -> None:
        self.cache, self.layer = cache, layer

    def __call__(self, attention: MultiHeadAttention, x: Tensor, obs: Observer | None = None) -> Tensor:
        if self.cache.cross:
            return self.cache.attend(self.layer, attention, attention.queries(x), None, None)
        return self.cache.attend(self.layer, attention, *attention.queries_keys_values(x))


class SharedPromptKVCache(DecodeKVCache):
    """Base of `BeamKVCache` and its GPU counterpart: the beams of an input share a prompt."""

    def __init__(self, stack: Stack, batch: int, capacity: int) -> None:
        """capacity: maximum number of positions."""
        super().__init__(batch)
        self.stack, self.width, self.max_positions = stack, 1, capacity
        self.prompt = self.position = 0  # positions in the prompt; position of the next token
        self.windows = list(dict.fromkeys(attention.window for attention in stack.attentions))

    def inputs_of(self, rows: Tensor) -> Tensor:
        """Return the indices of the inputs that these rows (inputs * W,) are beams of."""
        return rows if self.width == 1 else rows.view(-1, self.width)[:, 0] // self.width

    def _resize(self, slots: int) -> None:
        """Copy the prompt into buffers with this many slots."""
        for layer in self.layers:
            layer.k, layer.v = (_with_slots(x, slots, self.prompt) for x in (layer.k, layer.v))


class BeamKVCache(SharedPromptKVCache):
    """KV cache of self-attention with W beams per input."""

    def __init__(self, stack: Stack, batch: int, capacity: int, mask: Tensor | None = None) -> None:
        """mask (B, P): True for the real tokens of the prompt, which is stored first."""
        super().__init__(stack, batch, capacity)
        self.layers = [LayerCache(torch.empty(0), torch.empty(0)) for _ in stack.attentions]
        self.compacted = self.recent_steps = 0
        self.compacted_positions: Tensor | None = None  # (B, compacted)
        self.mask = mask  # (B, P), None: nothing is padding
        self.visible: Tensor | None = None  # (B, 1, W, L), 0 or -inf; None: all are visible

    @property
    def filled(self) -> int:
        return self.prompt + self.compacted + self.width * self.recent_steps

    def store_prompt(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store a layer's keys (B, G, P, K) and values (B, G, P, V) of the prompt."""
        self.prompt = self.position = k.shape[2]
        cache = self._allocate(layer, k, v)
        cache.k[:, :, : self.prompt] = k
        cache.v[:, :, : self.prompt] = v
        if layer == 0 and self.mask is not None:
            self.visible = torch.zeros(self.batch, 1, 1, self.max_positions, dtype=k.dtype, device=k.device)
            self.visible[..., : self.prompt].masked_fill_(~self.mask[:, None, None], -torch.inf)

    def _allocate(self, layer: int, k: Tensor, v: Tensor) -> LayerCache:
        cache = self.layers[layer]
        cache.k, cache.v = (_with_slots(x, self.max_positions, 0) for x in (k, v))
        return cache

    # ---- a step --------------------------------------------------------------------------------------

    def prepare(self, positions: Tensor | None, like: Tensor) -> None:
        """Compute this step's bias and position terms, once for all layers with the same window.

        positions (B,): position ids of this step's tokens; by default after all filled positions.
        """
        if not self.layers:
            return
        dtype, device = like.dtype, like.device
        if (
            self.width > 1
            and self.recent_steps
            and self.recent_steps % COMPACT_INTERVAL == 0
            and device.type == "cpu"
        ):
            self._compact()
        first, end = self.filled, self.filled + self.width
        visible = self.visible
        if visible is not None:
            if self.width > 1:
                diagonal = torch.full(
                    (self.width, self.width), -torch.inf, dtype=visible.dtype, device=device
                )
                visible[..., first:end] = diagonal.fill_diagonal_(0.0)
            visible = visible[..., :end]
        for window in self.windows:
            self.terms[window] = terms = self._position_terms(positions, device, window)
            by_position = None if terms.bias is None else terms.bias.to(dtype)  # (B|1, H, 1, positions)
            if window is not None and self.position + 1 > window:
                outside = torch.zeros(1, 1, 1, self.position + 1, dtype=dtype, device=device)
                outside[..., : self.position + 1 - window] = -torch.inf
                by_position = outside if by_position is None else by_position + outside
            self.bias[window] = visible
            if by_position is not None:
                by_slot = self._by_slot(by_position)
                self.bias[window] = by_slot if visible is None else by_slot + visible

    def _position_terms(
        self, positions: Tensor | None, device: torch.device, window: int | None
    ) -> PositionTerms:
        start, mask = self.position, self.mask
        if mask is not None:
            mask = F.pad(mask, (0, start + 1 - mask.shape[1]), value=True)
        ids = None if positions is None else positions[:, None]  # (B, 1)
        return self.stack.position_terms(ids, start, 1, start + 1, Mask(padding=mask), device, window=window)

    def _by_slot(self, by_position: Tensor) -> Tensor:
        """Expand a bias (B|1, H|1, 1, positions) to (..., slots); the W slots of a step share a position."""
        if self.width == 1:
            return by_position
        parts = [by_position[..., : self.prompt]]
        if self.compacted_positions is not None:
            index = self.compacted_positions[:, None, None].expand(-1, by_position.shape[1], -1, -1)
            by_position = by_position.expand(self.batch, -1, -1, -1)
            parts = [by_position[..., : self.prompt], by_position.gather(-1, index)]
        parts.append(by_position[..., self.position - self.recent_steps :].repeat_interleave(self.width, -1))
        return torch.cat(parts, -1)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's new keys (B, G, W, K) and values (B, G, W, V); return all filled ones."""
        cache = self.layers[layer]
        if not cache.k.numel():
            cache = self._allocate(layer, k, v)
        return cache.append(k, v, self.filled)

    def advance(self, steps: int = 1) -> None:
        """Count the step; call it once, after all layers have appended their keys."""
        self.recent_steps += steps
        self.position += steps

    def _compact(self) -> None:
        """Drop the slots that no beam descends from, if there are many."""
        assert self.visible is not None
        generated = slice(self.prompt, self.filled)
        alive = (self.visible[:, 0, :, generated] == 0).any(1)  # (B, generated)
        count = int(alive.sum(1).max())
        if count > COMPACT_THRESHOLD * alive.shape[1]:
            return
        steps = torch.arange(self.position - self.recent_steps, self.position, device=alive.device)
        recent = steps.repeat_interleave(self.width).expand(self.batch, -1)
        positions = (
            recent if self.compacted_positions is None else torch.cat((self.compacted_positions, recent), 1)
        )
        order = alive.int().argsort(dim=1, descending=True, stable=True)[:, :count]  # (B, count)
        for layer in self.layers:
            for x in (layer.k, layer.v):
                index = order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
                x[:, :, self.prompt : self.prompt + count] = x[:, :, generated].gather(2, index)
        # an input with fewer live slots keeps some dead ones, which stay masked
        index = order[:, None, None].expand(-1, -1, self.width, -1)
        self.visible[..., self.prompt : self.prompt + count] = self.visible[..., generated].gather(-1, index)
        self.compacted_positions, self.compacted, self.recent_steps = positions.gather(1, order), count, 0

    # ---- rows ----------------------------------------------------------------------------------------

    def expand_beams(self, count: int) -> None:
        """Continue each input with `count` beams, which all attend to the slots filled so far."""
        self.prompt, self.recent_steps = self.filled, 0
        if count > 1 and self.layers:
            slots = self.prompt + (self.max_positions - self.position) * count
            self._resize(slots)
            visible = self.layers[0].k.new_full((self.batch, 1, count, slots), -torch.inf)
            visible[..., : self.prompt] = 0.0 if self.visible is None else self.visible[..., : self.prompt]
            self.visible = visible
        self.width = count

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by `rows[i]`, a row of the same input; rows (B * W,)."""
        if self.visible is None:
            return
        filled = self.visible[..., : self.filled]
        reordered = filled.flatten(0, 2).index_select(0, rows)  # (B * W, filled)
        self.visible[..., : self.filled] = reordered.view_as(filled)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order; either all beams of an input or none."""
        inputs, filled = self.inputs_of(rows), self.filled
        for layer in self.layers:
            layer.k, layer.v = (
                _with_slots(x[:, :, :filled].index_select(0, inputs), x.shape[2], filled)
                for x in (layer.k, layer.v)
            )
        if self.visible is not None:
            selected = self.visible.flatten(0, 2).index_select(0, rows)
            self.visible = selected.view(len(inputs), 1, self.width, -1)
        self.mask = None if self.mask is None else self.mask.index_select(0, inputs)
        if self.compacted_positions is not None:
            self.compacted_positions = self.compacted_positions.index_select(0, inputs)
        self.batch = len(inputs)


class CrossKVCache(DecodeKVCache):
    """KV cache of cross-attention: keys and values of the encoder output, shared by the beams of an input."""

    cross = True

    def __init__(self, stack: Stack, memory: Tensor, rows: UnpadIndex, mask: Tensor) -> None:
        """memory (N, D): encoder output of the real tokens. mask (B, S): True for the real tokens."""
        super().__init__(len(mask))
        for attention in stack.cross_attentions:
            # contiguous by heads, as every step reads it
            k, v = (rows.pad(x).transpose(1, 2).contiguous() for x in attention.keys_values(memory))
            self.layers.append(LayerCache(k, v))  # (B, G, S, K), (B, G, S, V)
        self.mask: Tensor | None = None  # (B, S)
        if rows.index is not None:
            # an empty source becomes one position of zeros, whose attention output is zero
            first = torch.arange(mask.shape[1], device=mask.device) == 0
            self.mask = mask | (first & ~mask.any(1, keepdim=True))
        self._set_bias()

    def _set_bias(self) -> None:
        """Set the bias (B, 1, 1, S): 0, or -inf at padding."""
        if self.mask is not None and self.layers:
            zeros = torch.zeros(self.mask.shape, dtype=self.layers[0].k.dtype, device=self.mask.device)
            self.bias[None] = zeros.masked_fill_(~self.mask, -torch.inf)[:, None, None]
        else:
            self.bias[None] = None

    def select(self, rows: Tensor) -> None:
        """Keep only these inputs, in this order."""
        super().select(rows)
        self.batch = len(rows)
        self.mask = None if self.mask is None else self.mask.index_select(0, rows)
        self._set_bias()


def _with_slots(x: Tensor, slots: int, filled: int) -> Tensor:
    """Allocate (B, G, slots, K) and copy the first `filled` slots of x (B, G, L, K) into it."""
    new = x.new_empty(*x.shape[:2], slots, x.shape[3])
    new[:, :, :filled] = x[:, :, :filled]
    return new

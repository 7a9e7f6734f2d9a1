"""KV caches on a GPU: as in `inference.kv_cache`, in tensors whose shapes never change.

How many slots are filled is counted on the device, so one captured graph serves every step.

B inputs, W beams, H query heads, G key/value heads, K head width, L slots, S source positions.
Slots hold the prompt, then W for each step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.kv_cache import KVCache, LayerCache
from glassformer.core.observe import Observer
from glassformer.core.positions import AlibiBias, RelativeBias, RotaryPositions
from glassformer.core.stack import Stack
from glassformer.inference.attention import RealRows
from glassformer.inference.gpu.decode_attention import cross_attention, decode_attention
from glassformer.inference.kv_cache import CrossAttention, CrossCache


def supports(stack: Stack) -> bool:
    """Whether the kernels support this stack's attention."""
    attentions = [*stack.attentions, *stack.cross_attentions]
    if not attentions or any(one.value_dim != one.head_dim for one in attentions):
        return False
    # a rounded bias depends on absolute positions, and the kernel knows distances
    positions = (stack.position, stack.local_position)
    return not any(isinstance(one, AlibiBias) and one.rounding != "none" for one in positions)


class TritonBeamCache(KVCache):
    """Self-attention with W beams per input. A step: `prepare`, `attend` of each layer, `advance`."""

    def __init__(self, stack: Stack, batch: int, capacity: int, mask: Tensor | None, *, like: Tensor) -> None:
        """capacity: in positions; mask (B, P): of a prompt; `like`: the dtype and device."""
        super().__init__()
        self.stack, self.batch, self.width, self.max_positions = stack, batch, 1, capacity
        self.prompt = self.position = 0
        for one in stack.attentions:
            shape = (batch, one.num_kv_heads, capacity, one.head_dim)
            k, v = (torch.empty(shape, dtype=like.dtype, device=like.device) for _ in range(2))
            self.layers.append(LayerCache(k, v))
        self.filled = torch.zeros(1, dtype=torch.int64, device=like.device)
        self.ancestors: Tensor | None = None  # (B, W, L); None: every beam sees all that is filled
        self.mask: Tensor | None = None  # (B, L)
        if mask is not None:
            self.mask = torch.ones(batch, capacity, dtype=torch.bool, device=like.device)
            self.mask[:, : mask.shape[1]] = mask
        self.attend = [TritonBeamAttention(self, n) for n in range(len(self.layers))]
        windows = dict.fromkeys(one.window for one in stack.attentions)
        self.bias = {window: _bias_by_distance(stack, window, capacity, like) for window in windows}
        self.rotary: dict[int | None, tuple[Tensor, Tensor] | None] = dict.fromkeys(windows)

    def state(self) -> list[Tensor]:
        """All tensors that a captured step reads and writes."""
        buffers = [x for layer in self.layers for x in (layer.k, layer.v)]
        return [*buffers, self.filled, *(x for x in (self.ancestors, self.mask) if x is not None)]

    def store_prompt(self, layer: int, k: Tensor, v: Tensor) -> None:
        """A layer's keys and values (B, G, P, K) of the prompt."""
        self.prompt = self.position = k.shape[2]
        own = self.layers[layer]
        own.k[:, :, : self.prompt] = k
        own.v[:, :, : self.prompt] = v
        if layer == 0:
            self.filled.fill_(self.prompt)

    def prepare(self, positions: Tensor) -> None:
        """Compute the position terms of this step (B,); make each beam's new slot visible to it."""
        for window in self.rotary:
            position = self.stack.position_of(window)
            if isinstance(position, RotaryPositions):
                self.rotary[window] = position(positions[:, None]).rotary  # (B, 1, 1, R) each
        if self.ancestors is not None:
            own = self.filled + torch.arange(self.width, device=positions.device)  # (W,)
            self.ancestors.scatter_(2, own[None, :, None].expand(self.batch, -1, 1), True)

    def advance(self, steps: int = 1) -> None:
        """Count the step on the device; the host counts `position` itself."""
        self.filled.add_(self.width * steps)

    def widen(self, count: int) -> None:
        """Continue each input with `count` beams; all of them see what is filled so far."""
        self.prompt = self.position
        if count == 1:
            return
        slots = self.prompt + (self.max_positions - self.prompt) * count
        for layer in self.layers:
            old = layer.k, layer.v
            layer.k, layer.v = (x.new_empty(self.batch, x.shape[1], slots, x.shape[3]) for x in old)
            for new, x in zip((layer.k, layer.v), old, strict=True):
                new[:, :, : self.prompt] = x[:, :, : self.prompt]
        if self.mask is not None:
            mask = torch.ones(self.batch, slots, dtype=torch.bool, device=self.mask.device)
            mask[:, : self.prompt] = self.mask[:, : self.prompt]
            self.mask = mask
        self.ancestors = torch.zeros(self.batch, count, slots, dtype=torch.bool, device=self.filled.device)
        self.ancestors[..., : self.prompt] = True
        self.width = count

    def reorder(self, rows: Tensor) -> None:
        """Replace each row by a row (B * W,) of the same input."""
        if self.ancestors is not None:
            self.ancestors.copy_(self.ancestors.flatten(0, 1).index_select(0, rows).view_as(self.ancestors))

    def select(self, rows: Tensor) -> None:
        """Continue with these rows, in this order; either all beams of an input or none."""
        inputs = self.inputs_of(rows)
        super().select(inputs)
        if self.ancestors is not None:
            moved = self.ancestors.flatten(0, 1).index_select(0, rows)
            self.ancestors = moved.view(len(inputs), self.width, -1)
        self.mask = None if self.mask is None else self.mask.index_select(0, inputs)
        self.batch = len(inputs)

    def inputs_of(self, rows: Tensor) -> Tensor:
        """The inputs whose beams these rows (inputs * W,) are."""
        return rows if self.width == 1 else rows.view(-1, self.width)[:, 0] // self.width


class TritonBeamAttention:
    """One layer of a `TritonBeamCache`, as an `Attend`: the kernel rotates, appends and attends."""

    stored = False

    def __init__(self, cache: TritonBeamCache, layer: int) -> None:
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
        cache, own = self.cache, self.cache.layers[self.layer]
        q, k, v = (x.view(cache.batch, cache.width, *x.shape[1:]) for x in (q, k, v))  # (B, W, heads, K)
        heads = decode_attention(
            q,
            k,
            v,
            own.k,
            own.v,
            cache.filled,
            scale=attention.scale,
            real=cache.mask,
            ancestors=cache.ancestors,
            rotary=cache.rotary[attention.window],
            window=attention.window,
            bias=cache.bias[attention.window],
            shared=cache.prompt,
        )
        return heads.flatten(0, 1)  # (B * W, H, K)


def _bias_by_distance(stack: Stack, window: int | None, capacity: int, like: Tensor) -> Tensor | None:
    """What positions add to scores: a slope per head (H,), or a number per distance (H, capacity)."""
    position = stack.position_of(window)
    if isinstance(position, AlibiBias):
        return position.slopes * position.scale
    if isinstance(position, RelativeBias):
        keys = torch.arange(capacity, device=like.device)[None]
        bias: Tensor | None = position(keys[:, -1:], keys).bias  # (1, H, 1, capacity), the farthest first
        assert bias is not None
        return bias[0, :, 0].flip(-1).float().contiguous()
    return None


class TritonCrossCache(CrossCache):
    """Keys and values of the encoder's output, attended to by one kernel."""

    def __init__(self, stack: Stack, memory: Tensor, rows: RealRows, mask: Tensor) -> None:
        super().__init__(stack, memory, rows, mask)
        self.mask = None if rows.index is None else mask  # (B, S)

    def attention(self, layer: int) -> CrossAttention:
        return TritonCrossAttention(self, layer)

    def state(self) -> list[Tensor]:
        """All tensors that a captured step reads."""
        buffers = [x for layer in self.layers for x in (layer.k, layer.v)]
        return [*buffers, *(x for x in (self.mask, self.empty) if x is not None)]

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.mask = None if self.mask is None else self.mask.index_select(0, rows)


class TritonCrossAttention(CrossAttention):
    """One layer of a `TritonCrossCache`, as an `Attend`."""

    def __call__(
        self,
        attention: MultiHeadAttention,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        obs: Observer | None = None,
    ) -> Tensor:
        cache = self.cache
        assert isinstance(cache, TritonCrossCache)
        own = cache.layers[self.layer]
        q = q.view(len(own.k), -1, *q.shape[1:])  # (B, W, H, K)
        heads = cross_attention(q, own.k, own.v, scale=attention.scale, real=cache.mask)
        if cache.empty is not None:
            heads = heads.masked_fill(cache.empty, 0.0)
        return heads.flatten(0, 1)

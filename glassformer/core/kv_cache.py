"""The KV cache: it stores keys and values of earlier positions, so that a step computes only the new ones.

`KVCache` is what all caches have in common. `ContiguousKVCache` has one buffer per layer, allocated once and
passed to the forward. `inference.kv_cache` and `inference.slot_cache` have caches for beams and continuous
batching.

B batch, G key/value heads, S keys, K head width, V value width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from glassformer.core.spec import AttentionSpec, DecoderOnlySpec, EncoderDecoderSpec, ModelSpec
from glassformer.errors import ConflictError, GlassformerError, UnsupportedError


@dataclass(eq=False)
class CacheFullError(GlassformerError):
    """The KV cache has no capacity for the requested positions."""

    capacity: int
    length: int
    steps: int
    hint: str = "allocate it with a larger capacity"
    template: ClassVar[str] = (
        "the KV cache is full: {length} of {capacity} positions used, {steps} more needed"
    )


@dataclass
class LayerCache:
    """One layer's keys and values: self-attention (appended each step), cross-attention (computed once)."""

    k: Tensor  # (B, G, capacity, K)
    v: Tensor  # (B, G, capacity, V)
    cross: tuple[Tensor, Tensor] | None = None  # (B, G, S, K) and (B, G, S, V)

    def append(self, k: Tensor, v: Tensor, start: int | Tensor) -> tuple[Tensor, Tensor]:
        """Write T new positions at `start`; return all keys and values to attend to."""
        if k.dtype != self.k.dtype and not torch.is_autocast_enabled(k.device.type):
            raise ConflictError(
                ("the cache's dtype", "the model's dtype"),
                f"{self.k.dtype} against {k.dtype}",
                hint=f"allocate it with dtype={k.dtype}",
            )
        steps = k.shape[2]
        if isinstance(start, Tensor):
            rows = start + torch.arange(steps, device=k.device)
            self.k.index_copy_(2, rows, k.to(self.k.dtype))
            self.v.index_copy_(2, rows, v.to(self.v.dtype))
            return self.k, self.v
        end = start + steps
        self.k[:, :, start:end] = k
        self.v[:, :, start:end] = v
        return self.k[:, :, :end], self.v[:, :, :end]


class KVCache:
    """Keys and values of earlier positions. Each step appends to every layer, then counts its positions.

    layers: keys and values of each layer
    length: number of positions in the cache

    >>> from glassformer.core import spec
    >>> attention, ffn = spec.AttentionSpec(num_heads=4), spec.FeedForwardSpec(d_ff=64)
    >>> block = spec.BlockSpec(attention=attention, feed_forward=ffn)
    >>> model = spec.DecoderOnlySpec(
    ...     input=spec.TokensSpec(vocab_size=50), head=spec.LanguageModelSpec(vocab_size=50),
    ...     decoder=spec.StackSpec(d_model=16, num_layers=2, block=block, causal=True))
    >>> cache = KVCache.allocate(model, batch=3, capacity=10)
    >>> cache.select(torch.tensor([2, 0]))                  # a beam swapped, a finished row dropped
    >>> cache.layers[0].k.shape                             # (B, G, capacity, K)
    torch.Size([2, 4, 10, 4])
    """

    layers: list[LayerCache]
    length: int | Tensor

    @property
    def bytes(self) -> int:
        """The memory of the keys and values of all layers, without those of a source."""
        return sum(layer.k.nbytes + layer.v.nbytes for layer in self.layers)

    @staticmethod
    def allocate(
        model: ModelSpec,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> ContiguousKVCache:
        """Allocate a contiguous cache of `capacity` positions for every decoder layer of a model spec."""
        return ContiguousKVCache.of(model, batch, capacity, dtype=dtype, device=device)

    def begin_step(self, batch: int, steps: int) -> int:
        """Return the number of keys that a step of `steps` positions attends to; raise if they do not fit."""
        raise UnsupportedError(f"a {type(self).__name__}", "a forward pass")

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's keys (B, G, T, K) and values (B, G, T, V); return all that are attended to."""
        raise UnsupportedError(f"a {type(self).__name__}", "appending")

    def advance(self, steps: int = 1) -> None:
        """Count `steps` positions as filled; called once, after all layers have appended them."""
        raise UnsupportedError(f"a {type(self).__name__}", "appending")

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        for layer in self.layers:
            layer.k, layer.v = layer.k.index_select(0, rows), layer.v.index_select(0, rows)
            if layer.cross is not None:
                k, v = layer.cross
                layer.cross = (k.index_select(0, rows), v.index_select(0, rows))

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row `rows[i]`."""
        self.select(rows)


class ContiguousKVCache(KVCache):
    """The contiguous cache of all decoder layers.

    Use it under `torch.no_grad()`: the buffers are written in place. With an int `length`, each step attends
    to the filled positions. With a 0-d tensor (`with_static_shapes`), attention always covers the full buffer
    and the mask hides unfilled positions, so that one compiled graph serves all steps.
    """

    def __init__(self, layers: list[LayerCache], length: int | Tensor = 0) -> None:
        self.layers, self.length = layers, length

    @classmethod
    def of(
        cls, model: ModelSpec, batch: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> ContiguousKVCache:
        """Allocate the buffers; see `KVCache.allocate`."""
        if not isinstance(model, EncoderDecoderSpec | DecoderOnlySpec):
            raise UnsupportedError("a model without a decoder", "a KV cache")
        stack = model.decoder

        def zeros(attention: AttentionSpec, width: int) -> Tensor:
            groups = attention.num_kv_heads or attention.num_heads
            return torch.zeros(batch, groups, capacity, width, dtype=dtype, device=device)

        layers = []
        for n in range(stack.num_layers):
            attention = stack.block_at(n).attention
            width = attention.head_dim or stack.d_model // attention.num_heads
            keys, values = zeros(attention, width), zeros(attention, attention.value_dim or width)
            layers.append(LayerCache(k=keys, v=values))
        return cls(layers)

    @property
    def capacity(self) -> int:
        return self.layers[0].k.shape[2] if self.layers else 0

    def with_static_shapes(self) -> ContiguousKVCache:
        """Return the same buffers with `length` as a tensor: shapes never change, for compiled steps."""
        device = self.layers[0].k.device if self.layers else None
        return ContiguousKVCache(self.layers, torch.as_tensor(self.length, device=device))

    def begin_step(self, batch: int, steps: int) -> int:
        if self.layers and self.layers[0].k.shape[0] != batch:
            raise ConflictError(
                ("the cache's batch size", "the input's batch size"),
                f"{self.layers[0].k.shape[0]} against {batch}",
                hint="allocate it for this batch, or select() the rows to continue with",
            )
        if not isinstance(self.length, int):
            return self.capacity
        if self.layers and self.length + steps > self.capacity:
            raise CacheFullError(self.capacity, self.length, steps)
        return self.length + steps

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.layers[layer].append(k, v, self.length)

    def advance(self, steps: int = 1) -> None:
        if isinstance(self.length, int):
            self.length += steps
        else:
            self.length.add_(steps)

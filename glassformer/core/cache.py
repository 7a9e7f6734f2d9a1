"""Keys and values already computed, kept in buffers allocated once and handed to the forward.

Letters: B batch, G key/value heads, S keys, K head width.

`length` is how many positions are filled. As an int, each step sees just the filled part. As a 0-d
tensor (`Cache.fixed`), every step sees the whole buffer and the mask hides the rest: shapes never change,
so one compiled graph serves all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from glassformer.core.spec import DecoderOnly, EncoderDecoder, Model
from glassformer.errors import GlassformerError


@dataclass
class LayerCache:
    """One layer's keys and values: its own (filled step by step) and the encoder's (filled once)."""

    k: Tensor  # (B, G, max_len, K)
    v: Tensor
    cross: tuple[Tensor, Tensor] | None = None  # (B, G, S, K) each

    def append(self, k: Tensor, v: Tensor, start: int | Tensor) -> tuple[Tensor, Tensor]:
        """Write T new positions from `start` on; give back everything an attention should see."""
        if k.dtype != self.k.dtype and not torch.is_autocast_enabled(k.device.type):
            told, kept = (str(t.dtype).removeprefix("torch.") for t in (k, self.k))
            raise GlassformerError(
                f"the cache keeps {kept} and the model computes in {told}; "
                f"allocate it with dtype=torch.{told}"
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


@dataclass
class Cache:
    """The caches of all layers of a decoder, and how far they are filled.

    Use it under `torch.no_grad()`: the buffers are written in place.

    >>> from glassformer.core import spec
    >>> block = spec.Block(attention=spec.Attention(num_heads=4), feed_forward=spec.FeedForward(d_ff=64))
    >>> model = spec.DecoderOnly(
    ...     input=spec.Tokens(vocab_size=50), head=spec.LanguageModel(vocab_size=50),
    ...     decoder=spec.Stack(d_model=16, num_layers=2, block=block, causal=True))
    >>> cache = Cache.allocate(model, batch=3, max_len=10)
    >>> cache.select(torch.tensor([2, 0]))                  # a beam swapped, a finished sentence dropped
    >>> cache.layers[0].k.shape                             # (B, G, max_len, K)
    torch.Size([2, 4, 10, 4])
    """

    layers: list[LayerCache] = field(default_factory=list)
    length: int | Tensor = 0

    @classmethod
    def allocate(
        cls,
        model: Model,
        batch: int,
        max_len: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Cache:
        """Room for `max_len` positions of every decoder layer of a model (given by its spec)."""
        if not isinstance(model, EncoderDecoder | DecoderOnly):
            raise GlassformerError("only a model with a decoder keeps a cache")
        stack = model.decoder
        attention = stack.block.attention
        groups = attention.num_kv_heads or attention.num_heads
        key_width = attention.head_dim or stack.d_model // attention.num_heads
        value_width = attention.value_dim or key_width
        return cls(
            layers=[
                LayerCache(
                    k=torch.zeros(batch, groups, max_len, key_width, dtype=dtype, device=device),
                    v=torch.zeros(batch, groups, max_len, value_width, dtype=dtype, device=device),
                )
                for _ in range(stack.num_layers)
            ]
        )

    @property
    def max_len(self) -> int:
        return self.layers[0].k.shape[2] if self.layers else 0

    def fixed(self) -> Cache:
        """The same buffers with `length` as a tensor: unchanging shapes, for compiled steps."""
        device = self.layers[0].k.device if self.layers else None
        return Cache(self.layers, torch.as_tensor(self.length, device=device))

    def check_room(self, batch: int, steps: int) -> None:
        """One sentence where rows or `steps` more positions do not fit (these for an int length only)."""
        if self.layers and self.layers[0].k.shape[0] != batch:
            raise GlassformerError(
                f"the cache has {self.layers[0].k.shape[0]} rows and the input {batch}; "
                "allocate it for this batch, or select() the rows that go on"
            )
        if self.layers and isinstance(self.length, int) and self.length + steps > self.max_len:
            raise GlassformerError(
                f"the cache holds {self.max_len} positions and {self.length} are filled, so {steps} more "
                "do not fit; allocate it with a larger max_len"
            )

    def keys(self, steps: int) -> int:
        """How many keys an attention sees in a step of `steps` positions."""
        return self.length + steps if isinstance(self.length, int) else self.max_len

    def advance(self, steps: int) -> None:
        """Count `steps` positions as filled; called once, after all layers have written them."""
        if isinstance(self.length, int):
            self.length += steps
        else:
            self.length.add_(steps)

    def rewind(self, length: int) -> None:
        """Forget all positions from `length` on."""
        if isinstance(self.length, int):
            if not 0 <= length <= self.length:
                raise GlassformerError(f"cannot rewind to {length}: {self.length} positions are filled")
            self.length = length
        else:
            self.length.fill_(length)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order: beams are reordered, finished sentences dropped."""
        for layer in self.layers:
            layer.k = layer.k.index_select(0, rows)
            layer.v = layer.v.index_select(0, rows)
            if layer.cross is not None:
                k, v = layer.cross
                layer.cross = (k.index_select(0, rows), v.index_select(0, rows))

"""Blocks one after another, the positions that act inside attention, and a final norm.

Encoder and decoder are this one class: a decoder is causal and its blocks may attend to memory.
B batch, T positions, S keys, D d_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core.block import Block
from glassformer.core.cache import Cache
from glassformer.core.kernels import Kernel
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, child, seen
from glassformer.core.positions import AlibiBias, Place, RelativeBias, RotaryPositions, places_of
from glassformer.errors import GlassformerError


class Stack(nn.Module):
    """(B, T, D) -> (B, T, D) through every block.

    >>> from glassformer.core import build, spec
    >>> stack = build.stack(spec.Stack(d_model=16, num_layers=2, block=spec.Block(
    ...     attention=spec.Attention(num_heads=4), feed_forward=spec.FeedForward(d_ff=64))))
    >>> stack(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        causal: bool = False,
        position: RotaryPositions | RelativeBias | AlibiBias | None = None,
        final_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.position = position
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = final_norm

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        memory_mask: Mask | Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Tensor:
        """x (B, T, D), memory (B, S, D) -> (B, T, D).

        `positions` (B|1, T) say where each token stands (packed or left-padded rows); by default they
        go on from the cache's length. The masks are settled here once for all layers.
        """
        x = _streamed(x)
        batch, steps, _ = x.shape
        start = 0 if cache is None else cache.length
        keys = steps
        if cache is not None:
            cache.check_room(batch, steps)
            if len(cache.layers) != len(self.blocks):
                raise GlassformerError(
                    f"the cache has {len(cache.layers)} layers and the model {len(self.blocks)}; "
                    "allocate it from this model's spec"
                )
            keys = cache.keys(steps)
        own = Mask.of(mask)
        own = replace(own, causal=own.causal or self.causal)
        if isinstance(start, Tensor):
            own = replace(own, offset=start)
        place, settled, across = Place(), None, None
        if len(self.blocks):
            first: Any = self.blocks[0]  # speaks for all: they are alike
            own.check(batch=batch, heads=first.self_attn.num_heads, queries=steps, keys=keys)
            place = self.place(positions, start, steps, keys, own, x.device)
            settled = first.self_attn.settle(own, x, keys, dtype=x.dtype, bias=place.bias, kernel=kernel)
            if memory is not None and first.cross_attn is not None:
                there, far = Mask.of(memory_mask, "memory_mask"), memory.shape[1]
                heads = first.cross_attn.num_heads
                there.check(batch=batch, heads=heads, queries=steps, keys=far, what="memory_mask")
                across = first.cross_attn.settle(there, x, far, dtype=x.dtype, kernel=kernel)
        for n, block in enumerate(self.blocks):
            x = block(
                x,
                memory,
                mask=settled,
                memory_mask=across,
                place=place,
                cache=None if cache is None else cache.layers[n],
                start=start,
                kernel=kernel,
                obs=child(obs, f"blocks.{n}"),
            )
        if cache is not None:
            cache.advance(steps)
        if self.final_norm is not None:
            x = seen(obs, "final_norm", self.final_norm(x))
        return x

    def place(
        self,
        positions: Tensor | None,
        start: int | Tensor,
        steps: int,
        keys: int,
        mask: Mask,
        device: torch.device,
    ) -> Place:
        """What positions do inside attention, for T tokens from `start` on among `keys` keys."""
        if self.position is None:
            return Place()
        here = (torch.arange(steps, device=device) + start)[None]  # (1, T)
        place: Place
        if isinstance(self.position, RotaryPositions):
            place = self.position(here if positions is None else positions)
        elif (
            isinstance(self.position, AlibiBias)
            and self.position.rounding != "none"
            and (mask.padding is not None or mask.segments is not None)
        ):
            # a rounded bias knows where a key stands, not only how far away, so only its own document counts
            counted = places_of(mask.padding, mask.segments)
            place = self.position(counted.index_select(1, here[0]), counted)
        else:
            # only differences count for a bias, so row numbers serve padded and packed rows alike
            place = self.position(here, torch.arange(keys, device=device)[None])
        return place


def _streamed(x: Tensor) -> Tensor:
    """Under bfloat16 autocast the residual stream is bfloat16 too: half the bytes between the products.

    float16 lacks the range for a stream that only grows, so there it stays as it is.
    """
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return x
    if torch.get_autocast_dtype(kind) == torch.bfloat16:
        return x.to(torch.bfloat16)
    return x

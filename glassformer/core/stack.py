"""A stack of blocks, with the positions that act inside attention and an optional final norm.

Encoder and decoder are this one class: a decoder is causal and its blocks may attend to memory.
B batch, T positions, S keys, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from glassformer.core import backend
from glassformer.core.attention import AttentionBackend, DenseAttention, MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.heads import LayerOutput
from glassformer.core.kernels import Kernel
from glassformer.core.kv_cache import KVCache
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.positions import (
    AlibiBias,
    DisentangledPositions,
    PositionTerms,
    RelativeBias,
    RotaryPositions,
    count_positions,
)
from glassformer.core.spatial import Grid
from glassformer.errors import ConflictError

AttentionPosition = RotaryPositions | RelativeBias | AlibiBias | DisentangledPositions


class Stack(nn.Module):
    """An encoder, or a decoder if `causal`: a sequence of blocks, (B, T, D) -> (B, T, D).

    blocks: the layers
    causal: whether a position attends only to itself and earlier positions; True for a decoder
    position: positions that act inside attention: RotaryPositions, RelativeBias, AlibiBias or
    DisentangledPositions
    final_norm: norm after the last block, usual with wiring "pre"
    local_position: positions of layers with a window, if different from `position`
    first_norm: whether the first block normalizes its input; False if the embedding does

    >>> from glassformer.core import build, spec
    >>> stack = build.build_stack(spec.StackSpec(d_model=16, num_layers=2, block=spec.BlockSpec(
    ...     attention=spec.AttentionSpec(num_heads=4), feed_forward=spec.FeedForwardSpec(d_ff=64))))
    >>> stack(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        causal: bool = False,
        position: AttentionPosition | None = None,
        local_position: AttentionPosition | None = None,
        final_norm: nn.Module | None = None,
        first_norm: bool = True,
    ) -> None:
        super().__init__()
        if not first_norm and blocks:
            blocks[0].norm_self = None
        self.causal = causal
        self.position = position
        self.local_position = local_position
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
        cache: KVCache | None = None,
        kernel: Kernel = "auto",
        grid: Grid | None = None,
        position_embeddings: Tensor | None = None,
        memory_position_embeddings: Tensor | None = None,
        layer_positions: Tensor | None = None,
        states: list[LayerOutput] | None = None,
        obs: Observer | None = None,
    ) -> Tensor:
        """x (B, T, D), memory (B, S, D) -> (B, T, D).

        `positions` (B|1, T) are position ids (for packed or left-padded rows); by default they continue from
        the cache's length. `grid`: rows and columns, if the tokens form a 2-D grid. `position_embeddings`
        (B|1, T, D) and `memory_position_embeddings` (B|1, S, D) are added to the inputs of queries and keys
        of every layer, but not of values. `layer_positions` (layers - 1, 1, T, D) are added to the outputs of
        all layers but the last. `states`: a list that receives the input and the output of each layer, before
        the final norm. Masks and position terms are prepared once for all layers that share them.
        """
        x = backend.residual_stream(x)
        if cache is not None:
            cache.check_capacity(x.shape[0], x.shape[1])
            if len(cache.layers) != len(self.blocks):
                raise ConflictError(
                    ("cache", "model"),
                    f"{len(cache.layers)} layers against {len(self.blocks)}",
                    hint="allocate the cache from this model's spec",
                )
        attend = self._dense(x, Mask.of(mask), positions, cache, kernel, grid)
        cross_attend = self._dense_cross(x, memory, memory_mask, cache, kernel)
        if states is not None:
            states.append(LayerOutput(x, grid))
        x = self.run(
            x,
            attend,
            cross_attend,
            memory=memory,
            position_embeddings=position_embeddings,
            memory_position_embeddings=memory_position_embeddings,
            layer_positions=layer_positions,
            grid=grid,
            states=states,
            obs=obs,
        )
        if cache is not None:
            cache.advance(x.shape[1])
        return x

    def output_grid(self, grid: Grid) -> Grid:
        """Return rows and columns of the output, which are those of the input."""
        return grid

    def run(
        self,
        x: Tensor,
        attend: Sequence[AttentionBackend],
        cross_attend: Sequence[AttentionBackend] | None = None,
        *,
        memory: Tensor | None = None,
        position_embeddings: Tensor | None = None,
        memory_position_embeddings: Tensor | None = None,
        layer_positions: Tensor | None = None,
        grid: Grid | None = None,
        states: list[LayerOutput] | None = None,
        obs: Observer | None = None,
    ) -> Tensor:
        """Run x through all blocks and the final norm, with a prepared attention backend for each layer.

        states: if given, the output of each block is appended, with its `grid`.
        """
        for n, block in enumerate(self.blocks):
            x = block(
                x,
                memory,
                attend=attend[n],
                cross_attend=None if cross_attend is None else cross_attend[n],
                position_embeddings=position_embeddings,
                memory_position_embeddings=memory_position_embeddings,
                obs=scope(obs, f"blocks.{n}"),
            )
            if layer_positions is not None and n < len(layer_positions):
                x = x + layer_positions[n].to(x.dtype)
            if states is not None:
                states.append(LayerOutput(x, grid))
        if self.final_norm is not None:
            x = tap(obs, "final_norm", self.final_norm(x))
        return x

    @property
    def attentions(self) -> list[MultiHeadAttention]:
        """The self-attention of every layer; empty if it is deformable."""
        attentions = [cast(Block, block).self_attn for block in self.blocks]
        return [attention for attention in attentions if isinstance(attention, MultiHeadAttention)]

    @property
    def cross_attentions(self) -> list[MultiHeadAttention]:
        """The cross-attention of every layer; empty if there is none."""
        attentions = [cast(Block, block).cross_attn for block in self.blocks]
        return [attention for attention in attentions if attention is not None]

    def _dense(
        self,
        x: Tensor,
        mask: Mask,
        positions: Tensor | None,
        cache: KVCache | None,
        kernel: Kernel,
        grid: Grid | None,
    ) -> list[DenseAttention]:
        """Prepare the self-attention backend of each layer, for padded rows."""
        batch, steps, _ = x.shape
        start = 0 if cache is None else cache.length
        keys = steps if cache is None else cache.num_keys(steps)
        mask = replace(mask, causal=mask.causal or self.causal)
        if isinstance(start, Tensor):
            mask = replace(mask, offset=start)

        def prepare(attention: MultiHeadAttention) -> DenseAttention:
            if attention.spatial_window is not None:
                return attention.prepare_windows(grid, x, kernel)
            terms = self.position_terms(
                positions, start, steps, keys, mask, x.device, window=attention.window
            )._replace(grid=grid)
            prepared = attention.prepare_mask(
                mask, batch=batch, queries=steps, keys=keys, like=x, terms=terms, kernel=kernel
            )
            return DenseAttention(prepared, terms)

        return _by_kind(self.attentions, prepare, cache)

    def _dense_cross(
        self,
        x: Tensor,
        memory: Tensor | None,
        memory_mask: Mask | Tensor | None,
        cache: KVCache | None,
        kernel: Kernel,
    ) -> list[DenseAttention] | None:
        if memory is None or not self.cross_attentions:
            return None
        mask, (batch, steps, _), keys = Mask.of(memory_mask, "memory_mask"), x.shape, memory.shape[1]

        def prepare(attention: MultiHeadAttention) -> DenseAttention:
            prepared = attention.prepare_mask(
                mask, batch=batch, queries=steps, keys=keys, like=x, kernel=kernel, name="memory_mask"
            )
            return DenseAttention(prepared, cross=True)

        return _by_kind(self.cross_attentions, prepare, cache)

    def position_of(self, window: int | None) -> AttentionPosition | None:
        """Return the position encoding of layers with this window."""
        local = window is not None and self.local_position is not None
        return self.local_position if local else self.position

    def position_terms(
        self,
        positions: Tensor | None,
        start: int | Tensor,
        steps: int,
        keys: int,
        mask: Mask,
        device: torch.device,
        *,
        window: int | None = None,
    ) -> PositionTerms:
        """Compute the position terms of `steps` tokens from position `start` on, attending to `keys` keys."""
        position = self.position_of(window)
        if position is None:
            return PositionTerms()
        default = (torch.arange(steps, device=device) + start)[None]  # (1, T)
        terms: PositionTerms
        if isinstance(position, RotaryPositions):
            terms = position(default if positions is None else positions)
        elif (
            isinstance(position, AlibiBias)
            and position.rounding != "none"
            and (mask.padding is not None or mask.segments is not None)
        ):
            # a rounded bias depends on absolute positions, so they are counted within each document
            counted = count_positions(mask.padding, mask.segments)
            terms = position(counted.index_select(1, default[0]), counted)
        else:
            # a bias depends only on differences, so column indices work for padded and packed rows too
            terms = position(default, torch.arange(keys, device=device)[None])
        return terms


def layer_kind(attention: MultiHeadAttention) -> tuple[object, ...]:
    """Return a key that is equal for layers that can share masks and position terms."""
    return (
        attention.num_heads,
        attention.window,
        attention.dropout,
        attention.softcap,
        attention.spatial_window,
        attention.position_bias is not None,
    )


def _by_kind(
    attentions: list[MultiHeadAttention],
    prepare: Callable[[MultiHeadAttention], DenseAttention],
    cache: KVCache | None,
) -> list[DenseAttention]:
    """Return the backend of each layer; `prepare` is called once per `layer_kind`."""
    kinds: dict[object, DenseAttention] = {}
    layers = []
    for n, attention in enumerate(attentions):
        kind = layer_kind(attention)
        if kind not in kinds:
            kinds[kind] = prepare(attention)
        layers.append(kinds[kind] if cache is None else kinds[kind]._replace(cache=cache, layer=n))
    return layers

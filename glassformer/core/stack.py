"""A stack of blocks, with the positions that act inside attention and an optional final norm.

Encoder and decoder are this one class: a decoder is causal and its blocks may attend to memory.
`prepare` turns masks, positions and the KV cache into one context per layer; `run` passes the residual stream
through the blocks.
B batch, T positions, S keys, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from glassformer.core import backend
from glassformer.core.attention import AttentionBackend, DenseAttention, MultiHeadAttention, PreparedAttention
from glassformer.core.block import Block, LayerContext
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.inputs import Memory
from glassformer.core.kernels import Kernel
from glassformer.core.kv_cache import KVCache
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.positions import AttentionPosition, Grid, PositionTerms
from glassformer.errors import ConflictError

# number of the layer, x before it, its context -> x and context to use
LayerHook = Callable[[int, Tensor, LayerContext], tuple[Tensor, LayerContext]]


class LayerOutput(NamedTuple):
    """The hidden states (B, T, D) after a layer, and the rows and columns of the image patches in them."""

    x: Tensor
    grid: Grid | None


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
        x: Tensor | EmbeddingOutput,
        memory: Tensor | Memory | None = None,
        *,
        cache: KVCache | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Tensor:
        """x (B, T, D), memory (B, S, D) -> (B, T, D).

        x and memory are vectors alone, or with their masks and positions. With a cache, x are the next
        positions, and the mask covers the keys so far.
        """
        source = EmbeddingOutput.of(x)
        source = source._replace(x=backend.residual_stream(source.x))
        layers = self.prepare(source, memory, cache=cache, kernel=kernel, obs=obs)
        hook = None if source.layer_positions is None else _position_adder(source.layer_positions)
        out = self.finish(self.run(source.x, layers, hook), obs)
        if cache is not None:
            cache.advance(out.shape[1])
        return out

    def run(self, x: Tensor, layers: Sequence[LayerContext], hook: LayerHook | None = None) -> Tensor:
        """Run x through all blocks, each with its prepared context. hook: called before each layer."""
        for n, block in enumerate(self.blocks):
            context = layers[n]
            if hook is not None:
                x, context = hook(n, x, context)
            x = block(x, context)
        return x

    def finish(self, x: Tensor, obs: Observer | None = None) -> Tensor:
        """Apply the final norm, if any, to the output of the last block."""
        return x if self.final_norm is None else tap(obs, "final_norm", self.final_norm(x))

    def layer_outputs(
        self,
        source: EmbeddingOutput,
        memory: Memory | None = None,
        *,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[LayerOutput, ...]:
        """Return the input of the first layer and the output of every layer, before the final norm."""
        source = source._replace(x=backend.residual_stream(source.x))
        states = []

        def collect(n: int, x: Tensor, context: LayerContext) -> tuple[Tensor, LayerContext]:
            states.append(LayerOutput(x, source.grid))
            return x, context

        last = self.run(source.x, self.prepare(source, memory, kernel=kernel, obs=obs), collect)
        return *states, LayerOutput(last, source.grid)

    def output_grid(self, grid: Grid) -> Grid:
        """Return rows and columns of the output, which are those of the input."""
        return grid

    @property
    def attentions(self) -> list[MultiHeadAttention]:
        """The self-attention of every layer; empty if it is deformable."""
        attentions = [cast(Block, block).self_attn for block in self.blocks]
        return [attention for attention in attentions if isinstance(attention, MultiHeadAttention)]

    @property
    def cross_attentions(self) -> list[MultiHeadAttention]:
        """The cross-attention of every layer that has it."""
        attentions = [cast(Block, block).cross_attn for block in self.blocks]
        return [attention for attention in attentions if attention is not None]

    # ---- the contexts of the layers ----------------------------------------------------------------------

    def prepare(
        self,
        source: EmbeddingOutput,
        memory: Tensor | Memory | None = None,
        *,
        cache: KVCache | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> list[LayerContext]:
        """Prepare the context of every layer; masks and positions once for all layers that share them."""
        if cache is not None and len(cache.layers) != len(self.blocks):
            raise ConflictError(
                ("cache", "model"),
                f"{len(cache.layers)} layers against {len(self.blocks)}",
                hint="allocate the cache from this model's spec",
            )
        attend = self._self_attention(source, cache, kernel)
        memory = source.memory if memory is None else Memory.of(memory)
        cross = self._cross_attention(source, memory, cache, kernel)
        return [
            LayerContext(*backends, source.condition, source.grid, scope(obs, f"blocks.{n}"))
            for n, backends in enumerate(zip(attend, cross, strict=True))
        ]

    def _self_attention(
        self, source: EmbeddingOutput, cache: KVCache | None, kernel: Kernel
    ) -> list[AttentionBackend]:
        batch, steps = source.x.shape[:2]
        start = 0 if cache is None else cache.length
        keys = steps if cache is None else cache.begin_step(batch, steps)
        mask = source.mask.with_causal() if self.causal else source.mask
        if isinstance(start, Tensor):
            mask = replace(mask, offset=start)

        def prepare(attention: MultiHeadAttention) -> PreparedAttention:
            terms = self.position_terms(
                source.positions, start, steps, keys, mask, source.x.device, window=attention.window
            )._replace(grid=source.grid)
            prepared = attention.prepare(source.x, mask, terms=terms, keys=keys, kernel=kernel)
            if source.position_embeddings is not None and isinstance(prepared, DenseAttention):
                prepared = prepared._replace(position=source.position_embeddings)
            return prepared

        return self._by_kind(self.attentions, prepare, cache)

    def _cross_attention(
        self, source: EmbeddingOutput, memory: Memory | None, cache: KVCache | None, kernel: Kernel
    ) -> Sequence[AttentionBackend | None]:
        if memory is None or not self.cross_attentions:
            return [None] * len(self.blocks)

        def prepare(attention: MultiHeadAttention) -> PreparedAttention:
            prepared = attention.prepare(source.x, memory.mask, memory.x, kernel=kernel)
            if isinstance(prepared, DenseAttention):
                positions = (source.position_embeddings, memory.position)
                prepared = prepared._replace(position=positions[0], memory_position=positions[1])
            return prepared

        return self._by_kind([cast(Block, block).cross_attn for block in self.blocks], prepare, cache)

    def _by_kind(
        self,
        attentions: Sequence[MultiHeadAttention | None],
        prepare: Callable[[MultiHeadAttention], PreparedAttention],
        cache: KVCache | None,
    ) -> list[Any]:
        """Return the backend of each layer, if it has this attention; `prepare` is called once per kind."""
        kinds: dict[object, PreparedAttention] = {}
        layers: list[AttentionBackend | None] = []
        for n, attention in enumerate(attentions):
            if attention is None:
                layers.append(None)
                continue
            if attention.kind not in kinds:
                kinds[attention.kind] = prepare(attention)
            norm = cast(Block, self.blocks[n]).norm_self
            layers.append(kinds[attention.kind].at_layer(n, norm, cache))
        return layers

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
        return position.terms(default if positions is None else positions, default, keys, mask)


def _position_adder(positions: Tensor) -> LayerHook:
    """Return a hook that adds positions (layers - 1, 1, T, D) to the outputs of all layers but the last."""

    def add(n: int, x: Tensor, context: LayerContext) -> tuple[Tensor, LayerContext]:
        return (x + positions[n - 1].to(x.dtype) if 0 < n <= len(positions) else x), context

    return add

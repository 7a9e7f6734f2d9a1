"""Convolutional parts of autoencoders and UNets: residual layers, attention among cells, resampling.

A level works at one resolution; a path is a sequence of levels. Cells of a feature map (B, C, h, w) are the
tokens (B, h * w, C) of attention, row by row.
B batch, C channels, h and w rows and columns, S text vectors, E width of the condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.attention import make_attention
from glassformer.core.backend import Linear
from glassformer.core.build import build_stack
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.inputs import Memory
from glassformer.core.kernels import Kernel
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.vision.grid import cells_to_map, map_to_cells

TRANSFORMER_EPS = 1e-6  # of the group norm before attention, whatever that of the convolutions is


class LevelContext(NamedTuple):
    """All that the levels need besides the feature maps.

    condition: (B, E) after its activation, such as a time step; added inside of every residual layer
    memory: text vectors (B, S, D) for cross-attention
    maps: receives the map after every layer and after downsampling
    skips: maps that are taken from the end of the list and concatenated to the input of the layers
    """

    condition: Tensor | None = None
    memory: Memory | None = None
    maps: list[Tensor] | None = None
    skips: list[Tensor] | None = None
    kernel: Kernel = "auto"
    obs: Observer | None = None


def group_norm(channels: int, spec: specs.GroupNormSpec) -> nn.GroupNorm:
    """Build a group norm over feature maps (B, C, h, w)."""
    return nn.GroupNorm(spec.groups, channels, eps=spec.eps)


class ResidualConvolutions(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x))) + condition))), with 3x3 convolutions.

    condition_dim: width of the condition; None: there is none
    shortcut: a 1x1 convolution of x, if the width changes

    >>> layer = ResidualConvolutions(8, 16, norm=specs.GroupNormSpec(groups=4), condition_dim=5)
    >>> layer(torch.randn(2, 8, 6, 7), torch.randn(2, 5)).shape
    torch.Size([2, 16, 6, 7])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        norm: specs.GroupNormSpec,
        condition_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.norm1 = group_norm(in_channels, norm)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.condition = None if condition_dim is None else Linear(condition_dim, out_channels)
        self.norm2 = group_norm(out_channels, norm)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        changed = in_channels != out_channels
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1) if changed else None

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """x (B, in_channels, h, w), condition (B, E) -> (B, out_channels, h, w)."""
        y = self.conv1(F.silu(self.norm1(x)))
        if self.condition is not None:
            y = y + self.condition(condition)[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        out: Tensor = y + (x if self.shortcut is None else self.shortcut(x))
        return out


class CellAttention(nn.Module):
    """x + attention(norm(x)) among the cells of a feature map.

    >>> cells = CellAttention(8, specs.AttentionSpec(num_heads=1), specs.GroupNormSpec(groups=4))
    >>> cells(torch.randn(2, 8, 5, 6), LevelContext()).shape
    torch.Size([2, 8, 5, 6])
    """

    def __init__(self, channels: int, spec: specs.AttentionSpec, norm: specs.GroupNormSpec) -> None:
        super().__init__()
        self.norm = group_norm(channels, norm)
        self.attention = make_attention(channels, spec)

    def forward(self, x: Tensor, context: LevelContext) -> Tensor:
        cells = map_to_cells(self.norm(x))
        attend = self.attention.prepare(cells, kernel=context.kernel).at_layer(0, None, None)
        cells = self.attention(cells, attend, obs=scope(context.obs, "attention"))
        return x + cells_to_map(cells, (x.shape[2], x.shape[3]))


class CellTransformer(nn.Module):
    """x + proj_out(stack(proj_in(norm(x)))): Transformer layers over the cells, with the text as memory.

    memory_dim: width of the text vectors

    >>> block = specs.BlockSpec(attention=specs.AttentionSpec(num_heads=2), wiring="pre",
    ...                         feed_forward=specs.FeedForwardSpec(d_ff=16))
    >>> cells = CellTransformer(specs.StackSpec(d_model=8, num_layers=1, block=block), groups=4)
    >>> cells(torch.randn(2, 8, 5, 6), LevelContext()).shape
    torch.Size([2, 8, 5, 6])
    """

    def __init__(self, spec: specs.StackSpec, *, groups: int, memory_dim: int | None = None) -> None:
        super().__init__()
        self.norm = group_norm(spec.d_model, specs.GroupNormSpec(groups=groups, eps=TRANSFORMER_EPS))
        self.proj_in = Linear(spec.d_model, spec.d_model)
        self.stack = build_stack(spec, memory_dim=memory_dim)
        self.proj_out = Linear(spec.d_model, spec.d_model)

    def forward(self, x: Tensor, context: LevelContext) -> Tensor:
        obs, grid = context.obs, (x.shape[2], x.shape[3])
        cells = tap(obs, "proj_in", self.proj_in(map_to_cells(self.norm(x))))
        source = EmbeddingOutput(cells, Mask(), grid=grid)
        cells = self.stack(source, context.memory, kernel=context.kernel, obs=scope(obs, "stack"))
        return x + cells_to_map(tap(obs, "proj_out", self.proj_out(cells)), grid)


class Downsample(nn.Module):
    """A 3x3 convolution of stride 2: half the rows and columns.

    pad_end: zeros are added only below and right of the map, which rounds down; otherwise on all sides.
    """

    def __init__(self, channels: int, *, pad_end: bool) -> None:
        super().__init__()
        self.pad_end = pad_end
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, padding=0 if pad_end else 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.pad(x, (0, 1, 0, 1)) if self.pad_end else x)
        return out


class Upsample(nn.Module):
    """Repeat every cell, then a 3x3 convolution: twice the rows and columns, or those of `size`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor, size: Sequence[int] | None = None) -> Tensor:
        size = (2 * x.shape[2], 2 * x.shape[3]) if size is None else tuple(size)
        out: Tensor = self.conv(F.interpolate(x, size, mode="nearest"))
        return out


class Level(nn.Module):
    """Residual layers at one resolution, with attention after them; then another resolution.

    in_channels: of every layer, those of its skip included

    >>> level = Level(specs.LevelSpec(width=8, num_layers=2, resample="down"), (4, 8),
    ...               norm=specs.GroupNormSpec(groups=4))
    >>> level(torch.randn(1, 4, 6, 6), LevelContext()).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(
        self,
        spec: specs.LevelSpec,
        in_channels: Sequence[int],
        *,
        norm: specs.GroupNormSpec,
        condition_dim: int | None = None,
        memory_dim: int | None = None,
        pad_end: bool = True,
    ) -> None:
        super().__init__()
        width = spec.width
        self.layers = nn.ModuleList(
            ResidualConvolutions(channels, width, norm=norm, condition_dim=condition_dim)
            for channels in in_channels
        )
        self.attentions = nn.ModuleList(
            CellTransformer(spec.attention, groups=norm.groups, memory_dim=memory_dim)
            if isinstance(spec.attention, specs.StackSpec)
            else CellAttention(width, spec.attention, norm)  # type: ignore[arg-type]
            for _ in range(spec.num_attentions)
        )
        self.down = Downsample(width, pad_end=pad_end) if spec.resample == "down" else None
        self.up = Upsample(width) if spec.resample == "up" else None

    def forward(self, x: Tensor, context: LevelContext) -> Tensor:
        obs, maps, skips = context.obs, context.maps, context.skips
        for n, layer in enumerate(self.layers):
            x = x if skips is None else torch.cat((x, skips.pop()), 1)
            x = tap(obs, f"layers.{n}", layer(x, context.condition))
            if n < len(self.attentions):
                inner = context._replace(obs=scope(obs, f"attentions.{n}"))
                x = tap(obs, f"attentions.{n}", self.attentions[n](x, inner))
            if maps is not None:
                maps.append(x)
        if self.down is not None:
            x = tap(obs, "down", self.down(x))
            if maps is not None:
                maps.append(x)
        if self.up is not None:
            x = tap(obs, "up", self.up(x, skips[-1].shape[2:] if skips else None))
        return x


class Path(nn.Module):
    """Levels one after another, (B, C, h, w) -> (B, width, h, w) of the last one.

    width: channels of the input
    skips: channels of the maps that the layers also read, which are taken from the end
    """

    def __init__(
        self,
        levels: specs.LevelSpecs,
        width: int,
        *,
        norm: specs.GroupNormSpec,
        skips: Sequence[int] | None = None,
        condition_dim: int | None = None,
        memory_dim: int | None = None,
        pad_end: bool = True,
    ) -> None:
        super().__init__()
        options = {"condition_dim": condition_dim, "memory_dim": memory_dim, "pad_end": pad_end}
        self.levels = nn.ModuleList(
            Level(level, channels, norm=norm, **options)  # type: ignore[arg-type]
            for level, channels in zip(levels, specs.input_widths(levels, width, skips), strict=True)
        )

    def forward(self, x: Tensor, context: LevelContext) -> Tensor:
        for n, level in enumerate(self.levels):
            x = level(x, context._replace(obs=scope(context.obs, f"levels.{n}")))
        return x


class MapHead(nn.Module):
    """Group norm, SiLU and a 3x3 convolution: (B, width, h, w) -> (B, channels, h, w)."""

    def __init__(self, width: int, channels: int, norm: specs.GroupNormSpec) -> None:
        super().__init__()
        self.norm = group_norm(width, norm)
        self.conv = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x: Tensor, *, obs: Observer | None = None) -> Tensor:
        return tap(obs, "out", self.conv(F.silu(self.norm(x))))

"""Pixel decoders: turn the feature maps of a backbone into pixel embeddings and the memory of a decoder.

B batch, C channels, D width, h and w rows and columns, S cells of all maps that attend to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.attention import AttentionBackend
from glassformer.core.backend import normal_table
from glassformer.core.block import LayerContext
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.stack import Stack
from glassformer.core.vision.convolution.pyramid import FeaturePyramid, GroupNormConv, PyramidLevel
from glassformer.core.vision.deformable import SamplingPoints
from glassformer.core.vision.grid import Sinusoidal2dPositions, cells_to_map, map_to_cells
from glassformer.core.vision.heads import BackboneOutput

NUM_LEVELS = 3  # coarsest maps of the backbone that attend to each other


class PixelFeatures(NamedTuple):
    """Pixel embeddings (B, mask_dim, h, w), and the feature maps (B, C, h, w) that a decoder reads."""

    embeddings: Tensor
    memory: tuple[Tensor, ...]


def feature_maps(backbone: nn.Module, images: Tensor, obs: Observer | None) -> tuple[Tensor, ...]:
    """Return the feature maps (B, C, h, w) of images, fine to coarse."""
    output = backbone(images, obs=scope(obs, "backbone"))
    maps: tuple[Tensor, ...] = output.feature_maps if isinstance(output, BackboneOutput) else output
    return maps


class PyramidPixelDecoder(nn.Module):
    """A feature pyramid network; the memory is the coarsest map of the backbone.

    backbone: network that returns feature maps of an image, fine to coarse
    channels: of these maps
    mask_dim: channels of the pixel embeddings
    """

    def __init__(
        self, backbone: nn.Module, channels: Sequence[int], spec: specs.FeaturePyramidSpec, *, mask_dim: int
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pyramid = FeaturePyramid(channels, width=spec.width, mask_dim=mask_dim)
        self.memory_channels = (channels[-1],)

    def forward(self, images: Tensor, *, obs: Observer | None = None) -> PixelFeatures:
        """images (B, C, height, width) -> pixel embeddings and one map."""
        features = feature_maps(self.backbone, images, obs)
        return PixelFeatures(tap(obs, "out", self.pyramid(features)), (features[-1],))


class DeformablePixelDecoder(nn.Module):
    """Deformable attention among the three coarsest maps, then a feature pyramid for the finer ones.

    The memory is these three maps, coarse to fine.

    backbone: network that returns feature maps of an image, fine to coarse
    channels: of these maps
    mask_dim: channels of the pixel embeddings
    encoder: stack of blocks with deformable attention
    """

    def __init__(
        self,
        backbone: nn.Module,
        channels: Sequence[int],
        spec: specs.DeformablePixelDecoderSpec,
        *,
        mask_dim: int,
        encoder: Stack,
    ) -> None:
        super().__init__()
        width = spec.width
        self.backbone = backbone
        self.inputs = nn.ModuleList(
            GroupNormConv(c, width, kernel_size=1, bias=True, relu=False)
            for c in reversed(channels[-NUM_LEVELS:])
        )
        self.level = normal_table(NUM_LEVELS, width)
        self.position = Sinusoidal2dPositions(width)
        self.encoder = encoder
        self.levels = nn.ModuleList(
            PyramidLevel(c, width, "bilinear") for c in reversed(channels[: spec.num_finer])
        )
        self.project = nn.Conv2d(width, mask_dim, 1)
        self.num_finer = spec.num_finer
        self.memory_channels = (width,) * NUM_LEVELS

    def forward(self, images: Tensor, *, obs: Observer | None = None) -> PixelFeatures:
        """images (B, C, height, width) -> pixel embeddings and three maps."""
        features = feature_maps(self.backbone, images, obs)
        coarse = features[-NUM_LEVELS:][::-1]
        maps = [layer(feature) for layer, feature in zip(self.inputs, coarse, strict=True)]
        grids = tuple((level.shape[2], level.shape[3]) for level in maps)
        x = torch.cat([map_to_cells(level) for level in maps], 1)  # (B, S, D)
        positions = [
            self.position(grid, None, x.device) + level for grid, level in zip(grids, self.level, strict=True)
        ]
        points = cast(AttentionBackend, SamplingPoints.of(grids, torch.cat(positions, 1).to(x.dtype)))
        encoder = scope(obs, "encoder")
        layers = [
            LayerContext(points, obs=scope(encoder, f"blocks.{n}")) for n in range(len(self.encoder.blocks))
        ]
        x = self.encoder.finish(self.encoder.run(x, layers), encoder)
        cells = x.split([rows * columns for rows, columns in grids], 1)
        memory = tuple(cells_to_map(level, grid) for level, grid in zip(cells, grids, strict=True))
        finest = memory[-1]
        for level, lateral in zip(self.levels, reversed(features[: self.num_finer]), strict=True):
            finest = level(finest, lateral)
        return PixelFeatures(tap(obs, "out", self.project(finest)), memory)


PixelDecoder = PyramidPixelDecoder | DeformablePixelDecoder

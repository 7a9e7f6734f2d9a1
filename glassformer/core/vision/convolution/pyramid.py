"""Feature pyramids: merge the feature maps of a backbone from coarse to fine.

B batch, C channels, h and w rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

NUM_GROUPS = 32  # of the group norms, in all published models


class GroupNormConv(nn.Module):
    """Convolution, group norm and optional ReLU; rows and columns stay the same.

    kernel_size: odd number of rows and columns of the kernel

    >>> import torch
    >>> GroupNormConv(3, 32, kernel_size=3)(torch.randn(1, 3, 5, 6)).shape
    torch.Size([1, 32, 5, 6])
    """

    def __init__(
        self, channels: int, width: int, *, kernel_size: int, bias: bool = False, relu: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, kernel_size, padding=kernel_size // 2, bias=bias)
        self.norm = nn.GroupNorm(NUM_GROUPS, width)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, h, w) -> (B, width, h, w)."""
        x = self.norm(self.conv(x))
        return F.relu(x) if self.relu else x


class PyramidLevel(nn.Module):
    """One step of a top-down path: resize the coarser map, add the lateral map, convolve.

    channels: of the lateral map
    mode: how the coarser map is resized
    """

    def __init__(self, channels: int, width: int, mode: Literal["nearest", "bilinear"]) -> None:
        super().__init__()
        self.lateral = GroupNormConv(channels, width, kernel_size=1, relu=False)
        self.out = GroupNormConv(width, width, kernel_size=3)
        self.mode = mode

    def forward(self, x: Tensor, lateral: Tensor) -> Tensor:
        """x (B, width, h, w), lateral (B, C, h', w') -> (B, width, h', w')."""
        lateral = self.lateral(lateral)
        merged: Tensor = self.out(F.interpolate(x, lateral.shape[-2:], mode=self.mode) + lateral)
        return merged


class FeaturePyramid(nn.Module):
    """Feature pyramid network (FPN): the finest map gets the content of all coarser ones.

    channels: of the feature maps, fine to coarse
    width: channels inside the pyramid
    mask_dim: channels of the result

    >>> import torch
    >>> maps = [torch.randn(1, 4, 8, 8), torch.randn(1, 8, 4, 4)]
    >>> FeaturePyramid((4, 8), width=32, mask_dim=16)(maps).shape
    torch.Size([1, 16, 8, 8])
    """

    def __init__(self, channels: Sequence[int], *, width: int, mask_dim: int) -> None:
        super().__init__()
        self.stem = GroupNormConv(channels[-1], width, kernel_size=3)
        self.levels = nn.ModuleList(PyramidLevel(c, width, "nearest") for c in reversed(channels[:-1]))
        self.project = nn.Conv2d(width, mask_dim, 3, padding=1)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Feature maps (B, C, h, w), fine to coarse -> pixel embeddings (B, mask_dim, h, w) of the finest."""
        x = self.stem(features[-1])
        for level, lateral in zip(self.levels, reversed(features[:-1]), strict=True):
            x = level(x, lateral)
        pixels: Tensor = self.project(x)
        return pixels

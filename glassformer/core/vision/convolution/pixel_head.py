"""A head that predicts the class of every pixel, and which object it belongs to, from a grid of patches.

B images, D d_model, C width of the decoder, L labels, H and W height and width of the image.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.observe import Observer, tap
from glassformer.core.vision.grid import cells_to_map

if TYPE_CHECKING:
    from glassformer.core.heads import HeadContext

COARSEST = 8  # stride of the coarsest features of the image itself
GROUPS = 8  # of the group norms


class PixelOutput(NamedTuple):
    """Classes of all pixels, and for instances the object that each pixel points to."""

    logits: Tensor  # (B, L, H, W); for instances (B, L + 1, H, W), the last one is "no object"
    offsets: Tensor | None = None  # (B, 2, H, W), x and y in pixels from a pixel to the center of its object


class ConvBlock(nn.Module):
    """A 3 x 3 convolution, group norm and GELU; `stride` 2 halves the resolution."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(GROUPS, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.conv(x)))


class PixelHead(nn.Module):
    """Decode patches (B, T, D) into pixels: a linear layer, or convolutions that also see the image.

    The convolutional decoder doubles the resolution step by step. Each step adds features of the image
    itself, which keep the borders sharp that the patches blur (as in a U-Net).

    stem: strided convolutions of the image. up: one pair of convolutions per resolution.
    """

    def __init__(self, d_model: int, spec: specs.PixelsSpec) -> None:
        super().__init__()
        self.spec = spec
        width = spec.decoder_dim
        outputs = spec.num_labels + 3 * spec.instances  # "no object", and x and y of the offset
        self.stem, self.up = nn.ModuleList(), nn.ModuleList()
        if not width:
            self.out = nn.Conv2d(d_model, outputs, 1)
            return
        widths = {stride: width * stride // COARSEST for stride in (1, 2, 4, 8)}
        strides = [stride for stride in widths if stride >= spec.stride]  # fine to coarse
        channels = spec.channels
        for stride in widths:
            self.stem.append(ConvBlock(channels, widths[stride], stride=1 if stride == 1 else 2))
            channels = widths[stride]
        self.project = nn.Conv2d(d_model, width, 1)
        for stride in reversed(strides):
            below = width if stride == COARSEST else widths[2 * stride]
            own = widths[stride]
            self.up.append(nn.Sequential(ConvBlock(below + own, own), ConvBlock(own, own)))
        self.out = nn.Conv2d(widths[spec.stride], outputs, 1)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> PixelOutput:
        assert context.grid is not None and context.images is not None
        y = cells_to_map(x[:, -math.prod(context.grid) :], context.grid)  # (B, D, rows, columns)
        if self.spec.decoder_dim:
            features, image = [], context.images.to(y.dtype)
            for block in self.stem:
                image = block(image)
                features.append(image)
            y = self.project(y)
            for block, skip in zip(self.up, reversed(features), strict=False):
                y = F.interpolate(y, skip.shape[2:], mode="bilinear", align_corners=False)
                y = block(torch.cat((y, skip), 1))
        y = F.interpolate(self.out(y), context.images.shape[2:], mode="bilinear", align_corners=False)
        if not self.spec.instances:
            return PixelOutput(tap(obs, "logits", y))
        return PixelOutput(tap(obs, "logits", y[:, :-2]), tap(obs, "offsets", y[:, -2:]))

"""Residual networks (ResNet): a stem, then stages of residual layers, each at a lower resolution.

images (B, C, H, W) --stem, 1/4--> stage 1 --> stage 2, 1/8 --> stage 3, 1/16 --> stage 4, 1/32

B batch, C channels, H height, W width.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.observe import Observer, tap
from glassformer.core.vision.convolution.layers import ConvNorm

_REDUCTION = 4  # of the width inside a bottleneck


class ResidualLayer(nn.Module):
    """relu(x + f(x)), where f is two 3x3 convolutions, or a bottleneck: 1x1, 3x3 and 1x1.

    shortcut: a 1x1 convolution of x, if the width or the resolution changes.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        spec: specs.ResNetSpec,
        *,
        stride: int = 1,
        first_dilation: int = 1,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        norm = spec.norm
        if spec.layer == "basic":
            convs = [
                ConvNorm(in_channels, out_channels, 3, stride=stride, dilation=first_dilation, norm=norm),
                ConvNorm(out_channels, out_channels, 3, dilation=dilation, norm=norm),
            ]
        else:
            inner = out_channels // _REDUCTION
            first, second = (stride, 1) if spec.strided_conv == "1x1" else (1, stride)
            convs = [
                ConvNorm(in_channels, inner, 1, stride=first, norm=norm),
                ConvNorm(inner, inner, 3, stride=second, dilation=first_dilation, norm=norm),
                ConvNorm(inner, out_channels, 1, norm=norm),
            ]
        self.convs = nn.ModuleList(convs)
        changed = stride != 1 or in_channels != out_channels
        self.shortcut = ConvNorm(in_channels, out_channels, 1, stride=stride, norm=norm) if changed else None

    def forward(self, x: Tensor) -> Tensor:
        """x (B, in_channels, H, W) -> (B, out_channels, H / stride, W / stride)."""
        out: Tensor = x
        for conv in self.convs[:-1]:
            out = conv(out, relu=True)
        residual = x if self.shortcut is None else self.shortcut(x)
        out = self.convs[-1](out, residual=residual, relu=True)
        return out


class ResNet(nn.Module):
    """A residual network that returns the feature maps of all stages.

    >>> import torch
    >>> network = ResNet(specs.ResNetSpec(stem_width=8, widths=(16, 32), depths=(1, 2), strides=(1, 2)))
    >>> [tuple(map.shape) for map in network(torch.randn(1, 3, 64, 48))]
    [(1, 16, 16, 12), (1, 32, 8, 6)]
    """

    def __init__(self, spec: specs.ResNetSpec) -> None:
        super().__init__()
        self.channels, self.widths = spec.channels, spec.widths
        self.stem = ConvNorm(spec.channels, spec.stem_width, 7, stride=2, norm=spec.norm)
        self.stages = nn.ModuleList()
        width, dilation = spec.stem_width, 1
        for out_width, depth, stride, stage_dilation in zip(
            spec.widths, spec.depths, spec.strides, spec.dilations or (1,) * len(spec.widths), strict=True
        ):
            stage = nn.Sequential()
            for _ in range(depth):
                layer = ResidualLayer(
                    width, out_width, spec, stride=stride, first_dilation=dilation, dilation=stage_dilation
                )
                stage.append(layer)
                width, dilation, stride = out_width, stage_dilation, 1
            self.stages.append(stage)

    def forward(self, images: Tensor, *, obs: Observer | None = None) -> tuple[Tensor, ...]:
        """images (B, C, H, W) -> the feature map (B, width, h, w) of every stage."""
        x = self.stem(images, relu=True)
        x = tap(obs, "stem", F.max_pool2d(x, 3, stride=2, padding=1))
        maps = []
        for n, stage in enumerate(self.stages):
            x = tap(obs, f"stages.{n}", stage(x))
            maps.append(x)
        return tuple(maps)

"""Convolutions between an image encoder and a decoder. B batch, C channels, h and w rows and columns."""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.norms import LayerNorm
from glassformer.core.observe import Observer, tap


class ChannelLayerNorm(LayerNorm):
    """LayerNorm over the channels of feature maps (B, C, h, w).

    >>> import torch
    >>> ChannelLayerNorm(8)(torch.randn(2, 8, 5, 6)).shape
    torch.Size([2, 8, 5, 6])
    """

    def __init__(self, channels: int, *, eps: float = 1e-6) -> None:
        super().__init__(channels, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Neck(nn.Module):
    """1x1 convolution, norm, 3x3 convolution, norm: (B, C, h, w) -> (B, channels, h, w)."""

    def __init__(self, d_in: int, spec: specs.NeckSpec) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(d_in, spec.channels, 1, bias=False)
        self.norm1 = ChannelLayerNorm(spec.channels, eps=spec.norm_eps)
        self.conv2 = nn.Conv2d(spec.channels, spec.channels, 3, padding=1, bias=False)
        self.norm2 = ChannelLayerNorm(spec.channels, eps=spec.norm_eps)

    def forward(self, x: Tensor, *, obs: Observer | None = None) -> Tensor:
        x = tap(obs, "conv1", self.norm1(self.conv1(x)))
        return tap(obs, "out", self.norm2(self.conv2(x)))

"""Upscaling of feature maps. B batch, C channels, h and w rows and columns."""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.core.backend import ACTIVATIONS
from glassformer.core.norms import LayerNorm
from glassformer.core.spec import Activation


class Upscale(nn.Module):
    """Double the resolution: transposed convolution, activation, depthwise convolution, norm over channels.

    >>> import torch
    >>> Upscale(8)(torch.randn(1, 8, 3, 5)).shape
    torch.Size([1, 8, 6, 10])
    """

    def __init__(self, channels: int, activation: Activation = "gelu") -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = LayerNorm(channels, eps=1e-6)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, h, w) -> (B, C, 2 h, 2 w)."""
        x = self.conv(ACTIVATIONS[self.activation](self.up(x)))
        normed: Tensor = self.norm(x.movedim(1, -1))
        return normed.movedim(-1, 1)

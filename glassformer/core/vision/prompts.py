"""Prompts of a segmentation model: points, boxes and masks as vectors.

Coordinates are (x, y) in pixels of the image that the model reads.
B images, N prompts per image, P points per prompt, D d_model, h and w rows and columns of the embedded image.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.backend import ACTIVATIONS, normal_table
from glassformer.core.observe import Observer, tap
from glassformer.core.vision.convolution.layers import ChannelLayerNorm
from glassformer.core.vision.grid import cell_centers

BACKGROUND, FOREGROUND, NO_POINT, PADDING = 0, 1, -1, -10  # labels of a point


class PromptOutput(NamedTuple):
    """Tokens (B, N, T, D) of points and boxes; vectors (B|1, D, h|1, w|1) to add to the embedded image."""

    tokens: Tensor
    dense: Tensor


class FourierPositions(nn.Module):
    """Random Fourier features of positions: sines and cosines of 2 pi (2 xy - 1) F, where F is random.

    >>> FourierPositions(8)(torch.rand(3, 2)).shape
    torch.Size([3, 8])
    """

    frequencies: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        frequencies = torch.empty(2, d_model // 2)
        self.register_buffer("frequencies", frequencies if frequencies.is_meta else frequencies.normal_())

    def forward(self, xy: Tensor) -> Tensor:
        """Embed positions (..., 2), in shares of width and height from 0 to 1 -> (..., D)."""
        angles = 2 * math.pi * ((2 * xy.float() - 1) @ self.frequencies.float())
        return torch.cat((angles.sin(), angles.cos()), -1).to(self.frequencies.dtype)

    def grid(self, rows: int, columns: int) -> Tensor:
        """Embed the centers of the cells of a grid, row by row -> (1, rows * columns, D)."""
        features: Tensor = self(cell_centers((rows, columns), self.frequencies.device)[None])
        return features


class MaskEmbedding(nn.Module):
    """Embed mask logits (B, 1, 4h, 4w) -> (B, D, h, w): two strided convolutions with norms, then a 1x1."""

    def __init__(self, d_model: int, spec: specs.PromptEncoderSpec) -> None:
        super().__init__()
        channels = spec.mask_channels
        self.conv1 = nn.Conv2d(1, channels // 4, 2, stride=2)
        self.norm1 = ChannelLayerNorm(channels // 4, eps=spec.norm_eps)
        self.conv2 = nn.Conv2d(channels // 4, channels, 2, stride=2)
        self.norm2 = ChannelLayerNorm(channels, eps=spec.norm_eps)
        self.conv3 = nn.Conv2d(channels, d_model, 1)
        self.activation = spec.activation

    def forward(self, masks: Tensor) -> Tensor:
        activate = ACTIVATIONS[self.activation]
        x = activate(self.norm1(self.conv1(masks)))
        out: Tensor = self.conv3(activate(self.norm2(self.conv2(x))))
        return out


class PromptEncoder(nn.Module):
    """Embed points, boxes and masks.

    image_size: height and width of the image that the model reads

    >>> encoder = PromptEncoder(16, specs.PromptEncoderSpec(), image_size=(64, 64))
    >>> encoder(torch.rand(2, 3, 1, 2) * 64).tokens.shape       # one point and the padding point
    torch.Size([2, 3, 2, 16])
    >>> encoder(boxes=torch.rand(2, 3, 4) * 64).tokens.shape    # two corners
    torch.Size([2, 3, 2, 16])
    """

    def __init__(self, d_model: int, spec: specs.PromptEncoderSpec, *, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.image_size = image_size
        self.position = FourierPositions(d_model)
        self.labels = normal_table(4, d_model, std=1.0)  # background, foreground, first and second corner
        self.no_point = normal_table(1, d_model, std=1.0)
        self.no_mask = normal_table(1, d_model, std=1.0)
        self.mask = MaskEmbedding(d_model, spec)

    def forward(
        self,
        points: Tensor | None = None,
        labels: Tensor | None = None,
        boxes: Tensor | None = None,
        masks: Tensor | None = None,
        *,
        obs: Observer | None = None,
    ) -> PromptOutput:
        """Embed points (B, N, P, 2), boxes (B, N, 4) and mask logits (B, 1, 4h, 4w); each is optional.

        labels (B, N, P): 1 foreground (the default), 0 background, -1 no point, -10 padding.
        """
        tokens: list[Tensor] = []
        if points is not None:
            if labels is None:
                labels = points.new_ones(points.shape[:-1])
            if boxes is None:  # the model expects a box, or a token that says that there is none
                points = torch.cat((points, torch.zeros_like(points[:, :, :1])), 2)
                labels = torch.cat((labels, torch.full_like(labels[:, :, :1], NO_POINT)), 2)
            tokens.append(self._points(points, labels[..., None]))
        if boxes is not None:
            tokens.append(self._positions(boxes.unflatten(-1, (2, 2))) + self.labels[2:])
        if not tokens:
            rows = 1 if masks is None else masks.shape[0]
            tokens.append(self.labels.new_empty(rows, 1, 0, self.labels.shape[1]))
        dense = self.no_mask[..., None, None] if masks is None else self.mask(masks.to(self.labels.dtype))
        return PromptOutput(tap(obs, "tokens", torch.cat(tokens, 2)), tap(obs, "dense", dense))

    def _positions(self, xy: Tensor) -> Tensor:
        """Embed the centers of pixels (..., 2) -> (..., D)."""
        height, width = self.image_size
        embedded: Tensor = self.position((xy + 0.5) / xy.new_tensor((width, height)))
        return embedded

    def _points(self, points: Tensor, labels: Tensor) -> Tensor:
        x = self._positions(points)
        x = torch.where(labels == NO_POINT, self.no_point, x)
        x = torch.where(labels == PADDING, torch.zeros_like(x), x)
        x = torch.where(labels == BACKGROUND, x + self.labels[0], x)
        return torch.where(labels == FOREGROUND, x + self.labels[1], x)

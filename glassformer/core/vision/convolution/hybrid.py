"""Convolutional parts of a hybrid image encoder, whose later stages are Transformer stacks.

    image --stem, 1/4--> inverted bottlenecks --merging--> blocks --merging--> blocks ...

Cells of a feature map are tokens (B, rows * columns, D), row by row; convolutions see them as maps
(B, D, rows, columns).
B batch, D width of a stage.
"""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.backend import ACTIVATIONS
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.inputs import ImageInputs, tensor_of
from glassformer.core.kernels import Kernel
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, tap
from glassformer.core.positions import Grid
from glassformer.core.vision.convolution.layers import ConvNorm
from glassformer.core.vision.grid import cells_to_map, map_to_cells
from glassformer.errors import ShapeError


class ConvolutionStem(nn.Module):
    """Embed images (B, C, height, width) at a quarter of their size: two 3x3 convolutions of stride 2.

    >>> import torch
    >>> stem = ConvolutionStem(16, specs.ConvolutionStemSpec(image_size=(32, 32)))
    >>> stem(torch.randn(2, 3, 32, 32)).x.shape
    torch.Size([2, 64, 16])
    """

    def __init__(self, d_model: int, spec: specs.ConvolutionStemSpec) -> None:
        super().__init__()
        self.image_size, self.channels, self.activation = spec.image_size, spec.channels, spec.activation
        self.conv1 = ConvNorm(spec.channels, d_model // 2, 3, stride=2)
        self.conv2 = ConvNorm(d_model // 2, d_model, 3, stride=2)

    def forward(self, inputs: Tensor | ImageInputs, *, obs: Observer | None = None) -> EmbeddingOutput:
        images = tensor_of(inputs)
        if images.dim() != 4 or tuple(images.shape[1:]) != (self.channels, *self.image_size):
            expected = f"(B, {self.channels}, {self.image_size[0]}, {self.image_size[1]})"
            raise ShapeError("images", images.shape, expected, hint="resize and pad them")
        x = self.conv2(ACTIVATIONS[self.activation](self.conv1(images)))
        grid = (x.shape[2], x.shape[3])
        return EmbeddingOutput(tap(obs, "out", map_to_cells(x)), Mask(), grid=grid)


class InvertedBottleneck(nn.Module):
    """activation(x + f(x)), where f widens x, applies a depthwise 3x3 convolution, and narrows it again."""

    def __init__(self, d_model: int, *, expansion: int, activation: specs.Activation) -> None:
        super().__init__()
        hidden, self.activation = expansion * d_model, activation
        self.expand = ConvNorm(d_model, hidden, 1)
        self.depthwise = ConvNorm(hidden, hidden, 3, groups=hidden)
        self.project = ConvNorm(hidden, d_model, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, D, rows, columns) -> the same shape."""
        activate = ACTIVATIONS[self.activation]
        return activate(x + self.project(activate(self.depthwise(activate(self.expand(x))))))


class ConvolutionStage(nn.Module):
    """A stage of inverted bottlenecks over tokens (B, rows * columns, D)."""

    def __init__(self, spec: specs.ConvolutionStageSpec, activation: specs.Activation) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            InvertedBottleneck(spec.d_model, expansion=spec.expansion, activation=activation)
            for _ in range(spec.num_layers)
        )

    def forward(
        self, source: EmbeddingOutput, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> Tensor:
        """Cells (B, rows * columns, D) -> the same shape."""
        assert source.grid is not None
        maps = cells_to_map(source.x, source.grid)
        for n, block in enumerate(self.blocks):
            maps = tap(obs, f"blocks.{n}", block(maps))
        return map_to_cells(maps)


class ConvolutionMerging(nn.Module):
    """Change the width, and divide the grid by `stride`: 1x1, depthwise 3x3 and 1x1 convolution."""

    def __init__(self, d_model: int, *, d_out: int, stride: int, activation: specs.Activation) -> None:
        super().__init__()
        self.stride, self.activation = stride, activation
        self.expand = ConvNorm(d_model, d_out, 1)
        self.depthwise = ConvNorm(d_out, d_out, 3, stride=stride, groups=d_out)
        self.project = ConvNorm(d_out, d_out, 1)

    def forward(self, x: Tensor, grid: Grid, *, obs: Observer | None = None) -> Tensor:
        """x (B, rows * columns, D) -> (B, rows / stride * columns / stride, d_out)."""
        activate = ACTIVATIONS[self.activation]
        maps = activate(self.depthwise(activate(self.expand(cells_to_map(x, grid)))))
        return tap(obs, "out", map_to_cells(self.project(maps)))

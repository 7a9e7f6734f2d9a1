"""Convolutions with norms: batch norm, trained or frozen, or LayerNorm over the channels.

B batch, C channels, H height, W width, h and w rows and columns of a feature map.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.backend import ACTIVATIONS
from glassformer.core.norms import LayerNorm
from glassformer.core.observe import Observer, tap
from glassformer.core.positions import Grid
from glassformer.core.vision.grid import cells_to_map, map_to_cells
from glassformer.errors import MissingValueError

ChannelNorm = Literal["batch", "frozen_batch"]


class FrozenBatchNorm(nn.Module):
    """Batch norm with fixed statistics, scale and bias, which are buffers: never trained, always saved.

    >>> FrozenBatchNorm(8)(torch.randn(2, 8, 5, 7)).shape
    torch.Size([2, 8, 5, 7])
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> (B, C, H, W)."""
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class ConvNorm(nn.Module):
    """A convolution without bias, padded to keep the size (divided by `stride`), then batch norm.

    in_channels, out_channels: width of the input and of the output
    kernel_size: an odd number
    groups: number of groups of channels that are convolved separately
    norm: "batch" is trained, "frozen_batch" has fixed statistics

    >>> ConvNorm(3, 8, 3, stride=2)(torch.randn(2, 3, 9, 12)).shape
    torch.Size([2, 8, 5, 6])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        norm: ChannelNorm = "batch",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=kernel_size // 2 * dilation,
            dilation=dilation,
            groups=groups,
            bias=False,
        )
        self.norm: FrozenBatchNorm | nn.BatchNorm2d = (
            FrozenBatchNorm(out_channels) if norm == "frozen_batch" else nn.BatchNorm2d(out_channels)
        )

    initializes_itself = True

    def reset_parameters(self) -> None:
        """Initialize the convolution for a following ReLU (He)."""
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor, *, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """x (B, in_channels, H, W) -> (B, out_channels, H / stride, W / stride), rounded up.

        residual: added to the output; relu: whether ReLU is applied at the end.
        """
        return _add_and_activate(self.norm(self.conv(x)), residual, relu)

    def fold(self) -> FoldedConv:
        """Return one convolution with bias that equals convolution and norm in evaluation."""
        conv, norm = self.conv, self.norm
        assert norm.running_mean is not None and norm.running_var is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        weight = (conv.weight * scale[:, None, None, None]).detach()
        bias = (norm.bias - norm.running_mean * scale).detach()
        if weight.is_cuda and conv.in_channels == 3 and (conv.kernel_size, conv.stride) == ((7, 7), (2, 2)):
            return FoldedStem(weight, bias)
        with torch.device("meta"):
            folded = FoldedConv(
                conv.in_channels,
                conv.out_channels,
                conv.kernel_size,  # type: ignore[arg-type]
                stride=conv.stride,  # type: ignore[arg-type]
                padding=conv.padding,  # type: ignore[arg-type]
                dilation=conv.dilation,  # type: ignore[arg-type]
                groups=conv.groups,
            )
        folded.set_weights(weight, bias)
        return folded


class CellConvolution(ConvNorm):
    """A convolution over tokens of a 2-D grid (B, rows * columns, D), as a sublayer of a block."""

    def forward(self, x: Tensor, grid: Grid | None) -> Tensor:  # type: ignore[override]
        if grid is None:
            raise MissingValueError("the grid of the tokens", "by a convolution in a block")
        return map_to_cells(super().forward(cells_to_map(x, grid)))

    def fold(self) -> nn.Module:  # type: ignore[override]
        return FoldedCells(super().fold())


class FoldedCells(nn.Module):
    """A `CellConvolution` whose batch norm is folded into the convolution."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return map_to_cells(self.conv(cells_to_map(x, grid)))


class FoldedConv(nn.Conv2d):
    """Convolution and batch norm as one convolution, for inference; see `ConvNorm.fold`."""

    def set_weights(self, weight: Tensor, bias: Tensor) -> None:
        if weight.is_cuda:
            weight = weight.contiguous(memory_format=torch.channels_last)  # the faster layout there
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor, *, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """The same as `ConvNorm.forward`."""
        if relu and x.is_cuda and x.dtype in (torch.bfloat16, torch.float16):
            assert self.bias is not None
            geometry = (list(self.stride), list(self.padding), list(self.dilation), self.groups)
            out: Tensor = conv_add_relu(x, self.weight, self.bias, residual, *geometry)
            return out
        return _add_and_activate(super().forward(x), residual, relu)


class FoldedStem(FoldedConv):
    """The 7 x 7 convolution with stride 2 at the start of a ResNet, after space-to-depth.

    Convolutions of 3 channels are slow on GPUs. Space-to-depth turns each block of 2 x 2 pixels into 12
    channels, of which a 4 x 4 convolution with stride 1 computes the same; 4 channels of zeros make them 16,
    the alignment that tensor cores need.

    weight: (O, 3, 7, 7). bias: (O,)

    >>> FoldedStem(torch.randn(8, 3, 7, 7), torch.randn(8))(torch.randn(1, 3, 9, 12)).shape
    torch.Size([1, 8, 5, 6])
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        with torch.device("meta"):
            super().__init__(16, len(weight), 4)
        even = F.pad(weight, (1, 0, 1, 0))  # (O, 3, 8, 8)
        self.set_weights(F.pad(F.pixel_unshuffle(even, 2), (0, 0, 0, 0, 0, 4)), bias)

    def forward(self, x: Tensor, *, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        height, width = x.shape[2:]
        x = F.pad(x, (4, 2 + width % 2, 4, 2 + height % 2))
        blocks = F.pad(F.pixel_unshuffle(x, 2), (0, 0, 0, 0, 0, 4))
        if x.is_cuda:
            blocks = blocks.contiguous(memory_format=torch.channels_last)
        return super().forward(blocks, residual=residual, relu=relu)


def _add_and_activate(x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    x = x if residual is None else x + residual
    return F.relu(x, inplace=True) if relu else x


@torch.library.custom_op("glassformer::conv_add_relu", mutates_args=())
def conv_add_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Compute relu(conv(x) + bias + residual) in one kernel of cuDNN."""
    geometry = (stride, padding, dilation, groups)
    if residual is None:
        return torch.cudnn_convolution_relu(x, weight, bias, *geometry)
    return torch.cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, *geometry)


@conv_add_relu.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    out = F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return torch.empty_like(out, memory_format=torch.channels_last)


class ChannelLayerNorm(LayerNorm):
    """LayerNorm over the channels of feature maps (B, C, h, w).

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


class Upscale(nn.Module):
    """Double the resolution: transposed convolution, activation, depthwise convolution, norm over channels.

    >>> Upscale(8)(torch.randn(1, 8, 3, 5)).shape
    torch.Size([1, 8, 6, 10])
    """

    def __init__(self, channels: int, activation: specs.Activation = "gelu") -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = ChannelLayerNorm(channels)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, h, w) -> (B, C, 2 h, 2 w)."""
        out: Tensor = self.norm(self.conv(ACTIVATIONS[self.activation](self.up(x))))
        return out

"""Attention over a 2-D grid of tokens: windows, shifted windows and relative position biases.

A grid (rows, columns) of tokens is stored row by row, (B, rows * columns, D). Window attention pads the grid
to whole windows, and attends within each window; shifted windows connect neighboring windows of the layer
before.

B batch, N windows of an image, T tokens (of a window), D d_model, H heads, K head width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.backend import normal_table
from glassformer.core.kernels import GridBias
from glassformer.errors import InvalidValueError, ShapeError

Grid = tuple[int, int]  # rows, columns


def cells_to_map(x: Tensor, grid: Grid) -> Tensor:
    """Tokens (B, rows * columns, D) -> feature map (B, D, rows, columns)."""
    maps: Tensor = x.transpose(1, 2).unflatten(-1, grid)
    return maps


def map_to_cells(x: Tensor) -> Tensor:
    """Feature map (B, D, rows, columns) -> tokens (B, rows * columns, D)."""
    return x.flatten(2).transpose(1, 2)


def cell_centers(grid: Grid, device: torch.device | None = None) -> Tensor:
    """Return x and y of the center of every cell, in shares of the grid from 0 to 1: (rows * columns, 2).

    >>> cell_centers((1, 2)).tolist()
    [[0.25, 0.5], [0.75, 0.5]]
    """
    y, x = ((torch.arange(side, device=device) + 0.5) / side for side in grid)
    return torch.stack((x.repeat(grid[0]), y.repeat_interleave(grid[1])), -1)


class WindowLayout(NamedTuple):
    """How a grid is divided into windows of size x size tokens, after a cyclic shift up and left.

    Tokens that pad the grid to whole windows are zeros; the real tokens attend to them. Tokens that only the
    cyclic shift brings into one window do not attend to each other.

    >>> layout = WindowLayout.of((4, 6), specs.WindowSpec(size=4, shift=2))
    >>> layout.num_windows, layout.partition(torch.zeros(2, 24, 8)).shape
    (2, torch.Size([4, 16, 8]))
    >>> layout.merge(torch.zeros(4, 16, 8)).shape
    torch.Size([2, 24, 8])
    """

    grid: Grid
    size: int
    shift: int

    @classmethod
    def of(cls, grid: Grid, window: specs.WindowSpec) -> WindowLayout:
        """Return the layout for a grid; by default windows are not shifted if one covers a side of it."""
        shifted = window.always or min(grid) > window.size
        return cls(grid, window.size, window.shift if shifted else 0)

    @property
    def padded(self) -> Grid:
        """The grid of whole windows."""
        rows, columns = self.grid
        return -(-rows // self.size) * self.size, -(-columns // self.size) * self.size

    @property
    def num_windows(self) -> int:
        """The number of windows per image."""
        rows, columns = self.padded
        return (rows // self.size) * (columns // self.size)

    def partition(self, x: Tensor) -> Tensor:
        """x (B, rows * columns, D) -> windows (B * N, size * size, D)."""
        batch, _, width = x.shape
        (rows, columns), (high, wide), size = self.grid, self.padded, self.size
        x = x.view(batch, rows, columns, width)
        if (high, wide) != (rows, columns):
            x = F.pad(x, (0, 0, 0, wide - columns, 0, high - rows))
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        x = x.view(batch, high // size, size, wide // size, size, width).transpose(2, 3)
        return x.reshape(-1, size * size, width)

    def merge(self, x: Tensor) -> Tensor:
        """Windows (B * N, size * size, D) -> (B, rows * columns, D); the inverse of `partition`."""
        (rows, columns), (high, wide), size = self.grid, self.padded, self.size
        x = x.view(-1, high // size, wide // size, size, size, x.shape[-1]).transpose(2, 3)
        x = x.reshape(-1, high, wide, x.shape[-1])
        if self.shift:
            x = x.roll((self.shift, self.shift), (1, 2))
        return x[:, :rows, :columns].reshape(x.shape[0], rows * columns, -1)

    def allowed(self, batch: int, device: torch.device) -> Tensor | None:
        """Return which tokens of a window may attend to each other, (B * N, 1, T, T); None: all."""
        if not self.shift:
            return None
        # regions of the shifted grid that were adjacent before the shift
        row, column = (
            (torch.arange(side, device=device) >= side - self.size).long()
            + (torch.arange(side, device=device) >= side - self.shift)
            for side in self.padded
        )
        regions = (3 * row[:, None] + column).view(1, -1, 1)  # (1, padded rows * columns, 1)
        regions = self._replace(grid=self.padded, shift=0).partition(regions).squeeze(-1)  # (N, T)
        return (regions[:, None, :, None] == regions[:, None, None, :]).repeat(batch, 1, 1, 1)

    def token_ids(self, device: torch.device | str = "cpu") -> Tensor:
        """Return which token of the grid each token of a window is, (N, T); -1 for padding."""
        rows, columns = self.grid
        tokens = torch.arange(1, rows * columns + 1, device=device).view(1, -1, 1)
        return self.partition(tokens).squeeze(-1) - 1


class RelativeBias2d(nn.Module):
    """Relative position bias in two dimensions: a trained bias per head, row offset and column offset.

    grid: rows and columns of the tokens that attend to each other, usually a window
    signed: whether the bias depends on the direction of an offset, else only on its absolute value
    """

    index: Tensor

    def __init__(self, num_heads: int, *, grid: Grid, signed: bool = True) -> None:
        super().__init__()
        self.grid, self.signed = grid, signed
        offsets = (2 * grid[0] - 1) * (2 * grid[1] - 1) if signed else grid[0] * grid[1]
        self.weight = nn.Parameter(torch.zeros(offsets, num_heads))
        tokens = grid[0] * grid[1]
        self.register_buffer("index", torch.empty(tokens, tokens, dtype=torch.long), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute the row of the table for each pair of tokens (T, T)."""
        self.index = offset_index(self.grid, self.index.device, signed=self.signed)

    def forward(self, q: Tensor, grid: Grid) -> Tensor:
        """Return the bias (1, H, T, T)."""
        return self.weight[self.index].permute(2, 0, 1)[None]


def offset_index(grid: Grid, device: torch.device | str = "cpu", *, signed: bool = True) -> Tensor:
    """Number the offsets between the tokens of a grid, (T, T): row offset first, from -(rows - 1) up.

    signed: if False, number the absolute offsets, from 0 up.
    """
    rows, columns = grid
    row = torch.arange(rows, device=device).repeat_interleave(columns)
    column = torch.arange(columns, device=device).repeat(rows)
    down, across = row[:, None] - row, column[:, None] - column
    if not signed:
        return down.abs() * columns + across.abs()
    down, across = down + rows - 1, across + columns - 1
    return down * (2 * columns - 1) + across


class QueryBias2d(nn.Module):
    """Relative position bias from the query: its product with embeddings of row and column offsets.

    grid: rows and columns of the tokens that attend to each other
    """

    def __init__(self, head_dim: int, *, grid: Grid) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(2 * grid[0] - 1, head_dim))
        self.columns = nn.Parameter(torch.zeros(2 * grid[1] - 1, head_dim))

    def forward(self, q: Tensor, grid: Grid) -> GridBias:
        """q (B, H, T, K) over the tokens of `grid` -> terms of the bias (B, H, T, T)."""
        rows, columns = grid
        cells = q.unflatten(2, grid)  # (B, H, rows, columns, K)
        down = torch.einsum("bhrck,rsk->bhrcs", cells, _offset_vectors(self.rows, rows).to(q.dtype))
        across = torch.einsum("bhrck,cdk->bhrcd", cells, _offset_vectors(self.columns, columns).to(q.dtype))
        return GridBias(down.flatten(2, 3), across.flatten(2, 3))


def _offset_vectors(table: Tensor, size: int) -> Tensor:
    """Return the embedding of each offset between two positions, (size, size, K).

    A table for another size is interpolated linearly.
    """
    if len(table) != 2 * size - 1:
        table = F.interpolate(table.t()[None].float(), 2 * size - 1, mode="linear")[0].t()
    position = torch.arange(size, device=table.device)
    return table[position[:, None] - position + size - 1]


class LogBias2d(nn.Module):
    """Relative position bias computed by a small network from log-spaced row and column offsets.

    grid: rows and columns of the tokens that attend to each other, usually a window
    pretrained_size: window size by which the offsets are scaled; None: that of the grid
    hidden_dim: width of the hidden layer
    max_bias: upper bound of the bias

    >>> LogBias2d(4, grid=(3, 3))(torch.empty(0), (3, 3)).shape
    torch.Size([1, 4, 9, 9])
    """

    index: Tensor
    offsets: Tensor

    def __init__(
        self,
        num_heads: int,
        *,
        grid: Grid,
        pretrained_size: int | None = None,
        hidden_dim: int = 512,
        max_bias: float = 16.0,
    ) -> None:
        super().__init__()
        self.grid, self.pretrained_size, self.max_bias = grid, pretrained_size, max_bias
        self.hidden = nn.Linear(2, hidden_dim)
        self.out = nn.Linear(hidden_dim, num_heads, bias=False)
        tokens, pairs = grid[0] * grid[1], (2 * grid[0] - 1) * (2 * grid[1] - 1)
        self.register_buffer("index", torch.empty(tokens, tokens, dtype=torch.long), persistent=False)
        self.register_buffer("offsets", torch.empty(pairs, 2), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute the log-spaced offsets, sign(x) log2(1 + |x|) / 3, for x from -8 to 8 within a window."""
        device = self.index.device
        self.index = offset_index(self.grid, device)
        sides = []
        for side in self.grid:
            scale = 8 / max(1, (self.pretrained_size or side) - 1)
            sides.append(torch.arange(1 - side, side, dtype=torch.float32, device=device) * scale)
        offsets = torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).flatten(0, 1)
        self.offsets = offsets.sign() * (offsets.abs() + 1).log2() / 3

    def forward(self, q: Tensor, grid: Grid) -> Tensor:
        """Return the bias (1, H, T, T)."""
        table = self.out(F.relu(self.hidden(self.offsets.to(self.hidden.weight.dtype))))  # (pairs, H)
        return self.max_bias * torch.sigmoid(table[self.index].permute(2, 0, 1)[None])


PositionBias = RelativeBias2d | QueryBias2d | LogBias2d


def sinusoids_2d(real: Tensor, d_model: int, *, base: float = 10000.0) -> Tensor:
    """Return sinusoidal positions of the tokens of a grid: (B, rows * columns, D), rows in the first half.

    Rows and columns count real tokens only, and are scaled to a full period, 2 pi, at the last one. In each
    half, sines and cosines alternate.

    real: (B, rows, columns), True for real tokens, False for padding.

    >>> sinusoids_2d(torch.ones(1, 2, 3, dtype=torch.bool), 8).shape
    torch.Size([1, 6, 8])
    """
    half = d_model // 2
    exponents = torch.arange(half, device=real.device).div(2, rounding_mode="floor") * 2 / half
    halves = []
    for dim in (1, 2):
        count = real.float().cumsum(dim)
        scaled = count / (count.narrow(dim, -1, 1) + 1e-6) * (2 * math.pi)
        angle = scaled[..., None] / base**exponents  # (B, rows, columns, D / 2)
        halves.append(torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), -1).flatten(3))
    return torch.cat(halves, -1).flatten(1, 2)


class Sinusoidal2dPositions(nn.Module):
    """Sinusoidal position embeddings of a 2-D grid; see `sinusoids_2d`.

    >>> Sinusoidal2dPositions(16)((3, 5)).shape
    torch.Size([1, 15, 16])
    """

    def __init__(self, d_model: int, *, base: float = 10000.0) -> None:
        super().__init__()
        if d_model % 4:
            raise InvalidValueError("d_model", d_model, "a multiple of 4, for 2-D sinusoidal positions")
        self.d_model, self.base = d_model, base

    def forward(self, grid: Grid, real: Tensor | None = None, device: torch.device | None = None) -> Tensor:
        """Return the embeddings (B|1, rows * columns, D).

        real: bool (B, rows, columns), False for padding.
        """
        if real is None:
            real = torch.ones(1, *grid, dtype=torch.bool, device=device)
        return sinusoids_2d(real, self.d_model, base=self.base)


class Learned2dPositions(nn.Module):
    """Trained position embeddings of a 2-D grid, the column in the first half of the features.

    max_len: largest number of rows and of columns

    >>> Learned2dPositions(16)((3, 5)).shape
    torch.Size([1, 15, 16])
    """

    def __init__(self, d_model: int, *, max_len: int = 50) -> None:
        super().__init__()
        self.rows, self.columns = normal_table(max_len, d_model // 2), normal_table(max_len, d_model // 2)

    def forward(self, grid: Grid, real: Tensor | None = None, device: torch.device | None = None) -> Tensor:
        """Return the embeddings (1, rows * columns, D); they do not depend on padding."""
        if max(grid) > len(self.rows):
            raise ShapeError("the grid of the image", grid, f"at most {len(self.rows)} rows and columns")
        rows, columns = self.rows[: grid[0], None], self.columns[None, : grid[1]]
        return torch.cat((columns.expand(*grid, -1), rows.expand(*grid, -1)), -1).flatten(0, 1)[None]

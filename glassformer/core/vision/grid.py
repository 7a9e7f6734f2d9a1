"""A 2-D grid of tokens, stored row by row: conversions to feature maps, and position embeddings.

B batch, D d_model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from glassformer.core.backend import normal_table
from glassformer.core.positions import Grid
from glassformer.errors import InvalidValueError, ShapeError


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


class GridSinusoids(nn.Module):
    """Sines and cosines of column and row, which are added to patches: a computed table, not saved.

    Half of the features encode the column, half the row; in each half, all sines come first. A larger grid is
    squeezed to the range of `grid`, and a smaller one stretched.

    grid: rows and columns that are counted one by one
    scale: by how much they are divided before

    >>> GridSinusoids(16, (4, 4))((3, 5)).shape
    torch.Size([1, 15, 16])
    """

    computes_buffers = True

    table: Tensor

    def __init__(self, d_model: int, grid: Grid, *, scale: float = 1.0) -> None:
        super().__init__()
        if d_model % 4:
            raise InvalidValueError("d_model", d_model, "a multiple of 4, for 2-D sinusoidal positions")
        self.d_model, self.grid, self.scale = d_model, grid, scale
        self.register_buffer("table", torch.empty(1, grid[0] * grid[1], d_model), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute the table."""
        if not self.table.is_meta:
            self.table.copy_(self._compute(self.grid))

    def forward(self, grid: Grid) -> Tensor:
        """Return the positions (1, rows * columns, D) of the cells of a grid."""
        return self.table if grid == self.grid else self._compute(grid).to(self.table.dtype)

    def _compute(self, grid: Grid) -> Tensor:
        quarter, device = self.d_model // 4, self.table.device
        exponents = torch.arange(quarter, dtype=torch.float64, device=device) / quarter
        parts = []
        for side, base in zip(grid, self.grid, strict=True):
            places = torch.arange(side, dtype=torch.float32, device=device) / (side / base) / self.scale
            angles = torch.outer(places.double(), 1.0 / 10000**exponents)
            parts.append(torch.cat((angles.sin(), angles.cos()), -1))  # (rows or columns, D / 2)
        rows, columns = parts[0][:, None], parts[1][None]
        return torch.cat((columns.expand(*grid, -1), rows.expand(*grid, -1)), -1).flatten(0, 1)[None]


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

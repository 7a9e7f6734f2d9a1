"""Attention over a grid of tokens: windows, shifted windows, axes of a video, relative position biases.

`GridAttention` is multi-head attention with a bias for each offset between two cells. `WindowAttention`
wraps its backend: it pads the grid to whole windows, attends within each window, and merges the windows;
shifted windows connect neighboring windows of the layer before. In a video, the windows are its frames, or
the places of a patch over time.

B batch, N windows of an image, T tokens (of a window), D d_model, H heads, K head width.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.attention import DenseAttention, MultiHeadAttention, PreparedAttention
from glassformer.core.kernels import GridBias, Kernel, PreparedMask, with_bias
from glassformer.core.kv_cache import KVCache
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer
from glassformer.core.positions import NO_TERMS, Grid, PositionTerms
from glassformer.errors import MissingValueError, ShapeError


class GridAttention(MultiHeadAttention):
    """Multi-head attention over a grid of tokens.

    spatial_window: windows, or axis of a video, within which tokens attend; None: all tokens
    position_bias: bias on the scores, by the offset of two tokens
    options: as in `MultiHeadAttention`
    """

    on_grid = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        spatial_window: specs.WindowSpec | specs.AxisSpec | None = None,
        position_bias: specs.PositionBiasSpec | None = None,
        **options: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **options)
        self.spatial_window = spatial_window
        self.position_bias: PositionBias | None
        match position_bias:
            case None:
                self.position_bias = None
            case specs.RelativeBias2dSpec():
                self.position_bias = RelativeBias2d(num_heads, **vars(position_bias))
            case specs.QueryBias2dSpec(grid=grid):
                self.position_bias = QueryBias2d(self.head_dim, grid=grid)
            case specs.LogBias2dSpec():
                self.position_bias = LogBias2d(num_heads, **vars(position_bias))
        self.has_position_bias = self.position_bias is not None

    @property
    def kind(self) -> tuple[object, ...]:
        shared = (self.num_heads, self.window, self.dropout, self.softcap)
        return *shared, self.spatial_window, self.has_position_bias

    def prepare(
        self,
        x: Tensor,
        mask: Mask | Tensor | None = None,
        memory: Tensor | None = None,
        *,
        terms: PositionTerms = NO_TERMS,
        keys: int | None = None,
        kernel: Kernel = "auto",
    ) -> PreparedAttention:
        """Prepare attention over the grid of `terms`; windows replace the mask."""
        if terms.grid is None:
            raise MissingValueError("the grid of the tokens", "by attention over a 2-D grid")
        if self.spatial_window is None:
            return super().prepare(x, mask, memory, terms=terms, keys=keys, kernel=kernel)
        layout = layout_of(terms.grid, self.spatial_window)
        within = PositionTerms(grid=layout.window)
        allowed = Mask(allowed=layout.allowed(x.shape[0], x.device))
        tokens = math.prod(layout.window)
        sizes = (x.shape[0] * layout.num_windows, tokens, tokens)
        inner = DenseAttention(self.prepare_mask(allowed, sizes, x, within, kernel), within)
        return WindowAttention(inner, layout, getattr(self.spatial_window, "pad_before_norm", False))

    def add_bias(
        self, mask: PreparedMask, terms: PositionTerms, q: Tensor, k: Tensor
    ) -> tuple[PreparedMask, Tensor | GridBias | None]:
        if self.position_bias is None or terms.grid is None:
            return super().add_bias(mask, terms, q, k)
        bias: Tensor | GridBias = self.position_bias(q, terms.grid)
        return mask if isinstance(bias, GridBias) else with_bias(mask, bias, batch=q.shape[0]), bias


class WindowAttention(NamedTuple):
    """Backend that attends within windows: partition, attend, merge.

    inner: backend whose batch is the windows of all images
    pad_before_norm: whether the tokens that fill up windows are zeros before the norm, or after it
    fill: the vector (1, 1, D) of such a token; None: zeros
    """

    inner: DenseAttention
    layout: Layout
    pad_before_norm: bool = False
    fill: Tensor | None = None

    def at_layer(self, layer: int, norm: nn.Module | None, cache: KVCache | None) -> WindowAttention:
        if not self.pad_before_norm or not isinstance(norm, nn.LayerNorm):
            return self
        return self._replace(fill=norm.bias[None, None])  # the norm of zeros

    def __call__(self, attention: MultiHeadAttention, x: Tensor, obs: Observer | None = None) -> Tensor:
        windows = self.layout.partition(x, self.fill)  # (B * N, T, D)
        heads = self.inner(attention, windows, obs)  # (B * N, T, H, V)
        if obs is not None:
            obs.record_windows(self.layout)
        merged: Tensor = self.layout.merge(heads.flatten(-2)).unflatten(-1, heads.shape[-2:])
        return merged


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
    def axis(self) -> str:
        """Along what tokens attend: within an image."""
        return "space"

    @property
    def window(self) -> Grid:
        """Rows and columns of a window."""
        return self.size, self.size

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

    def partition(self, x: Tensor, fill: Tensor | None = None) -> Tensor:
        """x (B, rows * columns, D) -> windows (B * N, size * size, D).

        fill: the vector (1, 1, D) of tokens that pad the grid to whole windows; None: zeros
        """
        batch, _, width = x.shape
        (rows, columns), (high, wide), size = self.grid, self.padded, self.size
        x = x.view(batch, rows, columns, width)
        if (high, wide) != (rows, columns):
            fill = x.new_zeros(1, 1, width) if fill is None else fill.to(x.dtype)
            below = fill.expand(high - rows, columns, -1).expand(batch, -1, -1, -1)
            right = fill.expand(high, wide - columns, -1).expand(batch, -1, -1, -1)
            x = torch.cat((torch.cat((x, below), 1), right), 2)
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


class AxisLayout(NamedTuple):
    """How a video is divided: into its frames, or into the places of a patch over time.

    grid: frames, rows and columns

    >>> layout = AxisLayout((5, 2, 3), "time")
    >>> layout.num_windows, layout.partition(torch.zeros(2, 30, 8)).shape
    (6, torch.Size([12, 5, 8]))
    >>> layout.token_ids()[1].tolist()
    [1, 7, 13, 19, 25]
    """

    grid: Grid
    axis: str

    @property
    def window(self) -> Grid:
        """Rows and columns of a frame, or the frames of a place."""
        return self.grid[1:] if self.axis == "space" else self.grid[:1]

    @property
    def num_windows(self) -> int:
        """The number of frames, or of places."""
        return math.prod(self.grid) // math.prod(self.window)

    def partition(self, x: Tensor, fill: Tensor | None = None) -> Tensor:
        """x (B, frames * places, D) -> (B * N, T, D); `fill` is not needed."""
        cells: Tensor = x.unflatten(1, (self.grid[0], -1))  # (B, frames, places, D)
        return (cells if self.axis == "space" else cells.transpose(1, 2)).flatten(0, 1)

    def merge(self, x: Tensor) -> Tensor:
        """(B * N, T, D) -> (B, frames * places, D); the inverse of `partition`."""
        cells: Tensor = x.unflatten(0, (-1, self.num_windows))
        return (cells if self.axis == "space" else cells.transpose(1, 2)).flatten(1, 2)

    def allowed(self, batch: int, device: torch.device) -> None:
        """Return which tokens may attend to each other: all."""

    def token_ids(self, device: torch.device | str = "cpu") -> Tensor:
        """Return which token of the video each token is, (N, T)."""
        return self.partition(torch.arange(math.prod(self.grid), device=device).view(1, -1, 1)).squeeze(-1)


Layout = WindowLayout | AxisLayout


def layout_of(grid: Grid, spec: specs.WindowSpec | specs.AxisSpec) -> Layout:
    """Return how a grid is divided."""
    video = isinstance(spec, specs.AxisSpec)
    if len(grid) != 2 + video:
        name = "frames, rows and columns" if video else "rows and columns"
        raise ShapeError("the grid of the tokens", grid, f"{name}, for attention within {spec.kind}")
    return AxisLayout(grid, spec.axis) if isinstance(spec, specs.AxisSpec) else WindowLayout.of(grid, spec)


class RelativeBias2d(nn.Module):
    """Relative position bias in two dimensions: a trained bias per head, row offset and column offset.

    grid: rows and columns of the tokens that attend to each other, usually a window
    signed: whether the bias depends on the direction of an offset, else only on its absolute value
    """

    computes_buffers = True
    has_tables = True

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

    computes_buffers = True

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

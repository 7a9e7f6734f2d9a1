"""Window attention on the whole grid: the tensors of all windows as those of one sequence of patches.

B images, N windows of an image, H heads, t patches of a window, T patches of the grid, K head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from glassformer.core.observe import Record
from glassformer.core.vision.attention import Layout, offset_index


def whole_grid(x: Tensor, windows: Layout) -> Tensor:
    """Return queries, keys, values or head outputs (B * N, H, t, K) by patch of the grid, (B, H, T, K)."""
    heads = x.shape[1]
    return windows.merge(x.transpose(1, 2).flatten(2)).unflatten(-1, (heads, -1)).transpose(1, 2)


def spread_matrix(x: Tensor, windows: Layout, outside: float) -> Tensor:
    """Spread scores or weights (B * N, H, t, t) over the grid, (B, H, T, T).

    outside: value for pairs of patches in different windows. Keys that pad the grid are left out.
    """
    ids = windows.token_ids(x.device)  # (N, t)
    images, tokens = x.shape[0] // len(ids), math.prod(windows.grid)
    result = x.new_full((images, x.shape[1], tokens, tokens), outside)
    for matrix, own in zip(x.unflatten(0, (images, -1)).unbind(1), ids, strict=True):
        real = own >= 0
        result[:, :, own[real][:, None], own[real]] = matrix[:, :, real][..., real]
    return result


def spread_row(x: Tensor, windows: Layout, query: int, outside: float) -> Tensor:
    """Return one query's row of `spread_matrix`, (B, H, T), without building the matrix."""
    ids = windows.token_ids(x.device)
    window, place = (int(i) for i in (ids == query).nonzero()[0])
    images, own = x.shape[0] // len(ids), ids[window]
    real = own >= 0
    result = x.new_full((images, x.shape[1], math.prod(windows.grid)), outside)
    result[:, :, own[real]] = x.unflatten(0, (images, -1))[:, window, :, place][..., real]
    return result


def full_windows(record: Record, name: str) -> Tensor:
    """Return which windows (B * N,) of a layer have neither padding nor masked pairs; all if none is so."""
    context = record.attention_contexts[name]
    assert context.windows is not None
    q, windows = record[f"{name}.q"], context.windows
    images = q.shape[0] // windows.num_windows
    full = (windows.token_ids(q.device) >= 0).all(-1).repeat(images)
    allowed = windows.allowed(images, q.device)
    if allowed is not None:
        full &= allowed.flatten(1).all(-1)
    return full if bool(full.any()) else torch.ones_like(full)


def bias_table(bias: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return a bias (1, H, t, t) by offset, (H, 2 * rows - 1, 2 * columns - 1).

    The center is a patch's bias to itself; a key below and right of its query is below and right of it.
    """
    rows, columns = grid
    table = bias.new_zeros(bias.shape[1], (2 * rows - 1) * (2 * columns - 1))
    table[:, offset_index(grid, bias.device).flatten()] = bias[0].flatten(1)
    return table.unflatten(1, (2 * rows - 1, 2 * columns - 1)).flip(1, 2)

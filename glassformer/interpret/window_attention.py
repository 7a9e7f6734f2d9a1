"""Window attention on the whole grid: the tensors of all windows as those of one sequence of patches.

B images, N windows of an image, H heads, t patches of a window, T patches of the grid, Q queries, K head
width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.core.observe import Record
from glassformer.core.vision.attention import Layout, offset_index


def whole_grid(x: Tensor, windows: Layout) -> Tensor:
    """Return queries, keys, values or head outputs (B * N, H, t, K) by patch of the grid, (B, H, T, K)."""
    heads = x.shape[1]
    return windows.merge(x.transpose(1, 2).flatten(2)).unflatten(-1, (heads, -1)).transpose(1, 2)


def spread_rows(x: Tensor, windows: Layout, queries: Sequence[int], outside: float) -> Tensor:
    """Spread the rows of some queries in scores or weights (B * N, H, t, t) over the grid, (B, H, Q, T).

    outside: value for pairs of patches in different windows. Keys that pad the grid are left out.
    """
    ids = windows.token_ids(x.device)  # (N, t)
    (count, length), tokens = ids.shape, math.prod(windows.grid)
    cells = ids.flatten().argsort()[-tokens:]  # of each patch; padding, which is -1, comes first
    chosen = cells[torch.tensor(queries, device=x.device)]
    rows = x.unflatten(0, (-1, count))[:, chosen // length, :, chosen % length]  # (Q, B, H, t)
    keys = (ids[chosen // length] % (tokens + 1))[:, None, None].expand_as(rows)  # padding is the last one
    result = rows.new_full((*rows.shape[:-1], tokens + 1), outside).scatter(-1, keys, rows)
    return result[..., :-1].movedim(0, 2)


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

"""Deformable attention: a query attends to a few sampled points of several feature maps.

    x (B, T, D) --offset_proj--> where to look: P points of each of L levels, around the query's own position
    x (B, T, D) --weight_proj--> how much each of the L * P points counts (softmax)
    memory (B, S, D) --v_proj--> values (B, S, H, K), sampled bilinearly at the points

The memory is the concatenation of L flattened grids, so S is the sum of their cells.

B batch, T queries, S keys, D d_model, H heads, K head width, L levels, P points.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.backend import Linear
from glassformer.core.observe import Observer, tap
from glassformer.core.positions import Grid
from glassformer.core.vision.grid import cell_centers
from glassformer.errors import InvalidValueError


class SamplingPoints(NamedTuple):
    """What all layers of a deformable encoder share; its attention backend.

    grids: of the L levels of the memory
    reference: (B|1, T, L|1, 2), x and y of every query in shares of each level, 0 to 1
    position: (1|B, T, D), added to the queries
    """

    grids: tuple[Grid, ...]
    reference: Tensor
    position: Tensor

    @classmethod
    def of(cls, grids: tuple[Grid, ...], position: Tensor) -> SamplingPoints:
        """Return the points of queries that are the cells of all levels."""
        centers = torch.cat([cell_centers(grid, position.device) for grid in grids])
        return cls(grids, centers[None, :, None].to(position.dtype), position)


class DeformableAttention(nn.Module):
    """Multi-scale deformable attention; a drop-in for the self-attention of a block.

    num_levels: number of feature maps in the memory
    num_points: sampled points of each head and level

    >>> attention = DeformableAttention(16, num_heads=4, num_levels=2)
    >>> points = SamplingPoints.of(((4, 6), (2, 3)), torch.randn(1, 30, 16))
    >>> attention(torch.randn(1, 30, 16), points).shape
    torch.Size([1, 30, 16])
    """

    def __init__(self, d_model: int, *, num_heads: int, num_levels: int, num_points: int = 4) -> None:
        super().__init__()
        if d_model % num_heads:
            raise InvalidValueError("d_model", d_model, f"a multiple of num_heads {num_heads}")
        self.num_heads, self.num_levels, self.num_points = num_heads, num_levels, num_points
        samples = num_heads * num_levels * num_points
        self.offset_proj = nn.Linear(d_model, samples * 2)
        self.weight_proj = nn.Linear(d_model, samples)
        self.v_proj = Linear(d_model, d_model)
        self.out_proj = Linear(d_model, d_model)

    initializes_itself = True

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start with equal weights and points on rays around the query, one direction per head."""
        nn.init.zeros_(self.offset_proj.weight)
        angles = torch.arange(self.num_heads) * (2 * math.pi / self.num_heads)
        rays = torch.stack((angles.cos(), angles.sin()), -1)  # (H, 2)
        rays = rays / rays.abs().amax(-1, keepdim=True)
        steps = torch.arange(1, self.num_points + 1)[:, None]  # (P, 1)
        offsets = (rays[:, None, None] * steps).expand(-1, self.num_levels, -1, -1)  # (H, L, P, 2)
        self.offset_proj.bias.copy_(offsets.flatten())
        nn.init.zeros_(self.weight_proj.weight)
        nn.init.zeros_(self.weight_proj.bias)

    @property
    def output_layer(self) -> nn.Module:
        """The module that computes the output."""
        return self.out_proj

    def forward(self, x: Tensor, points: SamplingPoints, *, obs: Observer | None = None) -> Tensor:
        """x (B, T, D), which is also the memory -> (B, T, D)."""
        grids, reference, position = points
        queries = x + position.to(x.dtype)
        heads, levels, per_level = self.num_heads, self.num_levels, self.num_points
        offsets = self.offset_proj(queries).unflatten(-1, (heads, levels, per_level, 2))  # (B, T, H, L, P, 2)
        weights = self.weight_proj(queries).unflatten(-1, (heads, -1)).softmax(-1)  # (B, T, H, L * P)
        weights = tap(obs, "point_weights", weights)
        sizes = x.new_tensor([(columns, rows) for rows, columns in grids])[:, None]  # (L, 1, 2)
        where = reference[:, :, None, :, None] + offsets / sizes  # (B, T, H, L, P, 2), in shares of a level
        where = tap(obs, "points", where)
        values = self.v_proj(x).unflatten(-1, (heads, -1))  # (B, S, H, K)
        samples = [
            sample(level.unflatten(1, grid), where[:, :, :, n])
            for n, (grid, level) in enumerate(
                zip(grids, values.split([rows * columns for rows, columns in grids], 1), strict=True)
            )
        ]  # L of (B, T, H, P, K)
        joined: Tensor = torch.einsum("bthp,bthpk->bthk", weights, torch.cat(samples, 3))
        return tap(obs, "out", self.out_proj(tap(obs, "sampled", joined).flatten(-2)))


def sample(values: Tensor, where: Tensor) -> Tensor:
    """Sample values (B, rows, columns, H, K) at points (B, T, H, P, 2) -> (B, T, H, P, K).

    Points are x and y in shares of the grid. Values are interpolated bilinearly, and are 0 outside.
    """
    batch, _, _, heads, _ = values.shape
    maps = values.permute(0, 3, 4, 1, 2).flatten(0, 1)  # (B * H, K, rows, columns)
    points = where.transpose(1, 2).flatten(0, 1) * 2 - 1  # (B * H, T, P, 2), -1 to 1
    found = F.grid_sample(maps, points, mode="bilinear", padding_mode="zeros", align_corners=False)
    samples: Tensor = found.unflatten(0, (batch, heads)).permute(0, 3, 1, 4, 2)  # (B, T, H, P, K)
    return samples

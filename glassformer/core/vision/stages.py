"""A hierarchical image encoder: stages of blocks or convolutions, with merging of cells between them.

B batch, T = rows * columns cells of the grid, D width of a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.core.backend import Linear
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.kernels import Kernel
from glassformer.core.masks import Mask
from glassformer.core.norms import make_norm
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.positions import Grid
from glassformer.core.spec import NormSpec
from glassformer.core.stack import LayerOutput, Stack
from glassformer.core.vision.convolution.hybrid import ConvolutionMerging, ConvolutionStage


class PatchMerging(nn.Module):
    """Merge 2 x 2 neighboring cells into one: concatenate and project them, with a norm before or after.

    d_model, d_out: widths of a cell before and after merging
    norm: the norm; order: "norm_first" normalizes the concatenated cells, "norm_last" the projected ones

    >>> from glassformer.core.spec import LayerNormSpec
    >>> PatchMerging(8, d_out=16, norm=LayerNormSpec())(torch.randn(2, 15, 8), (3, 5)).shape
    torch.Size([2, 6, 16])
    """

    stride = 2  # by which rows and columns are divided

    def __init__(
        self,
        d_model: int,
        *,
        d_out: int,
        norm: NormSpec,
        order: Literal["norm_first", "norm_last"] = "norm_first",
    ) -> None:
        super().__init__()
        self.order = order
        self.norm = make_norm(norm, 4 * d_model if order == "norm_first" else d_out)
        self.project = Linear(4 * d_model, d_out, bias=False)

    def forward(self, x: Tensor, grid: Grid, *, obs: Observer | None = None) -> Tensor:
        """x (B, rows * columns, D) -> (B, ceil(rows / 2) * ceil(columns / 2), d_out)."""
        rows, columns = grid
        cells = nn.functional.pad(x.unflatten(1, grid), (0, 0, 0, columns % 2, 0, rows % 2))
        # top left, bottom left, top right, bottom right
        corners = [cells[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        merged = torch.cat(corners, -1).flatten(1, 2)
        if self.order == "norm_first":
            return tap(obs, "out", self.project(self.norm(merged)))
        return tap(obs, "out", self.norm(self.project(merged)))


class Stages(nn.Module):
    """A hierarchical encoder: stages, between which cells are merged and the width changes.

    stages: Transformer stacks or stages of convolutions
    merging: merges cells after each stage but the last
    final_norm: norm after the last stage

    >>> from glassformer.core import spec
    >>> from glassformer.core.vision.build import build_stages
    >>> ffn = spec.FeedForwardSpec(d_ff=8)
    >>> block = spec.BlockSpec(attention=spec.AttentionSpec(num_heads=2), feed_forward=ffn)
    >>> encoder = build_stages(spec.StagesSpec(stages=tuple(
    ...     spec.StackSpec(d_model=width, num_layers=1, block=block) for width in (8, 16))))
    >>> source = EmbeddingOutput(torch.randn(2, 12, 8), Mask(), grid=(3, 4))
    >>> encoder(source).shape, encoder.output_grid((3, 4))
    (torch.Size([2, 4, 16]), (2, 2))
    """

    def __init__(
        self,
        stages: Sequence[Stack | ConvolutionStage],
        *,
        merging: Sequence[PatchMerging | ConvolutionMerging],
        final_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.merging = nn.ModuleList(merging)
        self.strides = tuple(part.stride for part in merging)
        self.final_norm = final_norm

    def output_grid(self, grid: Grid) -> Grid:
        """Return rows and columns of the output for an input with these rows and columns."""
        for stride in self.strides:
            grid = _divide(grid, stride)
        return grid

    def forward(
        self, source: EmbeddingOutput, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> Tensor:
        """Cells (B, rows * columns, D) -> (B, T, D) of the last stage."""
        x = self.layer_outputs(source, kernel=kernel, obs=obs)[-1].x
        return x if self.final_norm is None else tap(obs, "final_norm", self.final_norm(x))

    def layer_outputs(
        self, source: EmbeddingOutput, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> tuple[LayerOutput, ...]:
        """Return the input, and the output of every stage before merging."""
        x, grid = source.x, source.grid
        assert grid is not None
        states = [LayerOutput(x, grid)]
        for n, stage in enumerate(self.stages):
            x = stage(EmbeddingOutput(x, Mask(), grid=grid), kernel=kernel, obs=scope(obs, f"stages.{n}"))
            states.append(LayerOutput(x, grid))
            if n < len(self.merging):
                x = self.merging[n](x, grid, obs=scope(obs, f"merging.{n}"))
                grid = _divide(grid, self.strides[n])
        return tuple(states)


def _divide(grid: Grid, stride: int) -> Grid:
    """Return rows and columns divided by the stride, rounded up."""
    return -(-grid[0] // stride), -(-grid[1] // stride)

"""Positions as pictures: the table as a heat map, and some of its columns as waves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.plotting.canvas import FAINT, blank, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _table(table: Tensor) -> Tensor:
    if table.dim() != 2:
        raise GlassformerError(f"a position table is (positions, d_model); got {tuple(table.shape)}")
    return table.detach().float().cpu()


def position_heatmap(table: Tensor, *, title: str = "Position table") -> Figure:
    """A table (positions, D): one row a position, one column a dimension, red above 0 and blue below."""
    values = _table(table)
    top = float(values.abs().max()) or 1.0
    with look():
        figure = blank(7.2, 3.8)
        axes = figure.subplots()
        image = axes.imshow(
            values.numpy(),
            cmap="RdBu_r",
            vmin=-top,
            vmax=top,
            aspect="auto",
            interpolation="nearest",
        )
        axes.set(xlabel="dimension", ylabel="position", title=title)
        bar = figure.colorbar(image, ax=axes, pad=0.02, ticks=[-top, 0, top], format="%.2g")
        bar.outline.set_visible(False)
    return figure


def position_waves(
    table: Tensor, dimensions: Sequence[int] = (0, 8, 16, 24, 32), *, title: str = "Each dimension is a wave"
) -> Figure:
    """Columns of a table (positions, D) as curves over the position, one strip each."""
    values = _table(table)
    chosen = [d for d in dimensions if d < values.shape[1]]
    if not chosen:
        raise GlassformerError(
            f"the table has dimensions 0 to {values.shape[1] - 1}; none of {dimensions} is among them"
        )
    top = 1.15 * (float(values.abs().max()) or 1.0)
    with look():
        from matplotlib import colormaps

        figure = blank(7.2, 0.5 + 0.72 * len(chosen))
        strips = figure.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
        for n, (axes, dimension) in enumerate(zip(strips, chosen, strict=True)):
            colour = colormaps["viridis"](0.85 * n / max(1, len(chosen) - 1))
            axes.axhline(0, color=FAINT, linewidth=0.8)
            axes.plot(values[:, dimension].numpy(), color=colour, linewidth=1.8)
            axes.set_ylim(-top, top)
            axes.set_xlim(0, values.shape[0] - 1)
            axes.set_yticks([])
            axes.set_ylabel(f"dim {dimension}", rotation=0, ha="right", va="center")
            for side in ("top", "right", "left", "bottom"):
                axes.spines[side].set_visible(False)
            axes.tick_params(length=0)
        strips[0].set_title(title)
        strips[-1].set_xlabel("position")
    return figure

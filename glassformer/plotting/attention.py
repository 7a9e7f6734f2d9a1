"""Attention as pictures: which token looks at which, for one head or for all of them side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from glassformer.core.observe import Record
from glassformer.errors import GlassformerError
from glassformer.plotting.canvas import bare, blank, look
from glassformer.plotting.fonts import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Labels = Sequence[str] | None
CMAP = "Blues"  # one hue from light to dark: safe for every eye, and in grey print
MOST_LABELS = 40


def attention_weights(record: Record, name: str, *, head: int | None = None, row: int = 0) -> Tensor:
    """One text's weights out of a record: (T, S) of a head, or their mean over the heads."""
    weights = record.weights(name, head)[row]
    return weights if head is not None else weights.mean(0)


def attention_map(
    weights: Tensor,
    *,
    queries: Labels = None,
    keys: Labels = None,
    title: str = "",
    query_name: str = "query",
    key_name: str = "key",
) -> Figure:
    """Weights (T, S) of one head (or a mean of heads): row t shows where query t looks."""
    matrix = _checked(weights, 2, queries, keys)
    rows, columns = matrix.shape
    cell = max(0.16, min(0.36, 7.0 / max(rows, columns)))
    with look():
        figure = blank(max(3.2, cell * columns + 1.9), max(2.4, cell * rows + 1.3))
        axes = figure.subplots()
        image = _draw(axes, matrix, queries, keys)
        axes.set(xlabel=key_name, ylabel=query_name, title=title)
        bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.03, ticks=[0, 0.5, 1], shrink=0.6)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
        bar.set_label("weight")
    return figure


def attention_grid(
    weights: Tensor, *, queries: Labels = None, keys: Labels = None, title: str = "", columns: int = 4
) -> Figure:
    """Weights (H, T, S): every head of an attention, side by side."""
    heads = _checked(weights, 3, queries, keys)
    count = heads.shape[0]
    across = min(columns, count)
    down = math.ceil(count / across)
    rows, keys_count = heads.shape[1:]
    cell = max(0.08, min(0.2, 2.4 / max(rows, keys_count)))
    with look():
        figure = blank(across * (cell * keys_count + 0.45) + 0.3, down * (cell * rows + 0.75) + 0.35)
        places = figure.subplots(down, across, squeeze=False).flatten()
        for n, axes in enumerate(places):
            if n >= count:
                axes.set_visible(False)
                continue
            _draw(axes, heads[n], queries if n % across == 0 else None, keys, small=True)
            axes.set_title(f"head {n}", fontsize=9, fontweight="normal", pad=5)
        if title:
            figure.suptitle(title, fontsize=11, fontweight="bold")
    return figure


def _draw(axes: Axes, matrix: Tensor, queries: Labels, keys: Labels, small: bool = False) -> AxesImage:
    rows, columns = matrix.shape
    image = axes.imshow(matrix.numpy(), cmap=CMAP, vmin=0, vmax=1, interpolation="nearest")
    size = 7 if small else 9
    for axis, names, count in ((axes.xaxis, keys, columns), (axes.yaxis, queries, rows)):
        if names is None or count > MOST_LABELS:
            axis.set_ticks([])
            continue
        shown = [label(name) for name in names]
        turned = axis is axes.xaxis and max(map(len, shown)) > 3
        axis.set_ticks(range(count), labels=shown, fontsize=size, rotation=90 if turned else 0)
    axes.xaxis.set_label_position("bottom")
    # thin lines between the cells, so that a token's row can be followed to its label
    axes.set_xticks([n - 0.5 for n in range(1, columns)], minor=True)
    axes.set_yticks([n - 0.5 for n in range(1, rows)], minor=True)
    axes.grid(which="minor", color="white", linewidth=0.5 if small else 1.0)
    axes.tick_params(which="minor", length=0)
    bare(axes)
    return image


def _checked(weights: Tensor, dims: int, queries: Labels, keys: Labels) -> Tensor:
    wanted = "(T, S)" if dims == 2 else "(H, T, S)"
    if weights.dim() != dims:
        raise GlassformerError(f"attention weights to draw are {wanted}; got {tuple(weights.shape)}")
    for what, names, count in (("queries", queries, weights.shape[-2]), ("keys", keys, weights.shape[-1])):
        if names is not None and len(names) != count:
            raise GlassformerError(f"{len(names)} labels were given for {count} {what}; give one for each")
    return weights.detach().float().cpu()

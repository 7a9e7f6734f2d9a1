"""Plot attention weights and masks. H heads, T queries, S keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from glassformer.core.observe import Record
from glassformer.errors import InvalidValueError, ShapeError
from glassformer.plotting.canvas import BLUE, figure_style, hide_frame, new_figure
from glassformer.plotting.fonts import drawable, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Labels = Sequence[str] | None
BLOCKED = "#eef1f4"
MAX_LABELS = 40


def attention_weights(record: Record, name: str, *, head: int | None = None, row: int = 0) -> Tensor:
    """Return the weights (T, S) of batch row `row` in a record: of one head, or the mean over heads."""
    weights = record.weights(name, head)[row]
    return weights if head is not None else weights.mean(0)


def attention(weights: Tensor, tokens: Labels = None, *, keys: Labels = None, title: str = "") -> Figure:
    """Plot the weights (T, S) of one head, or (H, T, S) or (1, H, T, S) of all heads side by side.

    tokens: the queries, one label for each row; keys: those of the columns, by default the same

    >>> import torch
    >>> figure = attention(torch.eye(3), ["I", "am", "here"])
    """
    if isinstance(weights, list):
        raise InvalidValueError("weights", "a list", "a tensor", "pass those of one layer: weights[-1]")
    if weights.dim() == 4 and weights.shape[0] > 1:
        hint = "pass one row of the batch: weights[0]"
        raise ShapeError("weights", weights.shape, "(T, S), (H, T, S) or (1, H, T, S)", hint)
    weights = weights[0] if weights.dim() == 4 else weights
    keys = tokens if keys is None else keys
    draw = attention_map if weights.dim() == 2 else attention_grid
    return draw(weights, queries=tokens, keys=keys, title=title)


def attention_map(
    weights: Tensor,
    *,
    queries: Labels = None,
    keys: Labels = None,
    title: str = "",
    query_name: str = "query",
    key_name: str = "key",
) -> Figure:
    """Plot weights (T, S) of one head, or a mean over heads: row t shows what query t attends to."""
    matrix = _check(weights, "attention weights", 2, "(T, S)")
    rows, columns = matrix.shape
    cell = max(0.16, min(0.36, 7.0 / max(rows, columns)))
    with figure_style():
        figure = new_figure(max(3.2, cell * columns + 1.9), max(2.4, cell * rows + 1.3))
        axes = figure.subplots()
        image = _draw_weights(axes, matrix, queries, keys)
        axes.set(xlabel=drawable(key_name), ylabel=drawable(query_name), title=drawable(title))
        bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.03, ticks=[0, 0.5, 1], shrink=0.6)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
        bar.set_label("weight")
    return figure


def attention_grid(
    weights: Tensor, *, queries: Labels = None, keys: Labels = None, title: str = "", columns: int = 4
) -> Figure:
    """Plot weights (H, T, S): every head of an attention layer, side by side."""
    heads = _check(weights, "attention weights", 3, "(H, T, S)")
    count, rows, width = heads.shape
    columns_used = min(columns, count)
    down = math.ceil(count / columns_used)
    cell = max(0.08, min(0.2, 2.4 / max(rows, width)))
    names = 0.06 * max((len(label(name)) for name in keys or ()), default=0)  # height of the rotated labels
    with figure_style():
        panel_height = cell * rows + 0.45 + max(0.3, names)
        figure = new_figure(columns_used * (cell * width + 0.45) + 0.3, down * panel_height + 0.35)
        for n, axes in enumerate(figure.subplots(down, columns_used, squeeze=False).flatten()):
            if n >= count:
                axes.set_visible(False)
                continue
            _draw_weights(axes, heads[n], queries if n % columns_used == 0 else None, keys, small=True)
            axes.set_title(f"head {n}", fontsize=9, fontweight="normal", pad=5)
        if title:
            figure.suptitle(drawable(title), fontsize=11, fontweight="bold")
    return figure


def _draw_weights(
    axes: Axes, matrix: Tensor, queries: Labels, keys: Labels, small: bool = False
) -> AxesImage:
    # one hue from light to dark: safe for color-blind readers and in print
    image = axes.imshow(matrix.numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    rows, columns = matrix.shape
    for axis, kind, names, count in (
        (axes.xaxis, "keys", keys, columns),
        (axes.yaxis, "queries", queries, rows),
    ):
        if names is not None and len(names) != count:
            raise ShapeError(f"the list of {kind}", [len(names)], f"one label for each of {count} {kind}")
        shown = [label(name) for name in names] if names is not None and count <= MAX_LABELS else []
        rotated = kind == "keys" and max(map(len, shown), default=0) > 3
        axis.set_ticks(
            range(len(shown)), labels=shown, fontsize=7 if small else 9, rotation=90 if rotated else 0
        )
        axis.set_ticks([n - 0.5 for n in range(1, count)], minor=True)
    # thin lines between the cells, so that a row can be followed to its label
    axes.grid(which="minor", color="white", linewidth=0.5 if small else 1.0)
    axes.tick_params(which="minor", length=0)
    hide_frame(axes)
    return image


def mask_map(allowed: Tensor, *, title: str = "may attend") -> Figure:
    """Plot a mask (T, S), or the first of (B, H, T, S): blue if query t may attend to key s."""
    return mask_row({title: allowed})


def mask_row(masks: Mapping[str, Tensor]) -> Figure:
    """Plot several masks side by side. masks: by title."""
    with figure_style():
        figure = new_figure(max(2.6, 2.35 * len(masks)), 2.75)
        panels = figure.subplots(1, len(masks), squeeze=False)[0]
        for axes, (title, allowed) in zip(panels, masks.items(), strict=True):
            _draw_mask(axes, _check(allowed[(0,) * (allowed.dim() - 2)], "the mask", 2, "(T, S)"), title)
        panels[0].set_ylabel("query")
    return figure


def _draw_mask(axes: Axes, allowed: Tensor, title: str) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    rows, columns = allowed.shape
    axes.pcolormesh(
        allowed.numpy(),
        cmap=ListedColormap([BLOCKED, BLUE]),
        vmin=0,
        vmax=1,
        edgecolors="white",
        linewidth=1.2 if max(rows, columns) <= 24 else 0,
    )
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xlabel="key", title=drawable(title))
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        step = max(1, int(MaxNLocator(5, integer=True).tick_values(0, count)[1]))
        axis.set_ticks([n + 0.5 for n in range(0, count, step)], labels=map(str, range(0, count, step)))
    hide_frame(axes)


def _check(values: Tensor, what: str, dims: int, expected: str) -> Tensor:
    if values.dim() != dims:
        raise ShapeError(what, values.shape, expected)
    return values.detach().float().cpu()

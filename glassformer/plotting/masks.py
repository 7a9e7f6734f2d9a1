"""Masks as pictures: filled where a query may attend to a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.plotting.canvas import BLUE, blank, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLOCKED = "#eef1f4"


def mask_map(allowed: Tensor, *, title: str = "may attend") -> Figure:
    """One mask (T, S), or the first of (B, H, T, S): blue where row t may attend to column s."""
    return mask_row({title: allowed})


def mask_row(masks: Mapping[str, Tensor]) -> Figure:
    """Several masks side by side, each under its title."""
    with look():
        figure = blank(max(2.6, 2.35 * len(masks)), 2.75)
        places = figure.subplots(1, len(masks), squeeze=False)[0]
        for n, (axes, (title, allowed)) in enumerate(zip(places, masks.items(), strict=True)):
            _one(axes, _flat(allowed), title)
            if n == 0:
                axes.set_ylabel("query")
    return figure


def _flat(allowed: Tensor) -> Tensor:
    while allowed.dim() > 2:
        allowed = allowed[0]
    if allowed.dim() != 2:
        raise GlassformerError(f"a mask to draw is (T, S) or (B, H, T, S); got {tuple(allowed.shape)}")
    return allowed.detach().bool().cpu()


def _one(axes: Axes, allowed: Tensor, title: str) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    rows, columns = allowed.shape
    axes.pcolormesh(
        allowed.int().numpy(),
        cmap=ListedColormap([BLOCKED, BLUE]),
        vmin=0,
        vmax=1,
        edgecolors="white",
        linewidth=1.2 if max(rows, columns) <= 24 else 0,
    )
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xlabel="key", title=title)
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        step = max(1, int(MaxNLocator(5, integer=True).tick_values(0, count)[1]))
        numbers = range(0, count, step)
        axis.set_ticks([n + 0.5 for n in numbers], labels=[str(n) for n in numbers])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)

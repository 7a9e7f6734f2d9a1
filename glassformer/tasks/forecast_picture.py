"""A forecast as a picture: the last stretch of each column, how it goes on, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from glassformer.plotting.canvas import BLUE, FAINT, INK, ORANGE, blank, look
from glassformer.plotting.fonts import label
from glassformer.tasks.forecast import Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 8  # columns drawn, the first ones
BEFORE = 4  # stretches of the past, each as long as the forecast
FEWEST = 48  # steps of the past
LONGEST = 18  # letters of a name


def forecast_picture(told: Forecast, *, series: int = 0) -> Figure:
    """One series: a panel for each column, at most eight of them."""
    past, steps = told.past, told.values.shape[1]
    shown = min(len(told.names), PANELS)
    kept = min(int(past.lengths[series]), max(FEWEST, BEFORE * steps))
    end = int(past.ends[series])
    before, after = past.stamps[end - kept : end], told.stamps[series]
    with look():
        figure = blank(9.0, 1.0 + (2.6 if shown == 1 else 1.7) * shown)
        panels = figure.subplots(shown, 1, sharex=True, squeeze=False)[:, 0]
        for column, axes in enumerate(panels):
            values = past.values[end - kept : end, column]
            axes.plot(_times(told, before), values, color=INK, linewidth=1.1, label="past")
            _future(axes, told, series, column, _times(told, np.append(before[-1:], after)), values[-1])
            axes.set_ylabel(_plain(told.names[column]))
            axes.axvline(_times(told, before[-1:])[0], color=FAINT, linewidth=1, zorder=0)
            axes.tick_params(length=3, color=FAINT)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].legend(
            loc="upper left", ncols=4, frameon=False, bbox_to_anchor=(0, 1.0 + 0.22), borderaxespad=0
        )
        if past.step.kind != "numbers":
            _dated(panels[-1])
        more = f" (and {len(told.names) - shown} more columns)" if len(told.names) > shown else ""
        which = f"{_plain(told.ids[series])}: " if len(told.ids) > 1 else ""
        figure.suptitle(f"{which}the next {steps} steps of {past.step}{more}", fontsize=11, fontweight="bold")
    return figure


def _future(axes: Axes, told: Forecast, series: int, column: int, times: Any, last: float) -> None:
    """The line that goes on from the last value, and a band for each pair of quantiles, darker inside."""
    line = np.append(last, told.values[series, :, column])
    levels, pairs = told.levels, len(told.levels) // 2
    for n in range(pairs):
        low, high = (
            np.append(last, told.quantiles[at, series, :, column]) for at in (n, len(levels) - 1 - n)
        )
        share = levels[-1 - n] - levels[n]
        name = f"{share:.0%} of futures" if n in (0, pairs - 1) else None
        axes.fill_between(
            times, low, high, color=_paler(BLUE, 0.85 - 0.55 * n / pairs), linewidth=0, label=name
        )
    axes.plot(times, line, color=ORANGE, linewidth=1.6, label="forecast")


def _paler(colour: str, share: float) -> tuple[float, ...]:
    """A colour with so much white in it."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return tuple(part + (1 - part) * share for part in parts)


def _plain(name: str) -> str:
    """A name in letters that can be drawn, short and on one line."""
    short = " ".join(name.split())
    short = short if len(short) <= LONGEST else f"{short[: LONGEST - 1]}…"
    return " ".join(label(word, LONGEST) for word in short.split(" "))


def _times(told: Forecast, stamps: Any) -> Any:
    return stamps if told.past.step.kind == "numbers" else stamps.astype("M8[us]")


def _dated(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=4, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))

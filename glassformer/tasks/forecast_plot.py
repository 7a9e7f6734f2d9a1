"""Plot a forecast: the recent past of each column, the prediction and its quantiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from glassformer.plotting.canvas import BLUE, FAINT, INK, ORANGE, figure_style, new_figure
from glassformer.plotting.fonts import label
from glassformer.tasks.forecasting import Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 8  # only the first columns are drawn
PAST_HORIZONS = 4  # length of the plotted past, relative to the forecast
MIN_PAST = 48  # steps
MAX_LABEL = 18  # characters


def plot_forecast(forecast: Forecast, *, series: int = 0) -> Figure:
    """Plot one series: a panel per column, at most eight."""
    past, steps = forecast.past, forecast.values.shape[1]
    count = min(len(forecast.names), MAX_PANELS)
    shown_past = min(int(past.lengths[series]), max(MIN_PAST, PAST_HORIZONS * steps))
    end = int(past.ends[series])
    before, after = past.stamps[end - shown_past : end], forecast.stamps[series]
    with figure_style():
        figure = new_figure(9.0, 1.0 + (2.6 if count == 1 else 1.7) * count)
        panels = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
        for column, axes in enumerate(panels):
            values = past.values[end - shown_past : end, column]
            axes.plot(_times(forecast, before), values, color=INK, linewidth=1.1, label="past")
            _plot_future(
                axes, forecast, series, column, _times(forecast, np.append(before[-1:], after)), values[-1]
            )
            axes.set_ylabel(_label(forecast.names[column]))
            axes.axvline(_times(forecast, before[-1:])[0], color=FAINT, linewidth=1, zorder=0)
            axes.tick_params(length=3, color=FAINT)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].legend(
            loc="upper left", ncols=4, frameon=False, bbox_to_anchor=(0, 1.0 + 0.22), borderaxespad=0
        )
        if past.step.kind != "numbers":
            _format_dates(panels[-1])
        more = f" (and {len(forecast.names) - count} more columns)" if len(forecast.names) > count else ""
        which = f"{_label(forecast.ids[series])}: " if len(forecast.ids) > 1 else ""
        figure.suptitle(f"{which}the next {steps} steps of {past.step}{more}", fontsize=11, fontweight="bold")
    return figure


def _plot_future(axes: Axes, forecast: Forecast, series: int, column: int, times: Any, last: float) -> None:
    """Draw the predicted values, starting at the last known value, and a band per pair of quantiles."""
    line = np.append(last, forecast.values[series, :, column])
    levels, pairs = forecast.quantile_levels, len(forecast.quantile_levels) // 2
    for n in range(pairs):
        low, high = (
            np.append(last, forecast.quantiles[at, series, :, column]) for at in (n, len(levels) - 1 - n)
        )
        share = levels[-1 - n] - levels[n]
        name = f"{share:.0%} prediction interval" if n in (0, pairs - 1) else None
        axes.fill_between(times, low, high, color=BLUE, alpha=0.15 + 0.1 * n / pairs, linewidth=0, label=name)
    axes.plot(times, line, color=ORANGE, linewidth=1.6, label="forecast")


def _label(name: str) -> str:
    """Shorten a name, and replace characters that the font lacks."""
    short = " ".join(name.split())
    short = short if len(short) <= MAX_LABEL else f"{short[: MAX_LABEL - 1]}…"
    return " ".join(label(word, MAX_LABEL) for word in short.split(" "))


def _times(forecast: Forecast, stamps: Any) -> Any:
    return stamps if forecast.past.step.kind == "numbers" else stamps.astype("M8[us]")


def _format_dates(axes: Axes) -> None:
    from matplotlib import dates as untyped

    dates: Any = untyped
    locator = dates.AutoDateLocator(minticks=4, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))

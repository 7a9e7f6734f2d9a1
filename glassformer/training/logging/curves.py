"""The curves of a run: what is drawn, and the drawing of it as PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from glassformer.errors import GlassformerError
from glassformer.training.logging.history import History, Line, number
from glassformer.weights.replacing import replacing

POINTS = 400  # of a curve; more cannot be told apart on a page
# Okabe and Ito's colours, told apart with any common colour blindness
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
INK, FAINT = "#1f2933", "#cbd2d9"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Values over steps; `marked` shows each point, for curves of few."""

    label: str
    points: tuple[tuple[float, float], ...]
    style: Literal["line", "marked"] = "line"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves that share their axes: steps from 0 to `until`, and their values."""

    title: str
    until: int
    curves: tuple[Curve, ...]
    values: Literal["as they come", "from nought"] = "as they come"


def panels(history: History) -> list[Panel]:
    """Loss of training and validation, every other metric, learning rate, speed, gradient norm."""
    until = max((line["step"] for line in (*history.steps, *history.validations)), default=0)
    names = list(dict.fromkeys(name for line in history.validations for name in _metrics(line)))
    unit = str(history.facts().get("unit", "units"))
    loss = (_trained("training", history, "loss"), _validated("validation", history, "loss"))
    speed = (_trained("speed", history, "units_per_second"),)
    drawn = [
        Panel(title="Loss", until=until, curves=loss),
        *(
            Panel(title=name, until=until, curves=(_validated(name, history, name),))
            for name in names
            if name != "loss"
        ),
        Panel(title="Learning rate", until=until, curves=(_trained("learning rate", history, "lr"),)),
        Panel(title=f"{unit.capitalize()} a second", until=until, curves=speed, values="from nought"),
        Panel(title="Gradient norm", until=until, curves=(_trained("gradient norm", history, "grad_norm"),)),
    ]
    kept = [replace(panel, curves=tuple(curve for curve in panel.curves if curve.points)) for panel in drawn]
    return [panel for panel in kept if panel.curves]


def _metrics(line: Line) -> dict[str, float]:
    found = line.get("metrics")
    return found if isinstance(found, dict) else {}


def _trained(label: str, history: History, key: str) -> Curve:
    points = [(float(line["step"]), number(line, key)) for line in history.steps]
    return Curve(label=label, points=thinned(points))


def _validated(label: str, history: History, name: str) -> Curve:
    points = [(float(line["step"]), number(_metrics(line), name)) for line in history.validations]
    return Curve(label=label, points=thinned(points), style="marked")


def thinned(points: Sequence[tuple[float, float]], most: int = POINTS) -> tuple[tuple[float, float], ...]:
    """At most so many points, each the mean of its neighbours; points without a finite value are left out.

    >>> thinned([(1, 2.0), (2, 4.0), (3, 6.0), (4, float("nan")), (5, 8.0)], most=2)
    ((1.5, 3.0), (4.0, 7.0))
    """
    good = [point for point in points if math.isfinite(point[1])]
    size = max(1, math.ceil(len(good) / most))
    groups = [good[n : n + size] for n in range(0, len(good), size)]
    return tuple(
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups
    )


def write_curves(drawn: Sequence[Panel], path: Path) -> None:
    """Write the panels as one PNG, two abreast."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise GlassformerError("matplotlib is not installed; `pip install matplotlib` brings it") from None
    across = min(2, len(drawn))
    down = math.ceil(len(drawn) / across)
    with rc_context({"font.size": 10, "axes.edgecolor": FAINT, "text.color": INK, "xtick.color": INK}):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
        figure = Figure(figsize=(6.2 * across, 3.1 * down), facecolor="white", layout=layout)
        FigureCanvasAgg(figure)
        for place, panel in enumerate(drawn):
            axes = figure.add_subplot(down, across, place + 1)
            axes.set_title(_plain(panel.title), loc="left", fontweight="bold", fontsize=11)
            for curve, colour in zip(panel.curves, COLOURS, strict=False):
                x, y = zip(*curve.points, strict=True)
                marker = "o" if curve.style == "marked" else ("." if len(x) == 1 else "")
                axes.plot(
                    x, y, color=colour, label=_plain(curve.label), marker=marker, markersize=4, linewidth=1.5
                )
            axes.set_xlim(0, max(panel.until, 1) * 1.01)
            if panel.values == "from nought":
                axes.set_ylim(0, 1.15 * max(y for curve in panel.curves for _, y in curve.points) or 1)
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color=FAINT, linewidth=0.6)
            axes.set_axisbelow(True)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            if place >= len(drawn) - across:
                axes.set_xlabel("step")
            if len(panel.curves) > 1:
                axes.legend(frameon=False)
        with replacing(path) as file:
            # the library would write its own version into the file, and each upgrade change the picture
            figure.savefig(file, format="png", dpi=120, metadata={"Software": None})


def _plain(label: str) -> str:
    """A dollar sign would start a formula."""
    return label.replace("$", r"\$")

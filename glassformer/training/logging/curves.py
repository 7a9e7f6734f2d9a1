"""Training curves: which are drawn, and their rendering with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO

from glassformer.training.logging.console import format_number
from glassformer.training.logging.history import History, Line, number

MAX_POINTS = 400  # per curve
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe-Ito, safe for colour blindness
INK, FAINT = "#1f2933", "#cbd2d9"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Values over steps; `markers` shows each point."""

    label: str
    points: tuple[tuple[float, float], ...]
    markers: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves that share axes: steps from 0 to `until`, and their values, from zero on if `from_zero`."""

    title: str
    until: int
    curves: tuple[Curve, ...]
    from_zero: bool = False

    def description(self) -> str:
        """Alternative text."""
        ranges = (
            f"{c.label} from {format_number(c.points[0][1])} to {format_number(c.points[-1][1])}"
            for c in self.curves
        )
        return f"{self.title}: {', '.join(ranges)}"


def panels(history: History) -> list[Panel]:
    """Loss of training and validation, every other metric, learning rate, speed, gradient norm."""
    until = max((line["step"] for line in (*history.steps, *history.validations)), default=0)
    names = list(dict.fromkeys(name for line in history.validations for name in _metrics(line)))
    unit = str(history.facts().get("unit", "units"))
    loss = (_training_curve("training", history, "loss"), _validation_curve("validation", history, "loss"))
    speed = (_training_curve("speed", history, "units_per_second"),)
    rate = (_training_curve("learning rate", history, "lr"),)
    norm = (_training_curve("gradient norm", history, "grad_norm"),)
    drawn = [
        Panel(title="Loss", until=until, curves=loss),
        *(
            Panel(title=name, until=until, curves=(_validation_curve(name, history, name),))
            for name in names
            if name != "loss"
        ),
        Panel(title="Learning rate", until=until, curves=rate),
        Panel(title=f"{unit.capitalize()} per second", until=until, curves=speed, from_zero=True),
        Panel(title="Gradient norm", until=until, curves=norm),
    ]
    drawn = [replace(panel, curves=tuple(curve for curve in panel.curves if curve.points)) for panel in drawn]
    return [panel for panel in drawn if panel.curves]


def _metrics(line: Line) -> dict[str, float]:
    found = line.get("metrics")
    return found if isinstance(found, dict) else {}


def _training_curve(label: str, history: History, key: str) -> Curve:
    points = [(float(line["step"]), number(line, key)) for line in history.steps]
    return Curve(label=label, points=downsample(points))


def _validation_curve(label: str, history: History, name: str) -> Curve:
    points = [(float(line["step"]), number(_metrics(line), name)) for line in history.validations]
    return Curve(label=label, points=downsample(points), markers=True)


def downsample(
    points: Sequence[tuple[float, float]], limit: int = MAX_POINTS
) -> tuple[tuple[float, float], ...]:
    """At most `limit` points, each the mean of its neighbours; non-finite values are dropped.

    >>> downsample([(1, 2.0), (2, 4.0), (3, 6.0), (4, float("nan")), (5, 8.0)], limit=2)
    ((1.5, 3.0), (4.0, 7.0))
    """
    finite = [point for point in points if math.isfinite(point[1])]
    size = max(1, math.ceil(len(finite) / limit))
    groups = [finite[n : n + size] for n in range(0, len(finite), size)]
    return tuple(
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups
    )


def render_curves(drawn: Sequence[Panel]) -> bytes:
    """The panels as one PNG, two per row."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    columns = min(2, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    with rc_context({"font.size": 10, "axes.edgecolor": FAINT, "text.color": INK, "xtick.color": INK}):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
        figure = Figure(figsize=(6.2 * columns, 3.1 * rows), facecolor="white", layout=layout)
        FigureCanvasAgg(figure)
        for index, panel in enumerate(drawn):
            axes = figure.add_subplot(rows, columns, index + 1)
            axes.set_title(_escape_math(panel.title), loc="left", fontweight="bold", fontsize=11)
            for curve, color in zip(panel.curves, COLORS, strict=False):
                x, y = zip(*curve.points, strict=True)
                marker = "o" if curve.markers else ("." if len(x) == 1 else "")
                label = _escape_math(curve.label)
                axes.plot(x, y, color=color, label=label, marker=marker, markersize=4, linewidth=1.5)
            axes.set_xlim(0, max(panel.until, 1) * 1.01)
            if panel.from_zero:
                axes.set_ylim(0, 1.15 * max(y for curve in panel.curves for _, y in curve.points) or 1)
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color=FAINT, linewidth=0.6)
            axes.set_axisbelow(True)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            if index >= len(drawn) - columns:
                axes.set_xlabel("step")
            if len(panel.curves) > 1:
                axes.legend(frameon=False)
        picture = BytesIO()
        # without matplotlib's version in the metadata, so that an upgrade does not change the file
        figure.savefig(picture, format="png", dpi=120, metadata={"Software": None})
    return picture.getvalue()


def _escape_math(label: str) -> str:
    """A dollar sign would start a formula."""
    return label.replace("$", r"\$")

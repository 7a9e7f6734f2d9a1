"""Write the report of a run: report.html, which is self-contained, and curves.png.

The report is generated from metrics.jsonl and recipe.yaml in the run folder, so it can be written during the
run, after an interruption, or on another machine.
"""

from __future__ import annotations

import base64
import math
import re
import time
from collections.abc import Iterable, Mapping
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any

from glassformer.errors import FileProblemError
from glassformer.pretrained import RECIPE
from glassformer.training.logging.console import format_duration, format_number
from glassformer.training.logging.history import METRICS_FILE, History, Points, number, read_history
from glassformer.training.logging.sample_images import read_images
from glassformer.training.task import lower_is_better
from glassformer.weights.atomic_write import write_file

Panels = Mapping[str, Mapping[str, Points]]  # title of a panel -> label of a curve -> points

MAX_POINTS = 400  # per curve
MAX_MARKERS = 50  # a curve with more points is drawn without markers
# Okabe-Ito, safe for color blindness
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
INK, FAINT = "#1f2933", "#cbd2d9"
SHOWN_SAMPLES = 20
SHOWN_IMAGE_STEPS = 4  # validations whose images are shown
SEPARATE_FACTS = ("command", "unit", "total steps", "started at step")  # shown elsewhere in the report
TEMPLATE = Path(__file__).with_name("report.html")


def write_report(folder: str | Path) -> list[Path]:
    """Write report.html and, if there is anything to draw, curves.png; return the paths written."""
    root = Path(folder)
    try:
        history = read_history(root)
    except OSError as error:
        raise FileProblemError(root / METRICS_FILE, f"cannot be read ({error.strerror})") from error
    written, content = [root / "report.html"], _content(root, history)
    if curve_panels := panels(history):
        picture = render_curves(curve_panels)
        written.append(root / "curves.png")
        write_file(written[-1], picture)
        content["picture"] = base64.b64encode(picture).decode()
        content["description"] = "; ".join(
            f"{title}: {label} from {format_number(points[0][1])} to {format_number(points[-1][1])}"
            for title, lines in curve_panels.items()
            for label, points in lines.items()
        )
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters["number"] = format_number
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    write_file(written[0], template.render(content).encode("utf-8", "replace"))
    return written


# ---- curves ------------------------------------------------------------------------------------------------


def panels(history: History) -> Panels:
    """Return the curves to draw: losses, other metrics, learning rate, speed and gradient norm."""
    metrics = history.metrics()
    unit = str(history.facts().get("unit", "units"))
    curves: dict[str, dict[str, Points]] = {
        "Loss": {"training": history.values("loss"), "validation": metrics.pop("loss", [])},
        **_group(metrics),
        "Learning rate": {"learning rate": history.values("lr")},
        f"{unit.capitalize()} per second": {"speed": history.values("units_per_second")},
        "Gradient norm": {"gradient norm": history.values("grad_norm")},
    }
    thinned = {
        title: {label: thin for label, points in lines.items() if (thin := downsample(points))}
        for title, lines in curves.items()
    }
    return {title: lines for title, lines in thinned.items() if lines}


def _group(metrics: Mapping[str, Points]) -> dict[str, dict[str, Points]]:
    """Put variants of a metric into its panel, e.g. ap50 and ap_small into that of ap.

    >>> _group({"ap": [(1, 0.5)], "ap50": [(1, 0.7)], "apple": [(1, 3)]})
    {'ap': {'ap': [(1, 0.5)], 'ap50': [(1, 0.7)]}, 'apple': {'apple': [(1, 3)]}}
    """
    groups: dict[str, dict[str, Points]] = {}
    for name, points in metrics.items():
        title = next((base for base in groups if re.match(rf"{re.escape(base)}[^a-z]", name)), name)
        groups.setdefault(title, {})[name] = points
    return groups


def downsample(points: Points, limit: int = MAX_POINTS) -> Points:
    """Reduce a curve to at most `limit` points by averaging neighbors.

    >>> downsample([(1, 2.0), (2, 4.0), (3, 6.0), (5, 8.0)], limit=2)
    [(1.5, 3.0), (4.0, 7.0)]
    """
    size = max(1, math.ceil(len(points) / limit))
    groups = [points[n : n + size] for n in range(0, len(points), size)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups
    ]


def render_curves(panels: Panels) -> bytes:
    """Draw the panels as one PNG, two per row."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    style: Any = {
        "font.size": 10,
        "axes.edgecolor": FAINT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "text.color": INK,
        "xtick.color": INK,
        "grid.color": FAINT,
        "text.parse_math": False,  # a dollar sign would start a formula
    }
    with rc_context(style):
        figure = Figure(figsize=(6.2 * columns, 3.1 * rows), facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        for index, (title, lines) in enumerate(panels.items()):
            axes = figure.add_subplot(rows, columns, index + 1, title=title)
            for (label, points), color in zip(lines.items(), cycle(COLORS), strict=False):
                marker = "." if len(points) <= MAX_MARKERS else ""
                axes.plot(*zip(*points, strict=True), color=color, label=label, marker=marker)
            axes.set_xlim(left=0)
            if title.endswith("per second"):
                axes.set_ylim(bottom=0)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.grid(axis="y")
            axes.set_xlabel("step")
            if len(lines) > 1:
                axes.legend(frameon=False)
        picture = BytesIO()
        # no matplotlib version in the metadata, so that an upgrade does not change the file
        figure.savefig(picture, format="png", dpi=120, metadata={"Software": None})
    return picture.getvalue()


# ---- page --------------------------------------------------------------------------------------------------


def _content(root: Path, history: History) -> dict[str, Any]:
    """Return what the template shows."""
    facts, metrics = history.facts(), history.metrics()
    sampled = next((line for line in reversed(history.validations) if line.get("samples")), {})
    signatures = [line.get("signatures") or {} for line in history.validations]
    return {
        "title": root.resolve().name,
        "step": history.steps[-1]["step"] if history.steps else 0,
        "facts": facts,
        "tiles": list(_tiles(history, metrics, facts)),
        "best": {name: _best(name, values)[0] for name, values in metrics.items()},
        "metrics": {name: dict(values) for name, values in metrics.items()},
        "validated_steps": [line["step"] for line in history.validations],
        "signatures": {name: text for line in signatures for name, text in line.items()},
        "sampled_step": sampled.get("step"),
        "samples": sampled.get("samples", [])[:SHOWN_SAMPLES],
        "images": list(_images(root, history)),
        "run": list(_run_facts(history, facts)),
        "recipe": (root / RECIPE).read_text("utf-8", errors="replace") if (root / RECIPE).is_file() else "",
        "messages": [event for event in history.events if "text" in event],
    }


def _images(root: Path, history: History) -> Iterable[tuple[int, list[tuple[str, str]]]]:
    """Yield the step and the images, captions and base64, of validations from the last to the first."""
    drawn = [line for line in reversed(history.validations) if line.get("images")]
    spread = min(SHOWN_IMAGE_STEPS, len(drawn))
    for n in range(spread):
        line = drawn[n * (len(drawn) - 1) // max(1, spread - 1)]
        pictures = read_images(root, line["images"])
        yield line["step"], [(caption, base64.b64encode(data).decode()) for caption, data in pictures]


def _best(name: str, values: Points) -> tuple[float, float]:
    """Return step and value of the best result of a metric, the earliest of equal ones."""
    sign = 1 if lower_is_better(name) else -1
    return min(values, key=lambda pair: (sign * pair[1], pair[0]))


def _tiles(
    history: History, metrics: Mapping[str, Points], facts: Mapping[str, Any]
) -> Iterable[tuple[str, str, str]]:
    """Yield the key numbers: name, value and remark."""
    for name, values in metrics.items():
        (step, best), (last_step, last) = _best(name, values), values[-1]
        remark = f"best, at step {step:,}; {format_number(last)} at the end"
        remark = "best, and last" if step == last_step else remark
        yield name if name != "loss" else "validation loss", format_number(best), remark
    if history.steps:
        line = history.steps[-1]
        yield "training loss", format_number(number(line, "loss")), f"at step {line['step']:,}"
    if speeds := sorted(speed for _, speed in history.values("units_per_second")):
        median = format_number(speeds[len(speeds) // 2])
        yield f"{facts.get('unit', 'units')} per second", median, "median"


def _run_facts(history: History, facts: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield name and text of times, counts and other facts about the run."""
    lines = [*history.steps, *history.validations, *history.events]
    if stamps := [stamp for line in lines if math.isfinite(stamp := number(line, "time"))]:
        for name, stamp in (("started", min(stamps)), ("last entry", max(stamps))):
            yield name, time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(stamp))
    starts = [event for event in history.events if "started at step" in (event.get("facts") or {})]
    if len(starts) > 1:
        yield "resumed", f"{len(starts) - 1} times"
    if history.steps:
        scale = history.steps[-1]["step"] / len(history.steps)  # if only some steps are logged
        seconds, units = (sum(dict(history.values(key)).values()) * scale for key in ("seconds", "units"))
        yield "time in steps", format_duration(seconds)
        yield f"{facts.get('unit', 'units')} processed", f"{units:,.0f}"
    if memory := dict(history.values("memory")):
        yield "peak memory", f"{max(memory.values()) / 1e9:.2f} GB"
    for name, value in facts.items():
        if name not in SEPARATE_FACTS:
            yield name, _format_value(value)


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_format_value(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_format_value, value))
    if isinstance(value, float):
        return format_number(value)
    return f"{value:,}" if type(value) is int else str(value)

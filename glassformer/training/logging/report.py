"""Write the report of a run: report.html, which is self-contained, and curves.png.

The report is generated from metrics.jsonl and recipe.yaml in the run folder, so it can be written during the
run, after an interruption, or on another machine.
"""

from __future__ import annotations

import base64
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from glassformer.errors import FileProblemError
from glassformer.pretrained import RECIPE
from glassformer.training.logging.console import format_duration, format_number
from glassformer.training.logging.history import METRICS_FILE, History, number, read_history
from glassformer.training.task import lower_is_better
from glassformer.weights.atomic_write import atomic_write

Points = Sequence[tuple[float, float]]  # step and value
Panels = Mapping[str, Mapping[str, Points]]  # title of a panel -> label of a curve -> points

MAX_POINTS = 400  # per curve
MAX_MARKERS = 50  # a curve with more points is drawn without markers
# Okabe-Ito, safe for color blindness
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
INK, FAINT = "#1f2933", "#cbd2d9"
SHOWN_SAMPLES = 20
SEPARATE_FACTS = ("command", "unit", "total steps", "started at step")  # shown elsewhere in the report
# the page must not load anything, whatever its texts contain
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #616e7c; --paper: #fff; --card: #f5f7fa;
  --rule: #dde3ea; --good: #009e73; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ef; --soft: #9aa5b1; --paper: #14181d;
  --card: #1d232a; --rule: #323b45; --good: #3fc79a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.55 system-ui, "Segoe UI", Roboto, "Noto Sans", "Noto Sans KR", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0; }
h2 { font-size: 18px; margin: 44px 0 14px; }
.sub, .note, footer { color: var(--soft); } .sub { margin: 6px 0 28px; } .note, footer { font-size: 13px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 12px; }
.tile, pre { background: var(--card); border-radius: 10px; padding: 14px 16px; margin: 0; }
.tile b { display: block; font-size: 26px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile small { color: var(--soft); }
img { width: 100%; height: auto; display: block; border-radius: 10px; }
.scroll, pre { overflow: auto; max-height: 540px; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: var(--soft); background: var(--paper); position: sticky; top: 0; }
th, td { padding: 7px 18px 7px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
.numbers { width: auto; min-width: 50%; font-variant-numeric: tabular-nums; }
.numbers th, .numbers td { text-align: right; padding: 5px 0 5px 28px; }
.texts td { white-space: pre-wrap; }
strong { color: var(--good); }
code, pre { font: 13px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media print { .scroll, pre { max-height: none; overflow: visible; } }
"""


def write_report(folder: str | Path) -> list[Path]:
    """Write report.html and, if there is anything to draw, curves.png; return the paths written."""
    root = Path(folder)
    try:
        history = read_history(root)
    except OSError as error:
        raise FileProblemError(root / METRICS_FILE, f"cannot be read ({error.strerror})") from error
    curves = ""
    written = [root / "report.html"]
    if curve_panels := panels(history):
        picture = render_curves(curve_panels)
        written.append(root / "curves.png")
        with atomic_write(written[-1]) as file:
            file.write(picture)
        described = (
            f"{title}: {label} from {format_number(points[0][1])} to {format_number(points[-1][1])}"
            for title, lines in curve_panels.items()
            for label, points in lines.items()
        )
        data = base64.b64encode(picture).decode()
        image = f'<img alt="{escape("; ".join(described))}" src="data:image/png;base64,{data}">'
        curves = _section("Curves", image)
    with atomic_write(written[0]) as file:
        file.write(_page(root, history, curves).encode("utf-8", "replace"))
    return written


# ---- curves ------------------------------------------------------------------------------------------------


def panels(history: History) -> Panels:
    """Return the curves to draw: losses, other metrics, learning rate, speed and gradient norm."""
    metrics = _by_metric(history)
    unit = str(history.facts().get("unit", "units"))

    def training(key: str) -> Points:
        return [(line["step"], number(line, key)) for line in history.steps]

    curves: dict[str, dict[str, Points]] = {
        "Loss": {"training": training("loss"), "validation": metrics.pop("loss", [])},
        **_group(metrics),
        "Learning rate": {"learning rate": training("lr")},
        f"{unit.capitalize()} per second": {"speed": training("units_per_second")},
        "Gradient norm": {"gradient norm": training("grad_norm")},
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
    """Reduce a curve to at most `limit` points by averaging neighbors; non-finite values are dropped.

    >>> downsample([(1, 2.0), (2, 4.0), (3, 6.0), (4, float("nan")), (5, 8.0)], limit=2)
    [(1.5, 3.0), (4.0, 7.0)]
    """
    finite = [point for point in points if math.isfinite(point[1])]
    size = max(1, math.ceil(len(finite) / limit))
    groups = [finite[n : n + size] for n in range(0, len(finite), size)]
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


def _page(root: Path, history: History, curves: str) -> str:
    facts = history.facts()
    recipe = (root / RECIPE).read_text("utf-8", errors="replace") if (root / RECIPE).is_file() else ""
    title = escape(root.resolve().name)
    step = history.steps[-1]["step"] if history.steps else 0
    run = [[escape(name), escape(value)] for name, value in _run_facts(history, facts)]
    messages = [[f"{event['step']:,}", _text(event["text"])] for event in history.events if "text" in event]
    parts = [
        _tiles(history, facts),
        curves,
        _section("Validation", _validation_table(history)) if history.validations else "",
        _samples(history),
        _section("Run", _table(["", ""], run, kind="texts")),
        _section("Command", f"<pre>{escape(str(facts['command']))}</pre>") if "command" in facts else "",
        _section("Recipe", f"<pre>{escape(recipe)}</pre>") if recipe else "",
        _section("Messages", _table(["step", ""], messages, kind="texts")) if messages else "",
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body><main>
<h1>{title}</h1>
<p class="sub">job {facts.get("job", "?")}, step {step:,} of {facts.get("total steps", 0):,}</p>
{"".join(parts)}
<footer>Written by Glassformer from metrics.jsonl and recipe.yaml in this folder.</footer>
</main></body>
</html>
"""


def _by_metric(history: History) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and finite values of each validation metric."""
    by_metric: dict[str, list[tuple[int, float]]] = {}
    for line in history.validations:
        for name in line.get("metrics") or {}:
            if math.isfinite(value := number(line["metrics"], name)):
                by_metric.setdefault(name, []).append((line["step"], value))
    return by_metric


def _best(name: str, values: list[tuple[int, float]]) -> tuple[int, float]:
    """Return step and value of the best result of a metric, the earliest of equal ones."""
    sign = 1 if lower_is_better(name) else -1
    return min(values, key=lambda pair: (sign * pair[1], pair[0]))


def _tiles(history: History, facts: Mapping[str, Any]) -> str:
    """Render the key numbers as tiles with name, value and remark."""
    figures = []
    for name, values in _by_metric(history).items():
        (step, best), (last_step, last) = _best(name, values), values[-1]
        remark = f"best, at step {step:,}; {format_number(last)} at the end"
        remark = "best, and last" if step == last_step else remark
        figures.append((name if name != "loss" else "validation loss", format_number(best), remark))
    if history.steps:
        line = history.steps[-1]
        figures.append(("training loss", format_number(number(line, "loss")), f"at step {line['step']:,}"))
    if speeds := sorted(_finite(history, "units_per_second")):
        median = format_number(speeds[len(speeds) // 2])
        figures.append((f"{facts.get('unit', 'units')} per second", median, "median"))
    tiles = (
        f'<div class="tile">{escape(name)}<b>{value}</b><small>{remark}</small></div>'
        for name, value, remark in figures
    )
    return f'<div class="tiles">{"".join(tiles)}</div>\n'


def _finite(history: History, key: str) -> list[float]:
    return [value for line in history.steps if math.isfinite(value := number(line, key))]


def _validation_table(history: History) -> str:
    """Render a table with a row per validation, the best value of each metric in bold, and the signatures."""
    metrics = _by_metric(history)
    best = {name: _best(name, values)[0] for name, values in metrics.items()}
    cells = []
    signatures: dict[str, Any] = {}
    for line in history.validations:
        values = {name: number(line.get("metrics") or {}, name) for name in metrics}
        texts = {name: format_number(value) if math.isfinite(value) else "" for name, value in values.items()}
        marked = (
            f"<strong>{text}</strong>" if best[name] == line["step"] else text for name, text in texts.items()
        )
        cells.append([f"{line['step']:,}", *marked])
        signatures |= line.get("signatures") or {}
    notes = "".join(
        f"<p class='note'>{escape(str(name))}: <code>{escape(str(text))}</code></p>"
        for name, text in signatures.items()
    )
    return _table(["step", *map(escape, metrics)], cells, kind="numbers") + notes


def _samples(history: History) -> str:
    """Render the samples of the last validation that has any."""
    line = next((line for line in reversed(history.validations) if line.get("samples")), None)
    if line is None:
        return ""
    keys = ("source", "expected", "got")
    cells = [
        [*(_text(sample[key]) for key in keys), "<strong>✓</strong>" * (sample["got"] == sample["expected"])]
        for sample in line["samples"][:SHOWN_SAMPLES]
    ]
    return _section(f"Samples at step {line['step']:,}", _table([*keys, ""], cells, kind="texts"))


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
        yield "time in steps", format_duration(sum(_finite(history, "seconds")) * scale)
        units = sum(_finite(history, "units")) * scale
        yield f"{facts.get('unit', 'units')} processed", f"{units:,.0f}"
    if memory := _finite(history, "memory"):
        yield "peak memory", f"{max(memory) / 1e9:.2f} GB"
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


def _text(text: str) -> str:
    """Escape user text and isolate its writing direction from the text around it."""
    return f"<bdi>{escape(text)}</bdi>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n"


def _table(head: Sequence[str], cells: Iterable[Sequence[str]], *, kind: Literal["numbers", "texts"]) -> str:
    """Render a table; head and cells are HTML. kind: its CSS class."""
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
    content = f"<thead><tr>{top}</tr></thead><tbody>\n{body}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{content}</table></div>\n'

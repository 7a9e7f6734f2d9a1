"""The look of a report: one page without scripts, light or dark as the reader's system is."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

from glassformer.errors import GlassformerError
from glassformer.pretrained.run_folder import RECIPE
from glassformer.training.logging.console import duration, figure
from glassformer.training.logging.curves import Panel, panels, write_curves
from glassformer.training.logging.history import NAME, History, number, read_history
from glassformer.weights.replacing import replacing

# Nothing may be fetched from anywhere, whatever a text in the page says.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #616e7c; --paper: #ffffff; --card: #f5f7fa;
  --rule: #dde3ea; --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e9ef; --soft: #9aa5b1; --paper: #14181d; --card: #1d232a;
  --rule: #323b45; --c0: #56b4e9; --c1: #f0914a; --c2: #3fc79a; --c3: #e39cc4; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans KR", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 44px 0 14px; }
.sub { color: var(--soft); margin: 6px 0 28px; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 12px; }
.tile { background: var(--card); border-radius: 10px; padding: 14px 16px; }
.tile b { display: block; font-size: 26px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.tile .name { font-size: 14px; color: var(--ink); }
.charts { display: grid; gap: 22px 32px;
  grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr)); }
figure { margin: 0; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 12px; }
svg .title { font-size: 14px; font-weight: 600; }
svg .tick { fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--rule); }
svg .curve { fill: none; stroke-width: 1.9; stroke-linejoin: round; }
.curve.c0 { stroke: var(--c0); } .curve.c1 { stroke: var(--c1); }
.dot.c0 { fill: var(--c0); } .dot.c1 { fill: var(--c1); }
.scroll { overflow: auto; max-height: 520px; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: var(--soft); font-weight: 500; font-size: 13px; background: var(--paper);
  position: sticky; top: 0; }
th, td { padding: 7px 18px 7px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
.numbers { width: auto; min-width: 50%; }
.numbers th, .numbers td { text-align: right; padding: 5px 0 5px 28px; }
.numbers td { font-variant-numeric: tabular-nums; } .numbers strong { color: var(--c2); }
.texts td { overflow-wrap: anywhere; white-space: pre-wrap; }
.right { color: var(--c2); font-weight: 700; }
.rows th { width: 220px; font-size: 15px; position: static; } .rows td { overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--card); border-radius: 10px; padding: 14px 16px; margin: 0;
  overflow: auto; max-height: 560px; }
footer { color: var(--soft); font-size: 13px; margin-top: 48px; }
@media print { .scroll, pre { max-height: none; overflow: visible; } }
"""


def page(*, title: str, subtitle: str, parts: Iterable[str]) -> str:
    """The whole document. `parts` are HTML already; everything else is text."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body><main>
<h1>{escape(title)}</h1>
<p class="sub">{escape(subtitle)}</p>
{"".join(parts)}
<footer>Made by Glassformer from metrics.jsonl and recipe.yaml in this folder.</footer>
</main></body>
</html>
"""


def section(title: str, body: str) -> str:
    """A headed part; the body is HTML."""
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n"


def tiles(content: Iterable[tuple[str, str, str]]) -> str:
    """Figures side by side: name, value, remark."""
    made = [
        f'<div class="tile"><span class="name">{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(remark)}</span></div>"
        for name, value, remark in content
    ]
    return f'<div class="tiles">{"".join(made)}</div>\n'


def table(head: Sequence[str], cells: Iterable[Sequence[str]], *, kind: Literal["numbers", "texts"]) -> str:
    """A table; head and cells are HTML."""
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
    inside = f"<thead><tr>{top}</tr></thead><tbody>\n{body}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{inside}</table></div>\n'


def rows(content: Iterable[tuple[str, str]]) -> str:
    """Names and what they are, as text."""
    body = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in content
    )
    return f'<table class="rows"><tbody>\n{body}</tbody></table>\n'


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>\n"


WIDTH, HEIGHT = 520, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 34, 34


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`.

    >>> ticks(0.3, 4.1), ticks(2.0, 2.0)
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 1.5, 2.0, 2.5, 3.0])
    """
    if high - low <= abs(high) * 1e-9:
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (-1.0, 1.0)
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12 - math.floor(math.log10(step))) for n in range(first, last + 1)]


def chart(panel: Panel) -> str:
    """The SVG of a panel, with a description for those who do not see it."""
    ys = [y for curve in panel.curves for _, y in curve.points]
    rows = ticks(min(0.0, *ys) if panel.values == "from nought" else min(ys), max(ys))
    end = max(panel.until, 1)
    columns = [tick for tick in ticks(0, end) if tick <= end and tick == round(tick)]

    def across(x: float) -> float:
        return LEFT + x / end * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return TOP + (rows[-1] - y) / (rows[-1] - rows[0]) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_described(panel))}">',
        f'<text class="title" x="0" y="15">{escape(panel.title)}</text>',
    ]
    for tick in rows:
        y = down(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{_tick(tick)}</text>'
        )
    for tick in columns:
        x = across(tick)
        y = HEIGHT - BOTTOM + 17
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="middle">{_tick(tick)}</text>')
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">step</text>')
    for n, curve in enumerate(panel.curves):
        places = [(across(x), down(y)) for x, y in curve.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="curve c{n}" points="{line}"/>')
        if (curve.style == "marked" and len(places) <= 60) or len(places) == 1:
            parts += [f'<circle class="dot c{n}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in places]
    if len(panel.curves) > 1:
        parts += _legend([curve.label for curve in panel.curves])
    return "\n".join([*parts, "</svg>"])


def _legend(labels: Sequence[str]) -> list[str]:
    parts, right = [], float(WIDTH - RIGHT)
    for n, label in reversed(list(enumerate(labels))):
        parts.append(f'<text class="tick" x="{right:.0f}" y="15" text-anchor="end">{escape(label)}</text>')
        right -= 6.0 * len(label) + 8
        parts.append(f'<line class="curve c{n}" x1="{right - 14:.0f}" x2="{right:.0f}" y1="11" y2="11"/>')
        right -= 30
    return parts


def _tick(value: float) -> str:
    """Short: 12k and 3M rather than all their noughts."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            size = 1e3 if letter == "k" else size
            return f"{value / size:g}{letter}"
    return f"{value:,g}"


def _described(panel: Panel) -> str:
    said = [
        f"{curve.label} from {figure(curve.points[0][1])} to {figure(curve.points[-1][1])}"
        for curve in panel.curves
    ]
    return f"{panel.title} over the steps: {'; '.join(said)}"


LOWER_IS_BETTER = ("loss", "perplexity", "error", "mse", "mae", "mase", "smape", "rmse", "bits")
SHOWN_SAMPLES = 20
APART = ("command", "unit", "total steps", "begun at step")  # facts that have their own place in the report


def write_report(folder: str | Path) -> str:
    """Write report.html and, where matplotlib is, curves.png; the sentence says what was written."""
    root = Path(folder)
    try:
        history = read_history(root)
    except OSError as error:
        raise GlassformerError(
            f"No report can be made: {root / NAME} cannot be read ({error.strerror}); give a run's folder."
        ) from error
    drawn = panels(history)
    with replacing(root / "report.html") as file:
        file.write(_html(root, history, drawn).encode("utf-8", "replace"))
    if not drawn:
        return f"wrote {root / 'report.html'}"
    try:
        write_curves(drawn, root / "curves.png")
    except GlassformerError as error:
        return f"wrote {root / 'report.html'}, but not curves.png: {error}"
    return f"wrote {root / 'report.html'} and curves.png"


def _html(root: Path, history: History, drawn: list[Panel]) -> str:
    facts = history.facts()
    recipe = _text_of(root / RECIPE)
    name = root.resolve().name
    parts = [
        tiles(_tiles(history, facts)),
        section(
            "Curves", f'<div class="charts">{"".join(f"<figure>{chart(p)}</figure>" for p in drawn)}</div>'
        )
        if drawn
        else "",
        section("Validation", _validation(history)) if history.validations else "",
        _samples(history),
        section("The run", rows(_about(history, facts))),
        section("Command", preformatted(str(facts["command"]))) if "command" in facts else "",
        section("Recipe", preformatted(recipe)) if recipe else "",
        _said(history),
    ]
    return page(title=name, subtitle=_subtitle(recipe, history, facts), parts=parts)


def _subtitle(recipe: str, history: History, facts: Mapping[str, Any]) -> str:
    """What was trained, and how far it came."""
    at = history.steps[-1]["step"] if history.steps else 0
    total = facts.get("total steps")
    far = f"step {at:,}" + (f" of {total:,}" if isinstance(total, int) else "")
    return ", ".join([*(f"{key} {value}" for key, value in _headings(recipe).items()), far])


def _headings(recipe: str) -> dict[str, str]:
    """The words of a recipe that say what it is about."""
    import yaml

    try:
        content = yaml.safe_load(recipe)
    except yaml.YAMLError:
        return {}
    if not isinstance(content, dict):
        return {}
    return {key: content[key] for key in ("job", "task", "model") if isinstance(content.get(key), str)}


def _best(name: str, values: list[tuple[int, float]]) -> tuple[int, float]:
    """Step and value of the best of a metric, the earliest of equals."""
    sign = 1 if any(word in name.lower() for word in LOWER_IS_BETTER) else -1
    return min(values, key=lambda pair: (sign * pair[1], pair[0]))


def _tiles(history: History, facts: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """The figures a reader looks for first: name, value, remark."""
    for name, values in _by_metric(history).items():
        step, best = _best(name, values)
        final = values[-1][1]
        remark = (
            f"best, at step {step:,}; {figure(final)} at the end"
            if step != values[-1][0]
            else "best, and last"
        )
        yield name if name != "loss" else "validation loss", figure(best), remark
    if history.steps:
        last = history.steps[-1]
        yield "training loss", figure(number(last, "loss")), f"at step {last['step']:,}"
        speeds = [n for line in history.steps if math.isfinite(n := number(line, "units_per_second"))]
        if speeds:
            yield f"{facts.get('unit', 'units')} a second", figure(sorted(speeds)[len(speeds) // 2]), "median"


def _by_metric(history: History) -> dict[str, list[tuple[int, float]]]:
    """Step and value of each validation metric, finite ones only."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in history.validations:
        metrics = line.get("metrics") or {}
        for name in metrics:
            if math.isfinite(value := number(metrics, name)):
                found.setdefault(name, []).append((line["step"], value))
    return found


def _validation(history: History) -> str:
    """Each validation a row, the best of each column marked, and how the metrics were measured."""
    metrics = _by_metric(history)
    best = {name: _best(name, values)[0] for name, values in metrics.items()}
    values = {name: dict(pairs) for name, pairs in metrics.items()}
    cells = []
    for line in history.validations:
        row = [f"{line['step']:,}"]
        for name in metrics:
            value = values[name].get(line["step"])
            text = "" if value is None else figure(value)
            row.append(f"<strong>{text}</strong>" if line["step"] == best[name] else text)
        cells.append(row)
    signatures: dict[str, Any] = {}
    for line in history.validations:
        signatures |= line.get("signatures") or {}
    notes = "".join(
        f"<p class='note'>{escape(str(name))}: <code>{escape(str(text))}</code></p>"
        for name, text in signatures.items()
    )
    return table(["step", *map(escape, metrics)], cells, kind="numbers") + notes


def _samples(history: History) -> str:
    """The samples of the last validation that has any."""
    for line in reversed(history.validations):
        samples = [sample for sample in line.get("samples") or [] if isinstance(sample, dict)]
        if samples:
            keys = ("source", "expected", "got")
            cells = [
                [_bidi(str(sample.get(key, ""))) for key in keys] + [_verdict(sample)]
                for sample in samples[:SHOWN_SAMPLES]
            ]
            body = table([*keys, ""], cells, kind="texts")
            return section(f"Samples at step {line['step']:,}", body)
    return ""


def _bidi(text: str) -> str:
    """User text, escaped, that keeps its own writing direction to itself."""
    return f"<bdi>{escape(text)}</bdi>"


def _verdict(sample: Mapping[str, Any]) -> str:
    return (
        '<span class="right" title="as expected">✓</span>'
        if sample.get("got") == sample.get("expected")
        else ""
    )


def _about(history: History, facts: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Times, counts, and whatever else the run said of itself."""
    lines = [*history.steps, *history.validations, *history.events]
    stamps = [stamp for line in lines if math.isfinite(stamp := number(line, "time"))]
    if stamps:
        yield "begun", _moment(min(stamps))
        yield "last note", _moment(max(stamps))
    begun = [event for event in history.events if "begun at step" in (event.get("facts") or {})]
    if len(begun) > 1:
        yield "gone on from a checkpoint", f"{len(begun) - 1} times"
    steps = [(number(line, "seconds"), number(line, "units")) for line in history.steps]
    if steps:
        count = history.steps[-1]["step"] / len(steps)  # where only some steps were noted, they stand for all
        yield "time in steps", duration(math.fsum(s for s, _ in steps if math.isfinite(s)) * count)
        units = math.fsum(u for _, u in steps if math.isfinite(u)) * count
        yield f"{facts.get('unit', 'units')} learned from", f"{units:,.0f}"
        memory = [m for line in history.steps if math.isfinite(m := number(line, "memory"))]
        if memory:
            yield "most memory", f"{max(memory) / 1e9:.2f} GB"
    for name, value in facts.items():
        if name not in APART:
            yield name, _value(value)


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not known"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return figure(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_value(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return str(value)


def _moment(stamp: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(stamp))


def _said(history: History) -> str:
    """What the run had to say on the way."""
    said = [(f"{event['step']:,}", str(event["text"])) for event in history.events if "text" in event]
    cells = [[step, _bidi(text)] for step, text in said]
    return section("What it said", table(["step", ""], cells, kind="texts")) if said else ""


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""

"""The report of a run: report.html, which is self-contained, and curves.png.

It is made from metrics.jsonl and recipe.yaml in the run folder, so it can be written during the run, after it
was interrupted, or on another machine.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

import yaml

from glassformer.errors import FileProblemError
from glassformer.pretrained.run_folder import RECIPE
from glassformer.training.logging.console import format_duration, format_number
from glassformer.training.logging.curves import panels, render_curves
from glassformer.training.logging.history import METRICS_FILE, History, number, read_history
from glassformer.weights.atomic_write import atomic_write

LOWER_IS_BETTER = ("loss", "perplexity", "error", "mse", "mae", "mase", "smape", "rmse", "bits")
SHOWN_SAMPLES = 20
SEPARATE_FACTS = ("command", "unit", "total steps", "started at step")  # shown elsewhere in the report
# the page may load nothing, whatever its texts contain
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #616e7c; --paper: #ffffff; --card: #f5f7fa;
  --rule: #dde3ea; --good: #009e73; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e9ef; --soft: #9aa5b1; --paper: #14181d; --card: #1d232a;
  --rule: #323b45; --good: #3fc79a; } }
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
.curves { width: 100%; height: auto; display: block; border-radius: 10px; }
.scroll { overflow: auto; max-height: 520px; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: var(--soft); font-weight: 500; font-size: 13px; background: var(--paper);
  position: sticky; top: 0; }
th, td { padding: 7px 18px 7px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
.numbers { width: auto; min-width: 50%; }
.numbers th, .numbers td { text-align: right; padding: 5px 0 5px 28px; }
.numbers td { font-variant-numeric: tabular-nums; } .numbers strong { color: var(--good); }
.texts td { overflow-wrap: anywhere; white-space: pre-wrap; }
.right { color: var(--good); font-weight: 700; }
.rows th { width: 220px; font-size: 15px; position: static; } .rows td { overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--card); border-radius: 10px; padding: 14px 16px; margin: 0;
  overflow: auto; max-height: 560px; }
footer { color: var(--soft); font-size: 13px; margin-top: 48px; }
@media print { .scroll, pre { max-height: none; overflow: visible; } }
"""


def write_report(folder: str | Path) -> list[Path]:
    """Write report.html and, if there is anything to draw, curves.png; the files written."""
    root = Path(folder)
    try:
        history = read_history(root)
    except OSError as error:
        raise FileProblemError(root / METRICS_FILE, f"cannot be read ({error.strerror})") from error
    curves = ""
    written = [root / "report.html"]
    if drawn := panels(history):
        picture = render_curves(drawn)
        written.append(root / "curves.png")
        with atomic_write(written[-1]) as file:
            file.write(picture)
        alt = escape("; ".join(panel.description() for panel in drawn))
        data = base64.b64encode(picture).decode()
        curves = _section("Curves", f'<img class="curves" alt="{alt}" src="data:image/png;base64,{data}">')
    with atomic_write(written[0]) as file:
        file.write(_page(root, history, curves).encode("utf-8", "replace"))
    return written


def _page(root: Path, history: History, curves: str) -> str:
    facts = history.facts()
    recipe = _read_text(root / RECIPE)
    title = escape(root.resolve().name)
    parts = [
        _tiles(_headline_figures(history, facts)),
        curves,
        _section("Validation", _validation_table(history)) if history.validations else "",
        _samples(history),
        _section("Run", _rows(_run_facts(history, facts))),
        _section("Command", _preformatted(str(facts["command"]))) if "command" in facts else "",
        _section("Recipe", _preformatted(recipe)) if recipe else "",
        _messages(history),
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
<p class="sub">{escape(_subtitle(recipe, history, facts))}</p>
{"".join(parts)}
<footer>Written by Glassformer from metrics.jsonl and recipe.yaml in this folder.</footer>
</main></body>
</html>
"""


def _subtitle(recipe: str, history: History, facts: Mapping[str, Any]) -> str:
    """The job, and the progress of the training."""
    try:
        content = yaml.safe_load(recipe)
    except yaml.YAMLError:
        content = None
    job = f"job {content['job']}, " if isinstance(content, dict) and "job" in content else ""
    step, total = history.steps[-1]["step"] if history.steps else 0, facts.get("total steps")
    return f"{job}step {step:,}" + (f" of {total:,}" if isinstance(total, int) else "")


def _best(name: str, values: list[tuple[int, float]]) -> tuple[int, float]:
    """Step and value of the best of a metric, the earliest of equals."""
    sign = 1 if any(word in name.lower() for word in LOWER_IS_BETTER) else -1
    return min(values, key=lambda pair: (sign * pair[1], pair[0]))


def _headline_figures(history: History, facts: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Name, value and remark of the figures a reader looks for first."""
    for name, values in _by_metric(history).items():
        step, best = _best(name, values)
        last = values[-1][1]
        remark = f"best, at step {step:,}; {format_number(last)} at the end"
        if step == values[-1][0]:
            remark = "best, and last"
        yield name if name != "loss" else "validation loss", format_number(best), remark
    if history.steps:
        last_step = history.steps[-1]
        yield "training loss", format_number(number(last_step, "loss")), f"at step {last_step['step']:,}"
        speeds = sorted(n for line in history.steps if math.isfinite(n := number(line, "units_per_second")))
        if speeds:
            median = format_number(speeds[len(speeds) // 2])
            yield f"{facts.get('unit', 'units')} per second", median, "median"


def _by_metric(history: History) -> dict[str, list[tuple[int, float]]]:
    """Step and value of each validation metric, if finite."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in history.validations:
        metrics = line.get("metrics") or {}
        for name in metrics:
            if math.isfinite(value := number(metrics, name)):
                found.setdefault(name, []).append((line["step"], value))
    return found


def _validation_table(history: History) -> str:
    """A row per validation, the best of each column in bold, and the metrics' signatures."""
    metrics = _by_metric(history)
    best = {name: _best(name, values)[0] for name, values in metrics.items()}
    values = {name: dict(pairs) for name, pairs in metrics.items()}
    cells = []
    for line in history.validations:
        row = [f"{line['step']:,}"]
        for name in metrics:
            value = values[name].get(line["step"])
            text = "" if value is None else format_number(value)
            row.append(f"<strong>{text}</strong>" if line["step"] == best[name] else text)
        cells.append(row)
    signatures: dict[str, Any] = {}
    for line in history.validations:
        signatures |= line.get("signatures") or {}
    notes = "".join(
        f"<p class='note'>{escape(str(name))}: <code>{escape(str(text))}</code></p>"
        for name, text in signatures.items()
    )
    return _table(["step", *map(escape, metrics)], cells, kind="numbers") + notes


def _samples(history: History) -> str:
    """The samples of the last validation that has any."""
    for line in reversed(history.validations):
        samples = [sample for sample in line.get("samples") or [] if isinstance(sample, dict)]
        if samples:
            keys = ("source", "expected", "got")
            cells = []
            for sample in samples[:SHOWN_SAMPLES]:
                same = sample.get("got") == sample.get("expected")
                mark = '<span class="right" title="as expected">✓</span>' if same else ""
                cells.append([*(_bidi(str(sample.get(key, ""))) for key in keys), mark])
            return _section(f"Samples at step {line['step']:,}", _table([*keys, ""], cells, kind="texts"))
    return ""


def _run_facts(history: History, facts: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Times, counts, and the other facts about the run."""
    lines = [*history.steps, *history.validations, *history.events]
    stamps = [stamp for line in lines if math.isfinite(stamp := number(line, "time"))]
    if stamps:
        yield "started", _format_time(min(stamps))
        yield "last entry", _format_time(max(stamps))
    starts = [event for event in history.events if "started at step" in (event.get("facts") or {})]
    if len(starts) > 1:
        yield "resumed", f"{len(starts) - 1} times"
    steps = [(number(line, "seconds"), number(line, "units")) for line in history.steps]
    if steps:
        scale = history.steps[-1]["step"] / len(steps)  # if only some steps are logged
        seconds = math.fsum(s for s, _ in steps if math.isfinite(s)) * scale
        units = math.fsum(u for _, u in steps if math.isfinite(u)) * scale
        yield "time in steps", format_duration(seconds)
        yield f"{facts.get('unit', 'units')} processed", f"{units:,.0f}"
        memory = [m for line in history.steps if math.isfinite(m := number(line, "memory"))]
        if memory:
            yield "peak memory", f"{max(memory) / 1e9:.2f} GB"
    for name, value in facts.items():
        if name not in SEPARATE_FACTS:
            yield name, _format_value(value)


def _format_value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_format_value(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_format_value, value))
    return str(value)


def _format_time(stamp: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(stamp))


def _messages(history: History) -> str:
    cells = [[f"{event['step']:,}", _bidi(str(event["text"]))] for event in history.events if "text" in event]
    return _section("Messages", _table(["step", ""], cells, kind="texts")) if cells else ""


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _bidi(text: str) -> str:
    """Escaped user text that cannot change the writing direction around it."""
    return f"<bdi>{escape(text)}</bdi>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n"


def _tiles(figures: Iterable[tuple[str, str, str]]) -> str:
    tiles = [
        f'<div class="tile"><span class="name">{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(remark)}</span></div>"
        for name, value, remark in figures
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>\n'


def _table(head: Sequence[str], cells: Iterable[Sequence[str]], *, kind: Literal["numbers", "texts"]) -> str:
    """A table; head and cells are HTML."""
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
    content = f"<thead><tr>{top}</tr></thead><tbody>\n{body}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{content}</table></div>\n'


def _rows(content: Iterable[tuple[str, str]]) -> str:
    body = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in content
    )
    return f'<table class="rows"><tbody>\n{body}</tbody></table>\n'


def _preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>\n"

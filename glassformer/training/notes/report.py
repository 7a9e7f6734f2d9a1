"""The report of a run: report.html, which needs nothing but itself, and curves.png.

It is made from what lies in the run folder (metrics.jsonl, recipe.yaml), so it can be made while the run
goes on, after it broke off, or on another machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from glassformer.errors import GlassformerError
from glassformer.pretrained.run_folder import RECIPE
from glassformer.training.notes.chart import chart
from glassformer.training.notes.curves import Panel, panels, write_curves
from glassformer.training.notes.history import NAME, History, number, read_history
from glassformer.training.notes.page import page, preformatted, rows, section, table, tiles
from glassformer.training.notes.words import duration, figure
from glassformer.weights.replacing import replacing

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

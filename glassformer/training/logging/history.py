"""metrics.jsonl: the log of a run, one JSON object per line, read back as one uninterrupted run.

    {"kind": "step",  "step": 12, "time": ..., "loss": ..., "lr": ..., "units": ..., "seconds": ..., ...}
    {"kind": "valid", "step": 12, "time": ..., "metrics": {...}, "signatures": {...}, "samples": [...]}
    {"kind": "event", "step": 12, "time": ..., "text": "..."}      or with "facts": {...}

A number that is not finite is null. Each sample has "source", "expected" and "got". A validation may have
"images", each with the "file" in the folder `samples` and a "caption".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from glassformer.json_text import convert_json, is_not_finite
from glassformer.weights.atomic_write import atomic_write

METRICS_FILE = "metrics.jsonl"
MAX_PARSED_BYTES = 16 << 20  # in a larger file only every n-th step is parsed

Kind: TypeAlias = Literal["step", "valid", "event"]
Line: TypeAlias = dict[str, Any]
Points: TypeAlias = list[tuple[float, float]]  # step and value


def format_line(kind: Kind, step: int, time: float, content: Mapping[str, Any]) -> str:
    """Format a line of metrics.jsonl, without the newline.

    >>> format_line("step", 1, 0.5, {"loss": float("nan"), "lr": 0.1})
    '{"kind": "step", "step": 1, "time": 0.5, "loss": null, "lr": 0.1}'
    """
    line = {
        "kind": kind,
        "step": step,
        "time": time,
        **convert_json(content, lambda value: None if is_not_finite(value) else value),
    }
    return json.dumps(line, ensure_ascii=False, default=str)


@dataclass(frozen=True, kw_only=True)
class History:
    """The lines of metrics.jsonl by kind, in order."""

    steps: list[Line]
    validations: list[Line]
    events: list[Line]

    def facts(self) -> dict[str, Any]:
        """Return the facts about the run; later facts replace earlier ones with the same name."""
        facts: dict[str, Any] = {}
        for event in self.events:
            facts |= event.get("facts") or {}
        return facts

    def values(self, key: str) -> Points:
        """Return the steps, and the finite values of a key that was logged there."""
        values = ((line["step"], number(line, key)) for line in self.steps)
        return [(step, value) for step, value in values if math.isfinite(value)]

    def metrics(self) -> dict[str, Points]:
        """Return the steps and finite values of each validation metric."""
        metrics: dict[str, Points] = {}
        for line in self.validations:
            for name in line.get("metrics") or {}:
                if math.isfinite(value := number(line["metrics"], name)):
                    metrics.setdefault(name, []).append((line["step"], value))
        return metrics


def read_history(folder: str | Path) -> History:
    """Read a run's metrics.jsonl, skipping incomplete lines.

    If a step occurs twice, the run was resumed from an earlier checkpoint, and the lines from the first
    occurrence on are dropped.
    """
    path = Path(folder) / METRICS_FILE
    stride = 1 + path.stat().st_size // MAX_PARSED_BYTES
    steps: dict[int, Line] = {}
    validations: dict[int, Line] = {}
    events: list[Line] = []
    last = 0
    for line in _lines(path, stride):
        step = line["step"]
        if line["kind"] == "event":
            events.append(line)
        elif line["kind"] == "valid":
            validations[step] = line
        else:
            if step <= last:
                steps = {n: old for n, old in steps.items() if n < step}
                validations = {n: old for n, old in validations.items() if n < step}
            steps[step] = line
            last = step
    ordered = [validations[step] for step in sorted(validations)]
    return History(steps=list(steps.values()), validations=ordered, events=events)


def truncate_history(folder: str | Path, step: int) -> None:
    """Drop incomplete lines and all lines after `step`, from which a run resumes; at step 0 drop all."""
    path = Path(folder) / METRICS_FILE

    def is_before(raw: bytes) -> bool:
        line = _parse(raw)
        return step > 0 and raw.endswith(b"\n") and line is not None and line["step"] <= step

    if not path.exists():
        return
    with path.open("rb") as old:
        if all(map(is_before, old)):
            return
        old.seek(0)
        with atomic_write(path) as file:
            file.writelines(filter(is_before, old))


def _lines(path: Path, stride: int) -> Iterator[Line]:
    """Yield the complete lines, but only every `stride`-th step and the last one."""
    steps, skipped = 0, b""
    with path.open("rb") as file:
        for raw in file:
            if raw.startswith(b'{"kind": "step"'):
                steps += 1
                skipped = raw if steps % stride else b""
                if skipped:
                    continue
            if (line := _parse(raw)) is not None:
                yield line
    if (line := _parse(skipped)) is not None:
        yield line


def _parse(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw)
        return line if line["kind"] in ("step", "valid", "event") and type(line["step"]) is int else None
    except (ValueError, TypeError, KeyError):
        return None


def number(line: Mapping[str, Any], key: str) -> float:
    """Return the number under a key of a line; NaN if it is missing or null."""
    value = line.get(key)
    return float(value) if isinstance(value, int | float) else math.nan

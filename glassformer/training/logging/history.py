"""metrics.jsonl: what a run noted about itself, one JSON object a line, read back as one uninterrupted run.

    {"kind": "step",  "step": 12, "time": ..., "loss": ..., "lr": ..., "units": ..., "seconds": ..., ...}
    {"kind": "valid", "step": 12, "time": ..., "metrics": {...}, "signatures": {...}, "samples": [...]}
    {"kind": "event", "step": 12, "time": ..., "text": "..."}      or with "facts": {...}

A number that is not finite is null: JSON has no other word for it. Each sample is an object with "source",
"expected" and "got".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from glassformer.weights.replacing import replacing

NAME = "metrics.jsonl"
PARSED_WHOLE = 16 << 20  # bytes; of a larger file not every step is parsed, so that reading stays quick

Kind: TypeAlias = Literal["step", "valid", "event"]
Line: TypeAlias = dict[str, Any]


def as_line(kind: Kind, step: int, time: float, content: Mapping[str, Any]) -> str:
    """One line of metrics.jsonl, without its end.

    >>> as_line("step", 1, 0.5, {"loss": float("nan"), "lr": 0.1})
    '{"kind": "step", "step": 1, "time": 0.5, "loss": null, "lr": 0.1}'
    """
    made = {"kind": kind, "step": step, "time": time, **_finite(content)}
    return json.dumps(made, ensure_ascii=False, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if content is None or isinstance(content, str | int | float):
        return content
    return str(content)


@dataclass(frozen=True, kw_only=True)
class History:
    """The lines of a run by kind, in the order of its steps."""

    steps: list[Line] = field(default_factory=list)
    validations: list[Line] = field(default_factory=list)
    events: list[Line] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """What the run said of itself; the later word holds."""
        told: dict[str, Any] = {}
        for event in self.events:
            if isinstance(event.get("facts"), dict):
                told |= event["facts"]
        return told


def read_history(folder: str | Path) -> History:
    """Read a run's metrics.jsonl; lines that were broken off are left out.

    Where a step comes a second time the run had gone back to a checkpoint, and what followed is forgotten.
    """
    path = Path(folder) / NAME
    stride = 1 + path.stat().st_size // PARSED_WHOLE
    by_step: dict[int, Line] = {}
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
                by_step = {n: kept for n, kept in by_step.items() if n < step}
                validations = {n: kept for n, kept in validations.items() if n < step}
            by_step[step] = line
            last = step
    return History(
        steps=list(by_step.values()), validations=[validations[n] for n in sorted(validations)], events=events
    )


def cut_after(folder: str | Path, step: int) -> None:
    """Drop what the run noted after a step it now goes back to, and what was broken off.

    A run that begins at step 0 begins a new file. The file is replaced as a whole or not at all.
    """
    path = Path(folder) / NAME
    if not path.exists() or all(_stays(raw, step) for raw in _raw_lines(path)):
        return
    with replacing(path) as file:
        for raw in _raw_lines(path):
            if _stays(raw, step):
                file.write(raw)


def _stays(raw: bytes, step: int) -> bool:
    line = _parsed(raw)
    return step > 0 and raw.endswith(b"\n") and line is not None and line["step"] <= step


def _raw_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _lines(path: Path, stride: int) -> Iterator[Line]:
    """The whole lines; of the steps each `stride`-th and the last."""
    steps = 0
    passed = b""
    for raw in _raw_lines(path):
        if raw.startswith(b'{"kind": "step"'):
            steps += 1
            passed = raw if steps % stride else b""
            if passed:
                continue
        if (line := _parsed(raw)) is not None:
            yield line
    if (line := _parsed(passed)) is not None:
        yield line


def _parsed(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    whole = (
        isinstance(line, dict)
        and line.get("kind") in ("step", "valid", "event")
        and type(line.get("step")) is int
    )
    return line if whole else None


def number(line: Mapping[str, Any], key: str) -> float:
    """A number of a line; not a number where it is missing or null."""
    value = line.get(key)
    return float(value) if isinstance(value, int | float) else math.nan

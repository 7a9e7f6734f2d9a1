"""One training of a row: begun or gone on with by `glassformer train`, and what its log says of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.paths import Place, glassformer


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run.

    seconds: from the run's beginning to its end, validations and compiling counted, pauses between stops not
    curve: (step, figure) at each validation, of the metric named `of`
    """

    folder: Path
    seconds: float
    parameters: int
    of: str
    curve: list[tuple[int, float]]

    @property
    def model(self) -> Path:
        return self.folder / "model"


def train(
    place: Place, row: str, name: str, recipe: str, *, seed: int, of: str, changes: Sequence[str] = ()
) -> Trained:
    """Train a ready recipe with changes such as `training.lr=3e-4`; a run that is there is gone on with."""
    glassformer(*command(place, row, name, recipe, seed=seed, changes=changes))
    return read(place.run(row, name), of)


def command(
    place: Place, row: str, name: str, recipe: str, *, seed: int, changes: Sequence[str]
) -> list[str | Path]:
    """The words by which a run is begun and gone on with; what the place changes holds over all else."""
    changed = [f"seed={seed}", f"training.device={place.device}", *changes, *place.changes]
    sets = (word for change in changed for word in ("--set", change))
    return ["train", recipe, "--out", place.run(row, name), *sets]


def read(folder: Path, of: str) -> Trained:
    """What a run folder says of its run."""
    lines = log(folder)
    facts = [one["facts"] for one in lines if "facts" in one]
    return Trained(
        folder=folder,
        seconds=_seconds(lines),
        parameters=next(one["parameters"] for one in facts if "parameters" in one),
        of=of,
        curve=[(one["step"], one["metrics"][of]) for one in lines if of in one.get("metrics", {})],
    )


def log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _seconds(lines: Sequence[dict[str, Any]]) -> float:
    """The time that passed in each stretch between a beginning and the last word before the next."""
    total, started, last = 0.0, 0.0, 0.0
    for one in lines:
        if "command" in one.get("facts", {}):
            total, started = total + last - started, one["time"]
        last = one["time"]
    return total + last - started

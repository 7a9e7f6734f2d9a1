"""Train one run with `glassformer train`, or resume it, and read its log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.paths import Workspace, glassformer


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run.

    seconds: from start to end, including validation and compilation, without pauses between interruptions
    curve: (step, value) at each validation, of the metric `of`
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
    workspace: Workspace, row: str, name: str, recipe: str, *, seed: int, of: str, changes: Sequence[str] = ()
) -> Trained:
    """Train a recipe with overrides such as `training.lr=3e-4`; an existing run is resumed."""
    glassformer(*command(workspace, row, name, recipe, seed=seed, changes=changes))
    return read(workspace.run(row, name), of)


def command(
    workspace: Workspace, row: str, name: str, recipe: str, *, seed: int, changes: Sequence[str]
) -> list[str | Path]:
    """The command of a run; the overrides of the workspace take precedence."""
    changed = [f"seed={seed}", f"training.device={workspace.device}", *changes, *workspace.changes]
    sets = (word for change in changed for word in ("--set", change))
    return ["train", recipe, "--out", workspace.run(row, name), *sets]


def read(folder: Path, of: str) -> Trained:
    """Read the results of a run folder."""
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
    """The total time between each start and the last log line before the next start."""
    total, started, last = 0.0, 0.0, 0.0
    for one in lines:
        if "command" in one.get("facts", {}):
            total, started = total + last - started, one["time"]
        last = one["time"]
    return total + last - started

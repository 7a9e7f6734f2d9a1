"""Recorded results: a JSON file per run, from which tables and curves are made."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from experiments.paths import Workspace
from experiments.training_runs import Trained


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run of a row.

    name: e.g. "en-de/1"; seconds: of training; figures: measured values by name
    of, curve: a metric and its (step, value) at each validation
    hardware: the device; concurrent_runs: other runs on it at the same time, which cost time
    """

    row: str
    name: str
    seed: int
    parameters: int
    seconds: float
    figures: Mapping[str, float]
    of: str = ""
    curve: Sequence[tuple[int, float]] = field(default_factory=tuple)
    hardware: str = ""
    torch: str = ""
    concurrent_runs: int = 0
    date: str = ""


def note(
    workspace: Workspace,
    row: str,
    name: str,
    *,
    seed: int,
    trained: Trained,
    figures: Mapping[str, float],
) -> None:
    """Record a run's figures, replacing an older run of the same name."""
    keep(
        workspace,
        RunRecord(
            row=row,
            name=name,
            seed=seed,
            parameters=trained.parameters,
            seconds=round(trained.seconds, 1),
            figures={key: round(float(value), 6) for key, value in figures.items()},
            of=trained.of,
            curve=trained.curve,
            hardware=hardware(workspace.device),
            torch=torch.__version__,
            concurrent_runs=workspace.concurrent_runs,
            date=time.strftime("%Y-%m-%d"),
        ),
    )


def keep(workspace: Workspace, record: RunRecord) -> None:
    """Write one run's figures."""
    path = workspace.figures / record.row / f"{record.name.replace('/', '-')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(record), ensure_ascii=False) + "\n", encoding="utf-8")
    summary = ", ".join(f"{key} {value:.4g}" for key, value in record.figures.items())
    print(f"{record.row} {record.name}: {summary}", flush=True)


def runs_of(row: str, figures: Path) -> list[RunRecord]:
    """All recorded runs of a row, by name."""
    result = []
    for path in sorted((figures / row).glob("*.json")):
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields["curve"] = tuple((step, value) for step, value in fields["curve"])
        result.append(RunRecord(**fields))
    return result


def hardware(device: str) -> str:
    """The name of the device."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name().removeprefix("NVIDIA ")
    return f"{torch.get_num_threads()} CPU threads ({platform.machine()})"

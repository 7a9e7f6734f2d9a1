"""What was measured: a JSON file for each run of a row, from which the page's tables and curves are made."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from experiments.paths import Place
from experiments.training_runs import Trained


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run of a row.

    name: the run among those of its row, as "en-de/1"; seed; parameters; seconds of training
    figures: what was measured, by name; of, curve: (step, figure) at each validation
    hardware: the device it ran on; beside: how many other runs shared it meanwhile, at a cost in seconds
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


def note(
    place: Place,
    row: str,
    name: str,
    *,
    seed: int,
    trained: Trained,
    figures: Mapping[str, float],
) -> None:
    """Keep a run's figures, in place of an older run's of the same name."""
    keep(
        place,
        RunRecord(
            row=row,
            name=name,
            seed=seed,
            parameters=trained.parameters,
            seconds=round(trained.seconds, 1),
            figures={key: round(float(value), 6) for key, value in figures.items()},
            of=trained.of,
            curve=trained.curve,
            hardware=hardware(place.device),
            torch=torch.__version__,
            concurrent_runs=place.concurrent_runs,
        ),
    )


def keep(place: Place, record: RunRecord) -> None:
    """Write one run's figures."""
    path = place.figures / record.row / f"{record.name.replace('/', '-')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(record), ensure_ascii=False) + "\n", encoding="utf-8")
    summary = ", ".join(f"{key} {value:.4g}" for key, value in record.figures.items())
    print(f"{record.row} {record.name}: {summary}", flush=True)


def runs_of(row: str, figures: Path) -> list[RunRecord]:
    """All that was noted of a row, by name."""
    found = []
    for path in sorted((figures / row).glob("*.json")):
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields["curve"] = tuple((step, value) for step, value in fields["curve"])
        found.append(RunRecord(**fields))
    return found


def hardware(device: str) -> str:
    """What the run ran on, in words."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name().removeprefix("NVIDIA ")
    return f"{torch.get_num_threads()} CPU threads ({platform.machine()})"

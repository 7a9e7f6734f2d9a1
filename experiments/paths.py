"""The folders of an experiment: data, runs and recorded figures."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "experiments" / "figures"


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Folders and options of a command.

    data: the data sets; work: prepared files and runs; figures: the recorded figures, a file per run
    device: as training.device; processes: number of runs at the same time
    concurrent_runs: number of other runs on the same device
    seconds: training time, for rows that train for a given time
    changes: overrides of every recipe, for a quick try; most: maximum number of lines per test set
    """

    data: Path
    work: Path
    figures: Path = FIGURES
    device: str = "auto"
    processes: int = 1
    concurrent_runs: int = 0
    seconds: float | None = None
    changes: tuple[str, ...] = ()
    most: int | None = None

    def run(self, row: str, name: str) -> Path:
        """The run folder of one training of a row."""
        return self.work / row / name

    def prepared(self, row: str) -> Path:
        """A folder for files that a row prepares from its data."""
        folder = self.work / row / "data"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def tidy(self) -> None:
        """Remove empty folders of rows."""
        for folder in self.work.glob("*/data"):
            with suppress(OSError):  # something is there
                folder.rmdir()
                folder.parent.rmdir()


def data_folder() -> Path:
    """The variable GLASSFORMER_DATA, or the folder shared/data next to the checkout."""
    return Path(os.environ.get("GLASSFORMER_DATA", ROOT.parent / "shared" / "data"))


def environment() -> dict[str, str]:
    """The environment of a child process that imports this checkout."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def glassformer(*args: str | Path) -> str:
    """Run a glassformer command, printing it first; its standard output."""
    command = [str(word) for word in args]
    print("$ glassformer", " ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "glassformer", *command], stdout=subprocess.PIPE, text=True, env=environment()
    )
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout

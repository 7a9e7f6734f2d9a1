"""Where a row finds its data, keeps its runs and notes its figures."""

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
class Place:
    """data: the folder of data sets; work: prepared files and runs; figures: what was measured, a file a run
    device: as training.device; beside: how many other runs share the device meanwhile
    seconds: of a run that trains for a time, in place of the row's own
    changes: of every recipe, for a quick try; most: lines of a set that the default translator is measured by
    """

    data: Path
    work: Path
    figures: Path = FIGURES
    device: str = "auto"
    concurrent_runs: int = 0
    seconds: float | None = None
    changes: tuple[str, ...] = ()
    most: int | None = None

    def run(self, row: str, name: str) -> Path:
        """The run folder of one training of a row."""
        return self.work / row / name

    def prepared(self, row: str) -> Path:
        """A folder for files that a row makes from its data."""
        folder = self.work / row / "data"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def tidy(self) -> None:
        """Remove the folders for prepared files, and of rows, that nothing was written into."""
        for folder in self.work.glob("*/data"):
            with suppress(OSError):  # something is there
                folder.rmdir()
                folder.parent.rmdir()


def data_folder() -> Path:
    """The variable GLASSFORMER_DATA, or the folder shared/data beside the checkout."""
    return Path(os.environ.get("GLASSFORMER_DATA", ROOT.parent / "shared" / "data"))


def environment() -> dict[str, str]:
    """What a child process needs to find this checkout's package and rows."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def glassformer(*args: str | Path) -> str:
    """What a glassformer command prints; the command is shown first, as a person would type it."""
    command = [str(word) for word in args]
    print("$ glassformer", " ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "glassformer", *command], stdout=subprocess.PIPE, text=True, env=environment()
    )
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout

"""The files of a training run's folder that are needed to find its model; see `training/run.py` for all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from glassformer.errors import GlassformerError

RECIPE = "recipe.yaml"
REQUEST = "request.json"  # the recipe as given; the first file a run writes, so it marks the folder as ours
LOCK = "lock"
MODEL, BEST = "model", "best"  # the result, and during training the best so far
AVERAGED, SNAPSHOTS = "averaged", "snapshots"  # weights to average, and to look at later
DESCRIBED = ("spec.json", "config.json")  # by either of which a folder is a model's own


def is_run(folder: Path) -> bool:
    """Whether the folder holds a training run."""
    return (folder / RECIPE).is_file()


@dataclass(eq=False)
class NotARunError(GlassformerError):
    """A folder to train in already holds files that no training run wrote."""

    folder: Path
    hint: str = "choose a new or empty folder to train in"
    template: ClassVar[str] = "{folder} is not empty and is not a training run"


@dataclass(eq=False)
class NoModelYetError(GlassformerError):
    """A run is still training, or was stopped, before its first validation."""

    folder: Path
    hint: str = "wait for its first validation, or resume it"
    template: ClassVar[str] = "the run in {folder} has no model yet"


def check_run_folder(folder: Path) -> None:
    """Raise NotARunError unless the folder is missing, empty or a run of ours.

    A run that was killed before its first file has left at most its lock.
    """
    if not folder.is_dir() or (folder / REQUEST).is_file():
        return
    if any(not path.name.startswith((LOCK, f".{LOCK}", f".{REQUEST}.")) for path in folder.iterdir()):
        raise NotARunError(folder)


def result_of(folder: str | Path) -> Path:
    """The model folder of a run: the result, else the best so far. Any other folder is returned as it is."""
    root = Path(folder)
    if not is_run(root) or any((root / name).is_file() for name in DESCRIBED):
        return root
    found = next((root / name for name in (MODEL, BEST) if (root / name).is_dir()), None)
    if found is None:
        raise NoModelYetError(root)
    return found

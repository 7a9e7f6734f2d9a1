"""Where models are: those that ship with the package, by their bare name, and those of training runs.

pipeline = glassformer.load("pocket")
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from glassformer.errors import FileProblemError, GlassformerError, UnknownNameError

HERE = Path(__file__).parent
CARD = "CARD.md"
FENCE = "---\n"
# files and folders of a training run; see `training/run.py` for all
RECIPE = "recipe.yaml"
REQUEST = "request.json"  # the recipe as given; the first file a run writes, so it marks the folder as ours
LOCK = "lock"
MODEL, BEST = "model", "best"  # the result, and during training the best so far
AVERAGED, SNAPSHOTS = "averaged", "snapshots"  # weights to average, and to look at later
DESCRIBED = ("spec.json", "config.json")  # by either of which a folder is a model's own


@dataclass(frozen=True, kw_only=True)
class Card:
    """A model's CARD.md: the header between two lines of ---, and its text.

    does: in one line. languages: codes such as en; none for a model that reads no text.
    """

    does: str
    licence: str
    languages: tuple[str, ...]
    parameters: int
    text: str


def names() -> list[str]:
    """The names of the shipped models."""
    return sorted(path.parent.name for path in HERE.glob(f"*/{CARD}"))


def folder_of(name: str) -> Path:
    """The folder of a shipped model."""
    if name not in names():
        raise UnknownNameError("model", name, names())
    return HERE / name


def located(model: str | Path) -> Path:
    """The folder that a path or the bare name of a shipped model means.

    A file, a model's folder or a run's of that name in the working directory comes first.
    """
    path = Path(model)
    return HERE / path.name if is_shipped(model) and not _is_model(path) else path


def _is_model(path: Path) -> bool:
    if not path.is_dir():
        return path.exists()
    return any((path / name).exists() for name in (*DESCRIBED, RECIPE, MODEL))


def is_shipped(model: str | Path) -> bool:
    """Whether this is the bare name of a shipped model."""
    name = os.fspath(model)
    return Path(name).name == name and name in names()


def card(name: str) -> Card:
    """Read the card of a shipped model."""
    import yaml  # not needed for --help

    path = folder_of(name) / CARD
    before, _, rest = path.read_text(encoding="utf-8").partition(FENCE)
    header, _, text = rest.partition(FENCE)
    try:
        values: Any = yaml.safe_load(header)
        if before or not text or set(values) != {one.name for one in fields(Card)} - {"text"}:
            raise ValueError
        return Card(**{**values, "languages": tuple(values["languages"])}, text=text.strip() + "\n")
    except (yaml.YAMLError, ValueError, TypeError):
        problem = "does not begin with does, licence, languages and parameters between lines of ---"
        raise FileProblemError(path, problem, hint="install the package again") from None


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

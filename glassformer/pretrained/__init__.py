"""Model folders: shipped models by name, and the models of training runs.

pipeline = glassformer.load("pocket")
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

from glassformer.errors import FileProblemError, GlassformerError, UnknownNameError
from glassformer.json_text import parse_json

HERE = Path(__file__).parent
CARD = "CARD.md"
FENCE = "---\n"
# files and folders of a training run; see `training/run.py` for all
RECIPE = "recipe.yaml"
REQUEST = "request.json"  # the user's recipe; the first file of a run, so it identifies a run folder
LOCK = "lock"
MODEL, BEST = "model", "best"  # the result, and during training the best so far
AVERAGED, SNAPSHOTS = "averaged", "snapshots"  # checkpoints to average, and to inspect
CONFIGS = ("spec.json", "config.json", "model_index.json")  # a model folder has one of them


@dataclass(frozen=True, kw_only=True)
class Card:
    """A model's CARD.md: the header between two lines of ---, and its text.

    task: what the model does, in one line. languages: codes such as en; empty if the model does not read
    text.
    """

    task: str
    license: str
    languages: tuple[str, ...]
    parameters: int
    text: str


def names() -> list[str]:
    """Return the names of the shipped models."""
    return sorted(path.parent.name for path in HERE.glob(f"*/{CARD}"))


def folder_of(name: str) -> Path:
    """Return the folder of a shipped model; raise if there is no model of that name."""
    if name not in names():
        raise UnknownNameError("model", name, names())
    return HERE / name


def resolve_name(model: str | Path) -> Path:
    """Return the folder of a model, given its path or the name of a shipped model.

    A file, model folder or run folder of that name in the working directory takes precedence.
    """
    path = Path(model)
    return HERE / path.name if is_shipped(model) and not _is_model(path) else path


def hub_hint(model: str | Path) -> str:
    """Return how to download a model that is not found, if its name may be one of the Hugging Face Hub.

    >>> hub_hint("gpt2")
    'for a model of the Hugging Face Hub, first run: glassformer download ORG/gpt2'
    >>> hub_hint("pockett"), hub_hint("./gpt2"), hub_hint("/models/x")
    ('', '', '')
    """
    name = os.fspath(model)
    if name.startswith(".") or not re.fullmatch(r"([\w.-]+/)?[\w.-]+", name):
        return ""
    if get_close_matches(name, names(), n=1):
        return ""
    repo = name if "/" in name else f"ORG/{name}"
    return f"for a model of the Hugging Face Hub, first run: glassformer download {repo}"


def _is_model(path: Path) -> bool:
    if not path.is_dir():
        return path.exists()
    return any((path / name).exists() for name in (*CONFIGS, RECIPE, MODEL))


def is_shipped(model: str | Path) -> bool:
    """Whether `model` is the name of a shipped model rather than a path."""
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
        if before or not text or set(values) != {field.name for field in fields(Card)} - {"text"}:
            raise ValueError
        return Card(**{**values, "languages": tuple(values["languages"])}, text=text.strip() + "\n")
    except (yaml.YAMLError, ValueError, TypeError):
        problem = "needs a header with task, license, languages and parameters between lines of ---"
        raise FileProblemError(path, problem, hint="install the package again") from None


def is_run(folder: Path) -> bool:
    """Whether the folder is a training run."""
    return (folder / RECIPE).is_file()


@dataclass(eq=False)
class NotARunError(GlassformerError):
    """The output folder is not empty and is not a training run."""

    folder: Path
    hint: str = "choose a new or empty folder to train in"
    template: ClassVar[str] = "{folder} is not empty and is not a training run"


@dataclass(eq=False)
class NoModelYetError(GlassformerError):
    """The run has no model yet: it was stopped, or is training, before its first validation."""

    folder: Path
    hint: str = "wait for its first validation, or resume it"
    template: ClassVar[str] = "the run in {folder} has no model yet"


_UNFINISHED = re.compile(rf"\.({REQUEST}|{LOCK}\.json)\.[0-9a-f]{{8}}\.tmp")  # of `atomic_write`


def check_run_folder(folder: Path) -> None:
    """Raise NotARunError unless the folder is missing, empty or a training run.

    A run that was killed before its first file leaves at most its lock.
    """
    if not folder.is_dir() or _has_keys(folder / REQUEST, "training"):
        return
    for path in folder.iterdir():
        is_lock = path.name == LOCK and path.is_file() and not path.stat().st_size
        if not (is_lock or _has_keys(path, "pid", "host") or _UNFINISHED.fullmatch(path.name)):
            raise NotARunError(folder)


def _has_keys(path: Path, *keys: str) -> bool:
    """Whether the file contains a JSON object with these keys, as Glassformer writes it."""
    try:
        content = parse_json(path.read_bytes()) if path.suffix == ".json" else None
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and set(keys) <= content.keys()


def model_folder(folder: str | Path) -> Path:
    """Return the model folder of a run: final, else best so far. Other folders are returned unchanged."""
    root = Path(folder)
    if not is_run(root) or any((root / name).is_file() for name in CONFIGS):
        return root
    for name in (MODEL, BEST):
        if (root / name).is_dir():
            return root / name
    raise NoModelYetError(root)

"""Models that ship with the package, one folder each; every command takes them by their bare name.

pipeline = glassformer.load("pocket")
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from glassformer.errors import FileProblemError, UnknownNameError
from glassformer.pretrained.run_folder import DESCRIBED, MODEL, RECIPE

HERE = Path(__file__).parent
CARD = "CARD.md"
FENCE = "---\n"


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

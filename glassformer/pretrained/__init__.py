"""Models that come with the package: a folder each, which every verb takes by its bare name.

bundle = glassformer.load("pocket")
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from glassformer.core.schema import nearest
from glassformer.errors import GlassformerError
from glassformer.pretrained.run_folder import DESCRIBED, MODEL, RECIPE

HERE = Path(__file__).parent
CARD = "CARD.md"
FENCE = "---\n"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a model's CARD.md says: the facts it begins with, between two lines of ---, and its text.

    does: in one line. languages: codes such as en; none where it reads no text.
    """

    does: str
    licence: str
    languages: tuple[str, ...]
    parameters: int
    text: str


def names() -> list[str]:
    """The models that come along, by name."""
    return sorted(path.parent.name for path in HERE.glob(f"*/{CARD}"))


def folder_of(name: str) -> Path:
    """The folder of a model that comes along."""
    if name not in names():
        told = nearest(name, names()) if names() else "; none came with this installation"
        raise GlassformerError(f"there is no model '{name}'{told}")
    return HERE / name


def located(model: str | Path) -> Path:
    """Where a model lies that was asked for: a path as it is, or the folder that a bare name means.

    What is there in the working directory under that name comes first, unless it is a folder of other things,
    such as the tables that a recipe of the same name reads.
    """
    path = Path(model)
    return HERE / path.name if is_shipped(model) and not _stands(path) else path


def _stands(path: Path) -> bool:
    """Whether a file, a model's folder or a run's is there."""
    if not path.is_dir():
        return path.exists()
    return any((path / name).exists() for name in (*DESCRIBED, RECIPE, MODEL))


def is_shipped(model: str | Path) -> bool:
    """Whether this is the bare name of a model that comes along."""
    told = os.fspath(model)
    return Path(told).name == told and told in names()


def meant(model: str | Path) -> str:
    """`; did you mean 'x'?` where a word that names nothing is close to a model that comes along."""
    told = os.fspath(model)
    close = get_close_matches(told, names(), n=1) if Path(told).name == told else []
    return f"; did you mean '{close[0]}'?" if close else ""


def card(name: str) -> Card:
    """What is to be known about a model that comes along."""
    import yaml  # which help does without

    path = folder_of(name) / CARD
    whole = path.read_text(encoding="utf-8")
    empty, _, rest = whole.partition(FENCE)
    facts, _, text = rest.partition(FENCE)
    try:
        told: Any = yaml.safe_load(facts)
        if empty or not text or set(told) != {one.name for one in fields(Card)} - {"text"}:
            raise ValueError
        return Card(**{**told, "languages": tuple(told["languages"])}, text=text.strip() + "\n")
    except (yaml.YAMLError, ValueError, TypeError):
        raise GlassformerError(
            f"{path} does not begin with its facts (does, licence, languages, parameters) between lines of "
            "---; install the package again"
        ) from None

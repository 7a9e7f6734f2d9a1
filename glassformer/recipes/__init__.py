"""Recipes that ship with the package: files to run as they are, or to copy and change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from glassformer.errors import UnknownNameError

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the names of the recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def recipe_path(name: str, *, alternatives: Iterable[str] = ()) -> Path:
    """Return the path of a recipe. alternatives: other valid names, which the error suggests too."""
    path = FOLDER / f"{name}.yaml"
    if "/" in name or not path.is_file():
        hint = "`glassformer recipes` lists them"
        raise UnknownNameError("recipe", name, [*alternatives, *names()], hint)
    return path


def title(path: Path) -> str:
    """Return the title of a recipe, its first comment."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()

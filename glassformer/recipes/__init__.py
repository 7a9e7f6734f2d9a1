"""Ready recipes: files to run as they are, or to copy and change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from glassformer.core.schema import nearest
from glassformer.errors import GlassformerError

HERE = Path(__file__).parent


def names() -> list[str]:
    """The ready recipes by name."""
    return sorted(path.stem for path in HERE.glob("*.yaml"))


def ready(name: str, *, beside: Iterable[str] = ()) -> Path:
    """The file of a ready recipe. `beside` it other words could have been meant."""
    path = HERE / f"{name}.yaml"
    if "/" in name or not path.is_file():
        raise GlassformerError(f"there is no file and no recipe '{name}'{nearest(name, [*beside, *names()])}")
    return path


def title(path: Path) -> str:
    """A recipe's first comment: what it makes."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()

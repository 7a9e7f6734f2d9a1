"""The files of the built page."""

from __future__ import annotations

from pathlib import Path

from glassformer.errors import FileMissingError

FOLDER = Path(__file__).parent / "page"
SINGLE = "single"  # the page as one script and one style, for exports


def files() -> dict[str, Path]:
    """URL path (`index.html`, `assets/...`) -> file. The parts of the single page are not served."""
    _check_built()
    found = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
    return {
        name: path
        for name, path in found.items()
        if not name.startswith(f"{SINGLE}/") and name != "built-from.txt"
    }


def single() -> tuple[str, str]:
    """The script and the style of the single page."""
    _check_built()
    script, style = (FOLDER / SINGLE / name for name in ("page.js", "page.css"))
    return script.read_text("utf-8"), style.read_text("utf-8")


def _check_built() -> None:
    if not (FOLDER / "index.html").is_file():
        hint = "run 'make page' in a checkout, which needs npm, or install a wheel, which contains it"
        raise FileMissingError(FOLDER / "index.html", "the explorer's page", hint=hint)

"""The files of the built page, by the path a browser asks for."""

from __future__ import annotations

from pathlib import Path

from glassformer.errors import GlassformerError

FOLDER = Path(__file__).parent / "page"
SINGLE = "single"  # the page once more, as one script and one style


def files() -> dict[str, Path]:
    """`index.html`, `assets/...` -> where it lies. The single page's parts and the stamp are not served."""
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
        raise GlassformerError(
            "the explorer's page was not built when this was installed; in a checkout run 'make page', which "
            "fetches what it is built with from npm, or install a wheel, which holds it"
        )

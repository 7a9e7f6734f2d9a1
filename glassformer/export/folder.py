"""An export's folder: whole or not there, with a small JSON that says what it is and what it takes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.bundle import Bundle, sidecar_files
from glassformer.errors import GlassformerError
from glassformer.export.told import languages_of
from glassformer.families.sidecars import read_object

ABOUT = "export.json"
GENERATION = "generation_config.json"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The folder written, and what its runtime has to be told that the folder cannot say."""

    folder: Path
    notes: tuple[str, ...]


def check_new(folder: str | Path) -> Path:
    """The folder's path, where it is new or empty."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = "is not empty" if path.is_dir() else "is a file"
        raise GlassformerError(f"'{folder}' is there already and {what}; export into a new or empty folder")
    return path


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """A folder to write into, which takes its name once all is written: what looks whole is whole."""
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
            whole = Path(beside) / "model"
            whole.mkdir()
            yield whole
            if path.exists():
                path.rmdir()
            shutil.move(whole, path)
    except OSError as error:
        raise GlassformerError(
            f"could not write '{path}': {error.strerror or error}; check free space and permissions"
        ) from error


def write_beside(bundle: Bundle, folder: Path, about: dict[str, Any]) -> None:
    """What the model needs besides its graphs: tokenizer, labels, how it writes, and what the export is."""
    if bundle.tokenizer is not None:
        bundle.tokenizer.save(folder)
    files = sidecar_files(bundle)
    if bundle.generation:
        files[GENERATION] = bundle.generation
    if labels := bundle.config.get("id2label"):
        about = {**about, "labels": labels}
    if languages := languages_of(bundle):
        about = {**about, "languages": languages}
    for name, content in (*files.items(), (ABOUT, about)):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")


def read_about(folder: str | Path) -> dict[str, Any]:
    """What an export says of itself; a folder that is none is a sentence."""
    path = Path(folder)
    if not (path / ABOUT).is_file():
        raise GlassformerError(
            f"'{folder}' is no exported folder (it has no {ABOUT}); make one with `glassformer export`"
        )
    return read_object(path / ABOUT)

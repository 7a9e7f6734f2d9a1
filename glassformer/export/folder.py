"""The folder of an export: complete or absent, with a JSON file of metadata."""

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
from glassformer.errors import FileExistsAlreadyError, FileMissingError, FileProblemError
from glassformer.export.generation_metadata import language_tokens
from glassformer.families.sidecars import read_object

METADATA_FILE = "export.json"
GENERATION = "generation_config.json"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The folder written, and what its runtime has to be told that the folder cannot say."""

    folder: Path
    notes: tuple[str, ...]


def require_new_folder(folder: str | Path) -> Path:
    """The folder's path, if it is new or empty."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsAlreadyError(path, hint="export into a new or empty folder")
    return path


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `path` when everything is written."""
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
        hint = "check free space and permissions"
        raise FileProblemError(path, f"cannot be written ({error.strerror or error})", hint=hint) from error


def write_sidecars(bundle: Bundle, folder: Path, metadata: dict[str, Any]) -> None:
    """Write what the model needs besides its weights: tokenizer, labels, generation config and metadata."""
    if bundle.tokenizer is not None:
        bundle.tokenizer.save(folder)
    files = sidecar_files(bundle)
    if bundle.generation:
        files[GENERATION] = bundle.generation
    if labels := bundle.config.get("id2label"):
        metadata = {**metadata, "labels": labels}
    if languages := language_tokens(bundle):
        metadata = {**metadata, "languages": languages}
    for name, content in (*files.items(), (METADATA_FILE, metadata)):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")


def read_metadata(folder: str | Path) -> dict[str, Any]:
    """The metadata of an exported folder."""
    path = Path(folder)
    if not (path / METADATA_FILE).is_file():
        raise FileMissingError(path / METADATA_FILE, hint="give the folder of an exported model")
    return read_object(path / METADATA_FILE)

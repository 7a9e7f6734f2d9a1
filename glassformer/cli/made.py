"""What made a file's lines: the model by its content, and every option that changes what is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MODEL = (".json", ".safetensors", ".model", "vocab.txt", "merges.txt")  # how the names of a model's files end
BLOCK, BLOCKS = 1 << 20, 64  # bytes, and how many such blocks of a file are looked at
LETTERS = 100  # of the longest setting that is told whole


def brief(made: Mapping[str, Any]) -> dict[str, Any]:
    """The same as it comes back from a file; a long value by its digest, for attributes hold few letters."""
    written = {name: json.dumps(value) for name, value in made.items()}
    return {
        name: json.loads(value)
        if len(value) <= LETTERS
        else f"<{len(value):,} letters, SHA-256 {hashlib.sha256(value.encode()).hexdigest()}>"
        for name, value in written.items()
    }


def content_of(folder: Path, *, but: Path | None = None) -> str:
    """A digest of a model folder's files: of large ones their size and blocks all over them.

    Another place or another date changes nothing. but: a file that is none of the model's.
    """
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.endswith(MODEL) and not (but and but.exists() and path.samefile(but)):
            found.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            for block in _blocks(path):
                found.update(block)
    return found.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= BLOCK * BLOCKS:
            while block := file.read(BLOCK):
                yield block
            return
        for n in range(BLOCKS):
            file.seek((size - BLOCK) * n // (BLOCKS - 1))
            yield file.read(BLOCK)

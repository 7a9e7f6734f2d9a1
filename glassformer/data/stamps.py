"""What a file is known by: its time, which is quick to ask for, or its content, which is what counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from glassformer.errors import GlassformerError

Stamp = Callable[[Path], object]


def by_time(path: Path) -> object:
    """Name, size and time: where these are the same, so is the file."""
    found = path.stat()
    return path.name, found.st_size, found.st_mtime_ns


def by_content(path: Path) -> object:
    """Name, and a digest of every byte: the same for a copy, or a file that was only touched."""
    try:
        with path.open("rb") as file:
            return path.name, hashlib.file_digest(file, "blake2b").hexdigest()
    except OSError as error:
        raise GlassformerError(f"'{path}' cannot be read ({error.strerror or error})") from None

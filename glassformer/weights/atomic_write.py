"""Atomic writes: a path always has either the old content or the complete new content."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from glassformer.errors import FileProblemError


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file in the same folder; after it is closed and flushed, it replaces `path`.

    Readers that have the old file open or mapped keep the old content.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        hint = "check free space and the folder's permissions"
        raise FileProblemError(path, f"cannot be written ({error.strerror or error})", hint=hint) from error
    finally:
        with suppress(OSError):  # keep the original error
            temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and flush the new directory entries to disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, if folders can be opened (not on Windows)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

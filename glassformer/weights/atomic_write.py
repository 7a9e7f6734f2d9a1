"""Atomic writes: a path always has either the old content or the complete new content."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from glassformer.errors import FileProblemError

STAGED = ".save"  # inside a folder: complete new files that are being moved into it


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file in the same folder; after it is closed and flushed, it replaces `path`.

    Readers that have the old file open or mapped keep the old content.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with _write_errors(path):
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        with suppress(OSError):  # keep the original error
            temporary.unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file with `atomic_write`."""
    with atomic_write(path) as file:
        file.write(content)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "check free space and the folder's permissions"
        raise FileProblemError(path, f"cannot be written ({error.strerror or error})", hint=hint) from error


@contextmanager
def staged_files(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder inside `folder`; `finish_staged` then moves its files into `folder`.

    If the block fails or the process is killed, `folder` keeps its old files. Once the temporary folder is
    complete it is renamed to `.save`, and `finish_staged` can be repeated until it succeeds.
    """
    for leftover in folder.glob(f"{STAGED}-{'[0-9a-f]' * 8}"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = folder / f"{STAGED}-{secrets.token_hex(4)}"
    try:
        with _write_errors(folder):
            make_folder(temporary)
            yield temporary
            sync_folder(temporary)
            temporary.rename(folder / STAGED)
            sync_folder(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `path` if the block succeeds."""
    path = path.resolve()
    with _write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as parent:
            temporary = Path(parent) / "model"
            temporary.mkdir()
            yield temporary
            if path.exists():
                path.rmdir()
            shutil.move(temporary, path)


def finish_staged(folder: Path, *, last: str) -> None:
    """Move the files of a complete `.save` folder into `folder`, the file named `last` at the end."""
    staged = folder / STAGED
    paths = sorted((path for path in staged.rglob("*") if path.is_file()), key=lambda path: path.name == last)
    try:
        for path in paths:
            target = folder / path.relative_to(staged)
            target.parent.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):  # another process is finishing the same save
                path.replace(target)
        sync_folder(folder)
        shutil.rmtree(staged, ignore_errors=True)
    except OSError as error:
        problem = f"has an interrupted save that cannot be finished ({error.strerror or error})"
        raise FileProblemError(
            folder, problem, hint="load it once from a process that may write to it"
        ) from error


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

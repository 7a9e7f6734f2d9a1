"""A file that a verb is to write: refused before any work is done, where something would be lost."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from glassformer.errors import GlassformerError

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Write over a file that is there.")]


def check_target(file: Path, option: str, *, overwrite: bool, read: Iterable[str | Path | None] = ()) -> None:
    """A sentence where a file cannot be written in a folder that is there, or would be written over.

    option: what names the file. read: the files that are read, which even `overwrite` does not give up.
    """
    refuse_loss(file, option, overwrite=overwrite, read=read)
    if not file.parent.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise GlassformerError(f"'{file}' cannot be written; name a file in a folder that is there")


def refuse_loss(file: Path, option: str, *, overwrite: bool, read: Iterable[str | Path | None] = ()) -> None:
    """The same of what is there already, whatever the folder; an empty file is no loss."""
    if file.is_dir():
        raise GlassformerError(f"'{file}' is a folder; give a file with {option}")
    refuse_read(file, option, read)
    if file.exists() and not file.is_file():  # a pipe or a device, whose name a new file would take
        raise GlassformerError(f"'{file}' is no ordinary file; give one with {option}")
    if file.exists() and file.stat().st_size and not overwrite:
        raise GlassformerError(f"'{file}' is there already; add --overwrite, or give another file")


def refuse_read(file: Path, option: str, read: Iterable[str | Path | None]) -> None:
    """A sentence where a file to write is one of those that are read."""
    for other in read:
        if other is not None and file.exists() and Path(other).exists() and file.samefile(other):
            raise GlassformerError(f"'{file}' is the file being read; give another with {option}")

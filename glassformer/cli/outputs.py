"""Outputs of a command: one line per input, to stdout or to a file, and checks of files to be written."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from glassformer.cli.console import message
from glassformer.cli.inputs import Inputs
from glassformer.errors import ConflictError, FileExistsAlreadyError, FileProblemError, MissingValueError

PROGRESS_SECONDS = 5.0


class LineWriter:
    """Writes lines to a file or, without one, to stdout; prints progress on stderr now and then.

    written: lines of the output so far, including those of an earlier run.
    """

    def __init__(self, file: BinaryIO | None, *, total: int | None, written: int, progress: bool) -> None:
        self.written = written
        self._file, self._total, self._progress = file, total, progress
        self._first = self._processed = written
        self._began = self._printed = time.monotonic()

    def write(self, line: str) -> None:
        """Write one line at once, so that an interrupted run leaves whole lines."""
        line = " ".join(line.splitlines()) + "\n"
        self.written += 1  # before the line, so that whoever interrupts after the first one is told of it
        if self._file is None:
            sys.stdout.write(line)
            sys.stdout.flush()
        else:
            self._file.write(line.encode())
        self.advance(0)

    def advance(self, count: int) -> None:
        """Count inputs that were processed but whose lines wait for earlier ones."""
        self._processed += count
        if self._progress and time.monotonic() - self._printed >= PROGRESS_SECONDS:
            self._printed = time.monotonic()
            self.print_progress()

    def print_progress(self) -> None:
        seconds = max(time.monotonic() - self._began, 1e-9)
        done = max(self.written, self._processed)
        rate = (done - self._first) / seconds
        of_total = f" of {self._total:,}" if self._total is not None else ""
        left = (self._total - done) / rate if self._total is not None and rate else 0
        eta = f", {left:,.0f} s left" if left >= 1 else ""
        message(f"{done:,}{of_total} lines in {seconds:,.1f} s, {rate:,.1f} lines/s{eta}")


@contextmanager
def open_output(out: Path | None, inputs: Inputs, *, resume: bool = False) -> Iterator[LineWriter]:
    """A writer to `out`, or to stdout. To resume, skip as many inputs as the file has lines."""
    progress = inputs.source == "file" or out is not None
    if out is None:
        writer = LineWriter(None, total=inputs.total, written=0, progress=progress)
        inputs.on_processed = writer.advance
        yield writer
        return
    with out.open("ab" if resume else "wb", buffering=0) as file:
        inputs.skip(_cut_torn_line(out) if resume else 0)
        if inputs.first:
            message(f"resuming {out} after {inputs.first:,} lines")
        writer = LineWriter(file, total=inputs.total, written=inputs.first, progress=progress)
        inputs.on_processed = writer.advance
        try:
            yield writer
        except BaseException:
            if writer.written:
                message(f"stopped after {writer.written:,} lines in {out}; continue with --resume")
            raise
    if writer.written > inputs.first:
        writer.print_progress()


def _cut_torn_line(path: Path) -> int:
    """Cut a last line without newline; return the number of lines."""
    if not path.is_file():  # a pipe or a device
        return 0
    lines = end = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
            if b"\n" in block:
                end = file.tell() - len(block) + block.rindex(b"\n") + 1
    if end < path.stat().st_size:
        os.truncate(path, end)
    return lines


def check_line_output(out: Path | None, file: Path | None, *, resume: bool, overwrite: bool) -> None:
    """Check --out, --resume and --overwrite of a command that writes one line per input."""
    if out is None and resume:
        raise MissingValueError(name="out", needed_for="to resume")
    if resume and overwrite:
        raise ConflictError(
            names=("resume", "overwrite"), reason="one continues a file, the other replaces it"
        )
    if out is not None:
        hint = "continue it with --resume, or replace it with --overwrite"
        check_output_file(out, overwrite=overwrite or resume, inputs=[file], hint=hint)


def check_output_file(
    path: Path,
    *,
    overwrite: bool,
    inputs: Iterable[str | Path | None] = (),
    hint: str = "replace it with --overwrite",
) -> None:
    """Fail early if a file cannot be written, is one of the inputs, or exists and may not be overwritten."""
    if path.is_dir():
        raise FileProblemError(path=path, problem="is a folder")
    for other in inputs:
        if other is not None and path.exists() and Path(other).exists() and path.samefile(other):
            raise FileProblemError(path=path, problem="is also an input file")
    if path.is_file() and path.stat().st_size and not overwrite:
        raise FileExistsAlreadyError(path=path, hint=hint)
    if not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise FileProblemError(path=path, problem="cannot be written")


def check_output_folder(folder: Path, *, overwrite: bool) -> None:
    """Fail early if a folder cannot be written, or has files and may not be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise FileProblemError(path=folder, problem="is a file, not a folder")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise FileExistsAlreadyError(path=folder, hint="use --overwrite to write into it")
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FileProblemError(path=existing, problem="cannot be written")

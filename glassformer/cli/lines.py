"""Input and output of commands with one line per input, and checks of output files.

A line that cannot be processed is reported, its output line stays empty, and the command fails at the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar

from glassformer.cli.console import message
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    FileExistsAlreadyError,
    FileProblemError,
    GlassformerError,
    MissingValueError,
)

if TYPE_CHECKING:
    from glassformer.data.row_errors import Invalid
    from glassformer.tasks.base import Callbacks, Task

Result = TypeVar("Result")
MAX_REPORTED = 10  # bad lines that are reported one by one
PROGRESS_SECONDS = 5.0


@dataclass(eq=False)
class BadLinesError(GlassformerError):
    """Some lines could not be processed."""

    count: int
    file: str = ""

    def message(self) -> str:
        lines = "1 line" if self.count == 1 else f"{self.count:,} lines"
        where = f" of {self.file}" if self.file else ""
        return f"{lines}{where} could not be processed"


class LineErrors:
    """Collects the errors of single lines and reports them in line order."""

    def __init__(self, file: Path | None = None) -> None:
        self.count = 0
        self._file = file
        self._pending: dict[int, str] = {}

    def add(self, number: int, reason: object) -> None:
        """Record why a line, counted from 1, cannot be processed; only the first reason is kept."""
        self._pending.setdefault(number, str(reason))

    def pop(self, number: int) -> str | None:
        """Report and return the error of a line, in line order."""
        reason = self._pending.pop(number, None)
        if reason is not None:
            self.count += 1
            if self.count <= MAX_REPORTED:
                where = f" of {self._file}" if self._file else ""
                message(f"warning: line {number:,}{where}: {reason}")
        return reason

    def report_all(self) -> None:
        for number in sorted(self._pending):
            self.pop(number)

    def raise_if_any(self) -> None:
        if self.count:
            raise BadLinesError(count=self.count, file=str(self._file or ""))


@dataclass(kw_only=True)
class Inputs:
    """Input texts in order. total: number of texts, if known. first: number of lines skipped by `skip`."""

    source: Literal["arguments", "file", "stdin", "terminal"]
    lines: Iterator[Any] = field(default_factory=lambda: iter(()))
    total: int | None = None
    first: int = 0
    errors: LineErrors = field(default_factory=LineErrors)
    on_processed: Callable[[int], None] = lambda count: None  # called with the number of processed lines

    def skip(self, count: int) -> None:
        """Skip the first `count` lines, which an earlier run processed."""
        skipped = sum(1 for _ in islice(self.lines, count))
        if skipped < count:
            reason = f"the output file has {count:,} lines but the input only {skipped:,}"
            raise ConflictError(names=("resume", "out"), reason=reason)
        self.first = count

    def process(self, task: Task[Any, Result], *, skip_blank: bool = True) -> Iterator[Result]:
        """Yield the results of a task, in order; terminal input is processed line by line."""
        if self.source != "terminal":
            return task.run(self.lines, self._callbacks(skip_blank))
        return (
            result
            for number, line in enumerate(self.lines)
            for result in task.run([line], self._callbacks(skip_blank, number))
        )

    def _callbacks(self, skip_blank: bool, before: int = 0) -> Callbacks:
        from glassformer.tasks.base import Callbacks

        def on_reject(number: int, reason: GlassformerError) -> None:
            self.errors.add(self.first + before + number, reason)

        return Callbacks(
            on_done=lambda count: self.on_processed(count),
            on_reject=None if self.source == "arguments" else on_reject,  # an argument ends the command
            skip_blank=skip_blank,
        )


def read_inputs(texts: Sequence[str] | None, file: Path | None) -> Inputs:
    """Return the inputs of a command: from arguments, --file, or stdin."""
    if texts and file is not None:
        raise ConflictError(names=("TEXT", "file"), reason="both give the inputs")
    if texts:
        return Inputs(source="arguments", lines=iter(texts), total=len(texts))
    from glassformer.data.readers import decode_lines
    from glassformer.data.readers import read_lines as read_file

    if file is None:
        inputs = Inputs(source="terminal" if sys.stdin.isatty() else "stdin")
        lines = decode_lines(sys.stdin.buffer)
    elif file.is_file() or file.is_dir() or not file.exists():
        inputs = Inputs(source="file", total=_count_lines(file))
        lines = read_file(file) if inputs.total else iter(())
    else:
        inputs = Inputs(source="stdin")  # a pipe, which can be read only once
        lines = decode_lines(file.open("rb"))
    inputs.lines = _valid_lines(lines, inputs.errors, warn=True)
    return inputs


def read_lines(file: Path) -> tuple[list[str], LineErrors]:
    """Read all lines of a file; lines that are not valid text become empty strings."""
    from glassformer.data.readers import read_lines as read_file

    errors = LineErrors(file)
    lines = list(_valid_lines(read_file(file), errors))
    if not any(line.strip() for line in lines):
        errors.report_all()
        raise EmptyInputError(what=f"file {file}")
    return lines, errors


def _valid_lines(lines: Iterator[str | Invalid], errors: LineErrors, warn: bool = False) -> Iterator[str]:
    """Yield the lines; record the error of an invalid line and yield an empty string for it."""
    number = 0
    for number, line in enumerate(lines, 1):
        if isinstance(line, str):
            yield line.removeprefix("\ufeff") if number == 1 else line
        else:
            errors.add(number, line.reason)
            yield ""
    if warn and not number:
        message("warning: there is no input; pass texts as arguments, with --file, or on stdin")


def _count_lines(file: Path) -> int:
    from glassformer.data.readers import open_text

    count, last = 0, b"\n"
    try:
        with open_text(file) as stream:
            while block := stream.read(1 << 20):
                count, last = count + block.count(b"\n"), block
    except EmptyInputError:
        return 0
    return count + (not last.endswith(b"\n"))


class LineWriter:
    """Writes lines to a file or, without one, to stdout; prints progress on stderr at intervals.

    written: lines of the output so far, including those of an earlier run.
    """

    def __init__(self, file: BinaryIO | None, inputs: Inputs) -> None:
        self.written = self._processed = inputs.first
        self._file, self._inputs = file, inputs
        self._shows_progress = inputs.source == "file" or file is not None
        self._start = self._last_progress = time.monotonic()
        inputs.on_processed = self.advance

    def write(self, line: str) -> None:
        """Write one line in a single call, so that an interrupted run leaves complete lines."""
        line = " ".join(line.splitlines()) + "\n"
        self.written += 1  # before writing, so that an interrupt right after it reports the line
        if self._file is None:
            sys.stdout.write(line)
            sys.stdout.flush()
        else:
            self._file.write(line.encode())
        self.advance(0)

    def advance(self, count: int) -> None:
        """Count processed inputs, whose output lines may still wait for those of earlier inputs."""
        self._processed += count
        if self._shows_progress and time.monotonic() - self._last_progress >= PROGRESS_SECONDS:
            self._last_progress = time.monotonic()
            self.print_progress()

    def print_progress(self) -> None:
        seconds, total = max(time.monotonic() - self._start, 1e-9), self._inputs.total
        done = max(self.written, self._processed)
        rate = (done - self._inputs.first) / seconds
        of_total = f" of {total:,}" if total is not None else ""
        left = (total - done) / rate if total is not None and rate else 0
        eta = f", {left:,.0f} s left" if left >= 1 else ""
        message(f"{done:,}{of_total} lines in {seconds:,.1f} s, {rate:,.1f} lines/s{eta}")


@contextmanager
def open_output(out: Path | None, inputs: Inputs, *, resume: bool = False) -> Iterator[LineWriter]:
    """Open a writer to `out`, or to stdout. To resume, skip as many inputs as the file has lines."""
    if out is None:
        yield LineWriter(None, inputs)
        return
    with out.open("ab" if resume else "wb", buffering=0) as file:
        inputs.skip(_truncate_partial_line(out) if resume else 0)
        if inputs.first:
            message(f"resuming {out} after {inputs.first:,} lines")
        writer = LineWriter(file, inputs)
        try:
            yield writer
        except BaseException:
            if writer.written:
                message(f"stopped after {writer.written:,} lines in {out}; continue with --resume")
            raise
    if writer.written > inputs.first:
        writer.print_progress()


def _truncate_partial_line(path: Path) -> int:
    """Remove an incomplete last line (without a newline); return the number of lines."""
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
        reason = "one continues a file, the other replaces it"
        raise ConflictError(names=("resume", "overwrite"), reason=reason)
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
        problem = "cannot be written" if path.parent.is_dir() else "is in a folder that does not exist"
        raise FileProblemError(path=path, problem=problem)


def check_output_folder(
    folder: Path, *, overwrite: bool, hint: str = "use --overwrite to write into it"
) -> None:
    """Fail early if a folder cannot be written, or has files and may not be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise FileProblemError(path=folder, problem="is a file, not a folder")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise FileExistsAlreadyError(path=folder, hint=hint)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FileProblemError(path=existing, problem="cannot be written")

"""Inputs of a command: arguments, a file or stdin, one text per line.

A line that cannot be processed is reported, its output line stays empty, and the command fails at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from glassformer.cli.console import message
from glassformer.errors import ConflictError, EmptyInputError, GlassformerError

if TYPE_CHECKING:
    from glassformer.data.row_errors import Invalid
    from glassformer.tasks.base import Callbacks

Result = TypeVar("Result", covariant=True)
MAX_REPORTED = 10  # bad lines that are reported one by one


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

    def add(self, number: int, reason: str) -> None:
        """Record why a line, counted from 1, cannot be processed; the first reason counts."""
        self._pending.setdefault(number, reason)

    def pop(self, number: int) -> str | None:
        """Report and return the error of a line, when its turn has come."""
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


class LineTask(Protocol[Result]):
    """A task with one result per line: any `glassformer.tasks.Task` that reads texts or file names."""

    def run(self, inputs: Any, callbacks: Callbacks, /) -> Iterator[Result]: ...


@dataclass(kw_only=True)
class Inputs:
    """Input texts in order. total: their number, if known; first: the number of lines skipped by `skip`."""

    source: Literal["arguments", "file", "stdin", "terminal"]
    lines: Iterator[str] = field(default_factory=lambda: iter(()))
    total: int | None = None
    first: int = 0
    errors: LineErrors = field(default_factory=LineErrors)
    on_processed: Callable[[int], None] = lambda count: None  # called with the number of processed lines

    @property
    def interactive(self) -> bool:
        return self.source == "terminal"

    def skip(self, count: int) -> None:
        """Skip the first lines, which were processed before."""
        skipped = sum(1 for _ in islice(self.lines, count))
        if skipped < count:
            raise ConflictError(
                names=("resume", "out"),
                reason=f"the output file has {count:,} lines but the input only {skipped:,}",
            )
        self.first = count

    def process(self, task: LineTask[Result], *, skip_blank: bool = True) -> Iterator[Result]:
        """The results of a task, in order; from a terminal, each line is processed as it is entered."""
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
            self.errors.add(self.first + before + number, str(reason))

        return Callbacks(
            on_done=lambda count: self.on_processed(count),
            on_reject=None if self.source == "arguments" else on_reject,  # an argument ends the command
            skip_blank=skip_blank,
        )


def read_inputs(texts: Sequence[str] | None, file: Path | None) -> Inputs:
    """The inputs that a command line names: arguments, --file, or stdin."""
    from glassformer.data.readers import decode_lines
    from glassformer.data.readers import read_lines as read_file

    if texts and file is not None:
        raise ConflictError(names=("TEXT", "file"), reason="both give the inputs")
    if texts:
        return Inputs(source="arguments", lines=iter(texts), total=len(texts))
    if file is None:
        inputs = Inputs(source="terminal" if sys.stdin.isatty() else "stdin")
        lines = decode_lines(sys.stdin.buffer)
    elif file.is_file() or file.is_dir() or not file.exists():
        inputs = Inputs(source="file", total=_count_lines(file))
        lines = read_file(file) if inputs.total else iter(())
    else:
        inputs = Inputs(source="stdin")  # a pipe, which can be read only once
        lines = decode_lines(file.open("rb"))
    inputs.lines = _warn_if_empty(_valid_lines(lines, inputs.errors))
    return inputs


def read_lines(file: Path) -> tuple[list[str], LineErrors]:
    """All lines of a file, empty strings for those that are not valid text."""
    from glassformer.data.readers import read_lines as read_file

    errors = LineErrors(file)
    lines = list(_valid_lines(read_file(file), errors))
    if not any(line.strip() for line in lines):
        errors.report_all()
        raise EmptyInputError(what=f"file {file}")
    return lines, errors


def _valid_lines(lines: Iterator[str | Invalid], errors: LineErrors) -> Iterator[str]:
    """The lines, with an empty string for an invalid one, whose error is recorded."""
    for number, line in enumerate(lines, 1):
        if isinstance(line, str):
            yield line.removeprefix("\ufeff") if number == 1 else line
        else:
            errors.add(number, line.reason)
            yield ""


def _warn_if_empty(lines: Iterator[str]) -> Iterator[str]:
    first = next(lines, None)
    if first is None:
        message("warning: there is no input; pass texts as arguments, with --file, or on stdin")
        return
    yield first
    yield from lines


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

"""Input and output of commands with one line per input, and checks of output files.

A line that cannot be processed is reported, its output line stays empty, and the command fails at the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice, product, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, Unpack

from glassformer.cli.console import message
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    FileExistsAlreadyError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    MissingValueError,
)
from glassformer.messages import plural, quantity

if TYPE_CHECKING:
    from glassformer.data.readers import TableOptions
    from glassformer.data.row_errors import Invalid
    from glassformer.data.tables import InputTable, TableWriter
    from glassformer.families.sidecars import JobInfo
    from glassformer.tasks.base import Callbacks, Task

Result = TypeVar("Result")
MAX_REPORTED = 10  # bad lines that are reported one by one
PROGRESS_SECONDS = 5.0
SPREADSHEETS = (".xls", ".xlsb", ".ods", ".numbers")  # that are not written


@dataclass(eq=False)
class BadLinesError(GlassformerError):
    """Some lines could not be processed."""

    count: int
    file: str = ""
    unit: str = "line"

    def message(self) -> str:
        where = f" of {self.file}" if self.file else ""
        return f"{self.count:,} {plural(self.unit, self.count)}{where} could not be processed"


class LineErrors:
    """Collects the errors of single lines, or rows of a table, and reports them in order."""

    def __init__(self, file: Path | None = None, unit: str = "line") -> None:
        self.count = 0
        self._file, self.unit = file, unit
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
                message(f"warning: {self.unit} {number:,}{where}: {reason}")
        return reason

    def report_all(self) -> None:
        for number in sorted(self._pending):
            self.pop(number)

    def raise_if_any(self) -> None:
        if self.count:
            raise BadLinesError(count=self.count, file=str(self._file or ""), unit=self.unit)


@dataclass(kw_only=True)
class Inputs:
    """Input texts in order, tuples of texts if several columns of a table are read.

    total: number of texts, if known. first: number of lines skipped by `skip`. images, questions: the paths
    of image files, if folders or patterns stand for them, and the questions, if there are several.
    table: the table they are read from. records: if kept, the rows that were read and whose results are not
    written yet.
    """

    source: Literal["arguments", "file", "stdin", "terminal"]
    images: Sequence[str] = ()
    questions: Sequence[str] = ()
    lines: Iterator[Any] = field(default_factory=lambda: iter(()))
    total: int | None = None
    first: int = 0
    table: InputTable | None = None
    keeps_records: bool = False
    records: deque[dict[str, object]] = field(default_factory=deque)
    columns: tuple[str, ...] = ("text",)  # of the inputs in a table that is written, unless it is read
    errors: LineErrors = field(default_factory=LineErrors)
    on_processed: Callable[[int], None] = lambda count: None  # called with the number of processed lines

    def skip(self, count: int) -> None:
        """Skip the first `count` lines, which an earlier run processed."""
        skipped = sum(1 for _ in islice(self.lines, count))
        if skipped < count:
            reason = f"the output file has {quantity(count, 'line')} but the input only {skipped:,}"
            raise ConflictError(names=("resume", "out"), reason=reason)
        self.first = count

    def process(self, task: Task[Any, Result], *, skip_blank: bool = True) -> Iterator[Result]:
        """Yield the results of a task, in order; terminal input is processed line by line."""
        if self.source != "terminal":
            return self._process(task, skip_blank)
        return (
            result
            for number, line in enumerate(self.lines)
            for result in task.run([line], self._callbacks(skip_blank, number))
        )

    def _process(self, task: Task[Any, Result], skip_blank: bool) -> Iterator[Result]:
        from glassformer.tasks.base import RejectedInputError

        try:
            yield from task.run(self.lines, self._callbacks(skip_blank))
        except RejectedInputError as error:
            raise (error.reason if self.total == 1 else error) from None  # the only one needs no number

    def _callbacks(self, skip_blank: bool, before: int = 0) -> Callbacks:
        from glassformer.tasks.base import Callbacks

        def on_reject(number: int, reason: GlassformerError) -> None:
            self.errors.add(self.first + before + number, reason)

        return Callbacks(
            on_done=lambda count: self.on_processed(count),
            on_reject=None if self.source == "arguments" else on_reject,  # an argument ends the command
            skip_blank=skip_blank,
        )


def read_inputs(
    texts: Sequence[str] | None,
    file: Path | None,
    *,
    images: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    job: JobInfo | None = None,
    max_columns: int = 1,
    lists: bool = False,
    **text: Unpack[TableOptions],
) -> Inputs:
    """Return the inputs of a command: from arguments, --file, or stdin.

    images: image files that replace `texts`, which name folders or patterns; unlike an argument, one that
    cannot be read does not end the command.
    A CSV, TSV, JSON Lines, Parquet or Excel file is read as a table. columns: its columns with the inputs, at
    most `max_columns`; by default those of the training data (`job`), else the only column of text. lists:
    whether a column may have lists, which are returned as JSON.
    """
    if texts and file is not None:
        raise ConflictError(names=("TEXT", "file"), reason="both give the inputs")
    from glassformer.data.readers import UTF8, check_encoding, decode_lines, file_format, transcode
    from glassformer.data.readers import read_lines as read_file

    encoding = text.get("encoding", UTF8)
    if encoding != UTF8 and check_encoding(encoding) != UTF8 and texts:
        raise ConflictError(names=("TEXT", "encoding"), reason="the encoding is that of a file")
    is_table = file is not None and not file.is_fifo() and file_format(file) != "plain"
    if columns and not is_table:
        reason = "columns are read from a CSV, TSV, JSON Lines, Parquet or Excel file"
        raise ConflictError(names=("column", "TEXT" if texts else "file"), reason=reason)
    if file is not None and is_table:
        return _read_table(file, columns, job, max_columns, lists, text)
    if images:
        inputs = named_inputs("image", images, images)
        inputs.images = images
        return inputs
    if texts:
        inputs = Inputs(source="arguments", total=len(texts))
        inputs.lines = _recorded_lines(iter(texts), inputs)
        return inputs
    if file is None:
        inputs = Inputs(source="terminal" if sys.stdin.isatty() else "stdin")
        lines = decode_lines(transcode(sys.stdin.buffer, encoding), encoding=encoding)
    elif file.is_file() or file.is_dir() or not file.exists():
        inputs = Inputs(source="file", total=_count_lines(file, encoding))
        lines = read_file(file, encoding=encoding) if inputs.total else iter(())
    else:
        inputs = Inputs(source="stdin")  # a pipe, which can be read only once
        lines = decode_lines(transcode(file.open("rb"), encoding), encoding=encoding)
    inputs.lines = _recorded_lines(_valid_lines(lines, inputs.errors, warn=True), inputs)
    return inputs


def named_inputs(column: str, names: Sequence[str], values: Sequence[Any]) -> Inputs:
    """Return inputs with names, e.g. image files. column: of the names in a table that is written."""
    errors = LineErrors(unit="series" if column == "id" else column)
    inputs = Inputs(source="file", total=len(names), columns=(column,), errors=errors)
    inputs.lines = _recorded_lines(iter(values), inputs, iter(names))
    return inputs


def read_image_questions(arguments: Sequence[str], images: Sequence[str]) -> Inputs:
    """Return each question about each image. arguments: images, then questions.

    images: the files that folders and patterns among the arguments stand for, and all other arguments.
    """
    from glassformer.data.image_files import is_image_name

    def is_image(argument: str) -> bool:
        return os.path.exists(argument) or is_image_name(Path(argument))

    given = images or arguments
    files = list(takewhile(is_image, given))
    questions = given[len(files) :]
    if not files:
        raise MissingValueError("IMAGE", f"before the question {questions[0]!r:.60}")
    if not questions:
        raise MissingValueError("QUESTION", f"about {files[0]}")
    if misplaced := next(filter(is_image, questions), None):
        raise InvalidValueError("QUESTION", misplaced, "a question; images come first")
    pairs = list(product(files, questions))
    errors = LineErrors(unit="question")
    inputs = Inputs(source="file" if len(pairs) > 1 else "arguments", total=len(pairs), errors=errors)
    inputs.columns = ("image", "question")
    inputs.images = [image for image, _ in pairs] if len(files) > 1 or images else ()
    inputs.questions = [question for _, question in pairs] if len(questions) > 1 else ()
    inputs.lines = _recorded_lines(iter(pairs), inputs)
    return inputs


def _recorded_lines(
    lines: Iterator[Any], inputs: Inputs, names: Iterator[Any] | None = None
) -> Iterator[Any]:
    """Yield the lines, and keep them, or their names, for a table that is written."""
    for line in lines:
        name = line if names is None else next(names)
        if inputs.keeps_records:
            values = name if isinstance(name, tuple) else (name,)
            inputs.records.append(dict(zip(inputs.columns, values, strict=True)))
        yield line


def _read_table(
    file: Path,
    columns: Sequence[str] | None,
    job: JobInfo | None,
    max_columns: int,
    lists: bool,
    text: TableOptions,
) -> Inputs:
    from glassformer.data.readers import open_table
    from glassformer.data.tables import InputTable, choose_columns

    reader = open_table(file, **text)
    trained = (job.data_columns if job is not None else None) or {}
    table = InputTable(reader, choose_columns(reader, columns or (), trained, max_columns), lists=lists)
    inputs = Inputs(source="file", table=table, total=table.count(), errors=LineErrors(unit="row"))
    if not columns:
        names = " and ".join(f"'{n}'" if isinstance(n, str) else f"number {n}" for n in table.columns)
        note = f" ({reader.note})" if reader.note else ""
        message(f"reading {plural('column', len(table.columns))} {names} of {file}{note}")

    def lines() -> Iterator[Any]:
        for number, row in enumerate(table.rows(), 1):
            if inputs.keeps_records:
                inputs.records.append(row.record)
            if isinstance(row.texts, tuple):
                yield row.texts if len(row.texts) > 1 else row.texts[0]
            else:
                inputs.errors.add(number, row.texts.reason)
                yield "" if len(table.columns) == 1 else ("",) * len(table.columns)

    inputs.lines = lines()
    return inputs


def read_lines(file: Path, encoding: str = "utf-8") -> tuple[list[str], LineErrors]:
    """Read all lines of a file; lines that are not valid text become empty strings."""
    from glassformer.data.readers import read_lines as read_file

    errors = LineErrors(file)
    lines = list(_valid_lines(read_file(file, encoding=encoding), errors))
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


def _count_lines(file: Path, encoding: str) -> int:
    from glassformer.data.readers import open_text

    count, last = 0, b"\n"
    try:
        with open_text(file, encoding=encoding) as stream:
            while block := stream.read(1 << 20):
                count, last = count + block.count(b"\n"), block
    except EmptyInputError:
        return 0
    return count + (not last.endswith(b"\n"))


class LineWriter:
    """Writes lines to a file or a table or, without one, to stdout; prints progress on stderr at intervals.

    written: lines of the output so far, including those of an earlier run.
    """

    def __init__(self, file: BinaryIO | None, inputs: Inputs, *, table: TableWriter | None = None) -> None:
        self.written = self._processed = inputs.first
        self._file, self._table, self._inputs = file, table, inputs
        self._shows_progress = inputs.source == "file" or file is not None or table is not None
        self._start = self._last_progress = time.monotonic()
        inputs.on_processed = self.advance

    def write(self, line: str, cells: Mapping[str, object]) -> None:
        """Write one line, or to a table one row with these cells added.

        A line is written in a single call, so that an interrupted run leaves complete lines.
        """
        line = " ".join(line.splitlines()) + "\n"
        self.written += 1  # before writing, so that an interrupt right after it reports the line
        if self._table is not None:
            self._table.write(self._inputs.records.popleft(), cells)
        elif self._file is None:
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
        seconds, inputs = time.monotonic() - self._start, self._inputs
        done = max(self.written, self._processed)
        message(format_progress(done, inputs.total, seconds, inputs.errors.unit, skipped=inputs.first))


def format_progress(done: int, total: int | None, seconds: float, unit: str, *, skipped: int = 0) -> str:
    """Return a line about progress. unit: of inputs, in the singular. skipped: done by an earlier run.

    >>> format_progress(30, 90, 6, "line"), format_progress(2, 5, 8, "image")
    ('30 of 90 lines in 6.0 s, 5.0 lines/s, 12 s left', '2 of 5 images in 8.0 s, 4.0 s per image, 12 s left')
    """
    each = max(seconds, 1e-9) / max(done - skipped, 1)
    of_total = f" of {total:,}" if total is not None else ""
    speed = f"{1 / each:,.1f} {unit}s/s" if each <= 1 else f"{each:,.1f} s per {unit}"
    left = (total - done) * each if total is not None else 0
    eta = f", {left:,.0f} s left" if left >= 1 else ""
    return f"{done:,}{of_total} {unit}s in {seconds:,.1f} s, {speed}{eta}"


def progress_callback(total: int, unit: str) -> Callable[[int], None]:
    """Return a function that counts processed inputs, and prints progress on stderr at intervals."""
    done, start = 0, time.monotonic()
    last = start

    def advance(count: int) -> None:
        nonlocal done, last
        done += count
        if 0 < done < total and time.monotonic() - last >= PROGRESS_SECONDS:
            last = time.monotonic()
            message(format_progress(done, total, last - start, unit))

    return advance


@contextmanager
def open_output(
    out: Path | None, inputs: Inputs, *, resume: bool = False, columns: Mapping[str, type] | None = None
) -> Iterator[LineWriter]:
    """Open a writer to `out`, or to stdout. To resume, skip as many inputs as the file has lines.

    columns: types of the columns that a table gets, if `out` is a table by its suffix; None writes lines.
    """
    from glassformer.data.readers import file_format
    from glassformer.data.tables import TableWriter

    if out is None:
        yield LineWriter(None, inputs)
        return
    table: TableWriter | None = None
    with ExitStack() as stack:
        file: BinaryIO | None = None
        if columns is not None and file_format(out) != "plain":
            table = TableWriter(out, columns, source=inputs.table, names=inputs.columns, resume=resume)
            stack.push(table)
            inputs.skip(table.rows)
            inputs.keeps_records = True
        else:
            file = stack.enter_context(out.open("ab" if resume else "wb", buffering=0))
            inputs.skip(_truncate_partial_line(out) if resume else 0)
        if inputs.first:
            unit = "row" if table is not None else "line"
            message(f"resuming {out} after {inputs.first:,} {plural(unit, inputs.first)}")
        writer = LineWriter(file, inputs, table=table)
        try:
            yield writer
        except BaseException:
            if writer.written and (table is None or table.can_resume):
                message(f"stopped after {quantity(writer.written, 'line')} in {out}; continue with --resume")
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
        check_output_file(out, overwrite=overwrite or resume, table=True, inputs=[file], hint=hint)


def check_output_file(
    path: Path,
    *,
    overwrite: bool,
    table: bool = False,
    inputs: Iterable[str | Path | None] = (),
    hint: str = "replace it with --overwrite",
) -> None:
    """Fail early if a file cannot be written, is one of the inputs, or exists and may not be overwritten.

    table: whether the command writes tables of every format.
    """
    if path.suffix.lower() in (SPREADSHEETS if table else (*SPREADSHEETS, ".xlsx", ".xlsm", ".parquet")):
        hint = f"write {'.xlsx or ' if table else ''}.csv"
        raise FileProblemError(path, f"is not written as {path.suffix}", hint=hint)
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

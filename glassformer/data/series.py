"""Time series: read from a table, checked for even steps, and held as one array.

Letters: S series, N rows of all series concatenated, C channels.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from glassformer.data.readers import ParquetTable, decode_lines, file_format, find_column, open_text
from glassformer.data.row_errors import MAX_BAD_SHARE, Invalid, RowCounter, RowErrors
from glassformer.data.timestamps import (
    InvalidTimestampError,
    Step,
    advance,
    find_step,
    format_timestamp,
    parse_timestamp,
)
from glassformer.errors import EmptyInputError, FileProblemError, UnknownNameError

Fill = Literal["refuse", "linear", "last", "ignore"]
TIME_NAMES = ("date", "ds", "timestamp", "datetime", "time", "date time", "date_time")
ID_NAMES = ("unique_id", "item_id", "series_id", "id", "series")
VALUE_NAMES = ("y", "target", "value")
_INDEX_NAMES = ("", "unnamed: 0")  # a column that only numbers the rows, as pandas writes one
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "?"})
_MAX_TEXT_SHARE = 0.5  # of a column of numbers
_FILL_HINT = "fix the data, or set `fill` to linear or last"


@dataclass(frozen=True, kw_only=True)
class SeriesSet:
    """One or many series with the same channels and the same step.

    values: (N, C), in double precision, which keeps a small variation on a large offset
    stamps: (N,), as in `timestamps`    ends: (S,), where each series ends
    ids: the names of the series    names: of the channels    notes: warnings for the user
    """

    values: NDArray[np.float64]
    stamps: NDArray[np.int64]
    ends: NDArray[np.int64]
    ids: tuple[str, ...]
    names: tuple[str, ...]
    step: Step
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """Where each series begins: (S,)."""
        return np.concatenate(([0], self.ends[:-1])).astype(np.int64)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many rows each series has: (S,)."""
        return self.ends - self.begins

    def series(self, number: int) -> NDArray[np.float64]:
        """The values of one series: (rows, C)."""
        return self.values[int(self.begins[number]) : int(self.ends[number])]

    def timestamp(self, row: int) -> str:
        """The timestamp of a row of all series concatenated."""
        return format_timestamp(int(self.stamps[row]), self.step.kind != "numbers")


def read_series(
    path: str | Path,
    *,
    errors: RowErrors,
    time: str | None = None,
    target: str | Sequence[str] | None = None,
    fill: Fill = "refuse",
    display_name: str | None = None,
) -> SeriesSet:
    """The series in a CSV or Parquet file, wide (a column per channel) or long (unique_id, ds, y).

    time: the column of timestamps.    target: the column or columns of values; by default all.
    fill: what to do about missing rows and values, and repeated timestamps: raise an error, interpolate
    linearly, repeat the last value, or (rows only) ignore it.
    display_name: what errors call the file, e.g. if it is a copy of a table in memory; rows are then counted
    without the header.
    """
    file = SeriesFile.open(path, display_name)
    time, values, id_column = file.choose_columns(time, [target] if isinstance(target, str) else target)
    reader = _RowReader(file, time, values, id_column)
    rows = reader.read()
    notes = reader.check_values(rows, fill)
    even = even_steps(rows, fill, errors.start_file(file.name, unit=file.unit))
    constant = [name for n, name in enumerate(values) if (even.values[:, n] == even.values[0, n]).all()]
    if constant:
        notes.append(f"constant columns: {', '.join(constant[:5])}{', ...' * (len(constant) > 5)}")
    return SeriesSet(
        values=even.values,
        stamps=even.stamps,
        ends=np.flatnonzero(np.append(np.diff(even.which) != 0, True)).astype(np.int64) + 1,
        ids=tuple(reader.ids),
        names=values,
        step=even.step,
        notes=(*even.notes, *notes),
    )


@dataclass(frozen=True, kw_only=True)
class SeriesFile:
    """One table: CSV (commas, semicolons or tabs, also .gz) or Parquet.

    name: what errors call it    delimiter: None for Parquet
    unit: what errors count from 1; a header is a line but not a row
    """

    path: Path
    name: str
    columns: tuple[str, ...]
    first: tuple[object, ...]
    delimiter: str | None
    unit: Literal["line", "row"]

    @classmethod
    def open(cls, path: str | Path, display_name: str | None = None) -> SeriesFile:
        """Open a table and check its header."""
        path, name = Path(path), display_name or str(path)
        if file_format(path) == "parquet":
            table = ParquetTable(path)
            first = table.head(1).rows[0]
            return cls(path=path, name=name, columns=table.names, first=first, delimiter=None, unit="row")
        delimiter = max(",;\t", key=next(_decoded_lines(path, name)).count)
        rows = _read_csv(path, name, delimiter)
        columns = tuple(cell.strip() for cell in next(rows)[1])
        _, row = next(rows, (0, None))
        if _is_data(columns):
            raise FileProblemError(
                name, "has no header", hint="add a first line that names the columns", line=1
            )
        if row is None:
            raise EmptyInputError(f"file {name}", hint="it has a header and no rows")
        for column in columns:
            if columns.count(column) > 1:
                raise FileProblemError(name, f"has more than one column '{column}'", line=1)
        unit: Literal["line", "row"] = "line" if display_name is None else "row"
        return cls(path=path, name=name, columns=columns, first=tuple(row), delimiter=delimiter, unit=unit)

    def choose_columns(
        self, time: str | None, target: Sequence[str] | None
    ) -> tuple[str, tuple[str, ...], str | None]:
        """The column of timestamps, those of values, and that of series ids if there are several series."""
        for name in ([] if time is None else [time]) + list(target or []):
            if name not in self.columns:
                raise UnknownNameError(f"column of {self.name}", name, self.columns)
        time = time or find_column(self.columns, TIME_NAMES) or self._guess_time()
        others = [name for name in self.columns if name != time and name.lower() not in _INDEX_NAMES]
        value = find_column(others, VALUE_NAMES) if target is None else target[0]
        id_column = find_column(others, ID_NAMES)
        if id_column is not None and value is not None and id_column != value:
            return time, tuple(target or [value]), id_column
        if not others:
            raise FileProblemError(self.name, f"has no column of values besides '{time}'")
        return time, tuple(others if target is None else target), None

    def _guess_time(self) -> str:
        if not _is_timestamp(self.first[0]):
            raise FileProblemError(
                self.name,
                f"has no known column of timestamps ({', '.join(self.columns[:12])})",
                hint="set `time` to its name",
            )
        return self.columns[0]

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[object]]]:
        """Every row's line and the cells of these columns."""
        if self.delimiter is None:
            yield from ParquetTable(self.path).rows(list(columns), RowCounter(self.name))
            return
        indices = [self.columns.index(name) for name in columns]
        rows = _read_csv(self.path, self.name, self.delimiter)
        next(rows)
        for line, row in rows:
            if len(row) != len(self.columns):
                raise FileProblemError(
                    self.name, f"has {len(row)} columns, but the header has {len(self.columns)}", line
                )
            yield line - (self.unit == "row"), [row[index] for index in indices]


def _decoded_lines(path: Path, name: str) -> Iterator[str]:
    """The lines; a header that is not UTF-8 is read as Latin-1, which units such as µ and ° often are."""
    with open_text(path) as stream:
        header = stream.readline()
        try:
            yield header.decode()
        except UnicodeDecodeError:
            yield header.decode("latin-1")
        for number, line in enumerate(decode_lines(stream), 2):
            if isinstance(line, Invalid):
                raise FileProblemError(name, line.reason, number)
            yield line


def _read_csv(path: Path, name: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The header and every row that is not blank, with its line."""
    reader = csv.reader(_decoded_lines(path, name), delimiter=delimiter)
    try:
        for row in reader:
            if row and any(row):
                yield reader.line_num, row
    except csv.Error as error:
        raise FileProblemError(name, f"is not CSV ({error})", reader.line_num) from None


def _is_data(header: Sequence[str]) -> bool:
    """Whether what should be the header is a row of numbers."""
    return all(map(_is_number, header[1:])) and (_is_number(header[0]) or _is_timestamp(header[0]))


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _is_timestamp(cell: object) -> bool:
    try:
        parse_timestamp(cell)
    except InvalidTimestampError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class SeriesRows:
    """The rows of all series: values (N, C), stamps (N,), which (N,) series and lines (N,) in the file."""

    name: str
    dated: bool
    values: NDArray[np.float64]
    stamps: NDArray[np.int64]
    which: NDArray[np.int32]
    lines: NDArray[np.int32]

    def select(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> SeriesRows:
        return replace(
            self,
            values=self.values[rows],
            stamps=self.stamps[rows],
            which=self.which[rows],
            lines=self.lines[rows],
        )

    def same_series(self) -> NDArray[np.bool_]:
        """(N - 1,), False where one series ends and the next begins."""
        return np.diff(self.which) == 0

    def timestamp(self, row: int) -> str:
        return format_timestamp(int(self.stamps[row]), self.dated)

    def problem(self, row: int, problem: str, hint: str = "") -> FileProblemError:
        return FileProblemError(self.name, problem, int(self.lines[row]), hint)


class _RowReader:
    """Reads the rows of a file into growing arrays."""

    def __init__(self, file: SeriesFile, time: str, values: Sequence[str], id_column: str | None) -> None:
        self.file, self.time, self.values, self.id_column = file, time, values, id_column
        self.ids: dict[str, int] = {}
        self.dated: bool | None = None
        self._text: dict[
            int, tuple[int, int, str]
        ] = {}  # by column: how many cells, the first one and its line

    def read(self) -> SeriesRows:
        values, stamps = array("d"), array("q")
        which, lines = array("i"), array("i")
        long = self.id_column is not None
        columns = [self.time, *([str(self.id_column)] if long else []), *self.values]
        name = self.file.path.name.split(".")[0]
        for line, cells in self.file.rows(columns):
            stamps.append(self._timestamp(line, cells[0]))
            lines.append(line)
            which.append(self.ids.setdefault(str(cells[1]).strip() if long else name, len(self.ids)))
            numbers = cells[1 + long :]
            try:
                values.extend(list(map(float, numbers)))  # type: ignore[arg-type]
            except (ValueError, TypeError):
                values.extend([self._number(line, n, cell) for n, cell in enumerate(numbers)])
        if len(stamps) < 2:
            raise FileProblemError(self.file.name, "has one row; a series needs at least two")
        return SeriesRows(
            name=self.file.name,
            dated=bool(self.dated),
            values=np.frombuffer(values, np.float64).reshape(len(stamps), -1),
            stamps=np.frombuffer(stamps, np.int64),
            which=np.frombuffer(which, np.int32),
            lines=np.frombuffer(lines, np.int32),
        )

    def _timestamp(self, line: int, cell: object) -> int:
        try:
            stamp = parse_timestamp(cell)
        except InvalidTimestampError as error:
            raise FileProblemError(self.file.name, str(error), line) from None
        if self.dated is None:
            self.dated = stamp.dated
        elif self.dated != stamp.dated:
            before = "dates" if self.dated else "numbers"
            raise FileProblemError(self.file.name, f"timestamp {cell!r:.40} follows {before}", line)
        return stamp.at

    def _number(self, line: int, column: int, cell: object) -> float:
        try:
            return float(cell)  # type: ignore[arg-type]
        except (ValueError, TypeError):
            text = str("" if cell is None else cell).strip()
            if text.lower() not in _MISSING:
                count, first, example = self._text.get(column, (0, line, text))
                self._text[column] = (count + 1, first, example)
            return math.nan

    def check_values(self, rows: SeriesRows, fill: Fill) -> list[str]:
        """Raise an error for values that are not finite, or a warning if they will be filled."""
        bad = ~np.isfinite(rows.values)  # (N, C)
        if not bad.any():
            return []
        for column, (count, line, example) in self._text.items():
            if count > _MAX_TEXT_SHARE * len(bad):
                raise FileProblemError(
                    rows.name,
                    f"column '{self.values[column]}' contains text ({example!r:.40})",
                    line,
                    hint="choose the columns of numbers",
                )
        row, column = (int(n) for n in np.argwhere(bad)[0])
        _, line, example = self._text.get(column, (0, 0, ""))
        what = f"{example!r:.40}" if line == rows.lines[row] else "no finite value"
        problem = f"{what} in column '{self.values[column]}' ({int(bad.sum()):,} such values)"
        if fill in ("refuse", "ignore"):
            raise rows.problem(row, problem, _FILL_HINT)
        share = bad.mean(0)
        if share.max() > MAX_BAD_SHARE:
            name = self.values[int(share.argmax())]
            raise FileProblemError(rows.name, f"{share.max():.0%} of column '{name}' is missing")
        rows.values[bad] = np.nan  # infinite values are filled too
        return [f"line {rows.lines[row]}: {problem}; filled"]


@dataclass(frozen=True, kw_only=True)
class EvenSeries:
    """Series whose steps are all the same, or treated as such."""

    values: NDArray[np.float64]
    stamps: NDArray[np.int64]
    which: NDArray[np.int32]
    step: Step
    notes: tuple[str, ...]


def even_steps(rows: SeriesRows, fill: Fill, counter: RowCounter) -> EvenSeries:
    """Check the steps between rows, and fill gaps according to `fill`. Skipped rows go to the counter."""
    notes: list[str] = []
    rows = _sort(rows, notes)
    step, counted = find_step(rows.stamps, rows.dated, rows.same_series())
    rows, counted = _drop_repeated(rows, counted, fill, counter, notes)
    counter.good += len(counted)
    gaps = np.where(rows.same_series(), np.diff(counted), step.size)
    missing = np.maximum(gaps // step.size - 1, 0)
    uneven = np.flatnonzero(gaps % step.size)
    if uneven.size:
        row = int(uneven[0]) + 1
        problem = (
            f"timestamp {rows.timestamp(row)} is not a multiple of {step} after {rows.timestamp(row - 1)}"
        )
        if fill != "ignore":
            raise rows.problem(row, problem, "resample to even steps")
        notes.append(f"line {rows.lines[row]}: {problem}; treated as even")
    total = int(missing.sum())
    if total:
        row = int(np.flatnonzero(missing)[0]) + 1
        problem = (
            f"{total:,} rows are missing, first between {rows.timestamp(row - 1)} and {rows.timestamp(row)}"
        )
        problem += f" (step {step})"
        if fill == "refuse":
            raise rows.problem(row, problem, _FILL_HINT)
        if fill != "ignore" and total > MAX_BAD_SHARE * (total + len(counted)):
            raise rows.problem(row, f"{problem}, too many to fill")
        notes.append(f"line {rows.lines[row]}: {problem}; {'ignored' if fill == 'ignore' else 'filled'}")
    values, stamps, which = rows.values, rows.stamps, rows.which
    if fill in ("linear", "last"):
        if total:
            values, stamps, which = _insert_missing(rows, step, missing)
        values = _fill_missing(values, which, fill, rows.name)
    return EvenSeries(values=values, stamps=stamps, which=which, step=step, notes=tuple(notes))


def _sort(rows: SeriesRows, notes: list[str]) -> SeriesRows:
    """Each series' rows together and forward in time."""
    if (np.diff(rows.which) < 0).any():
        rows = rows.select(np.argsort(rows.which, kind="stable"))
    same, steps = rows.same_series(), np.diff(rows.stamps)
    if not same.any():
        raise FileProblemError(rows.name, "has no series of two rows or more")
    back = np.flatnonzero(same & (steps < 0))
    if back.size == same.sum():
        notes.append("reversed the rows, which had the newest first")
        return rows.select(np.lexsort((rows.stamps, rows.which)))
    if back.size:
        row = int(back[0]) + 1
        problem = f"timestamp {rows.timestamp(row)} follows {rows.timestamp(row - 1)}"
        raise rows.problem(row, f"{problem} ({back.size:,} such rows)", "sort the rows by time")
    return rows


def _drop_repeated(
    rows: SeriesRows, counted: NDArray[np.int64], fill: Fill, counter: RowCounter, notes: list[str]
) -> tuple[SeriesRows, NDArray[np.int64]]:
    """Keep the first of rows with the same timestamp."""
    repeated = np.flatnonzero(rows.same_series() & (np.diff(counted) == 0)) + 1
    if not repeated.size:
        return rows, counted
    row = int(repeated[0])
    problem = f"repeats the timestamp {rows.timestamp(row)}"
    if fill == "refuse":
        raise rows.problem(row, f"{problem} ({repeated.size:,} such rows)", _FILL_HINT)
    if fill == "ignore":
        notes.append(f"line {rows.lines[row]} {problem} ({repeated.size:,} such rows); ignored")
        return rows, counted
    for row in repeated.tolist():
        counter.add_error(int(rows.lines[row]), f"repeats the timestamp {rows.timestamp(row)}")
    first = np.ones(len(counted), bool)
    first[repeated] = False
    return rows.select(first), counted[first]


def _insert_missing(
    rows: SeriesRows, step: Step, missing: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int32]]:
    """Insert the missing rows, with NaN values and the timestamps they would have."""
    positions = np.concatenate(([0], np.cumsum(missing + 1)))
    count = int(positions[-1]) + 1
    values = np.full((count, rows.values.shape[1]), np.nan, np.float64)
    values[positions] = rows.values
    before = np.searchsorted(positions, np.arange(count), side="right") - 1  # the known row at or before each
    stamps = rows.stamps[before]
    for row in np.setdiff1d(np.arange(count), positions):
        stamps[row] = advance(int(stamps[row]), step, int(row - positions[before[row]]))
    return values, stamps, rows.which[before]


def _fill_missing(
    values: NDArray[np.float64], which: NDArray[np.int32], fill: Fill, name: str
) -> NDArray[np.float64]:
    """Replace NaN by linear interpolation or the last known value."""
    ends = np.flatnonzero(np.append(np.diff(which) != 0, True)) + 1
    for begin, end in zip(np.concatenate(([0], ends[:-1])), ends, strict=True):
        part = values[begin:end]
        for channel in np.flatnonzero(np.isnan(part).any(0)):
            column = part[:, channel]
            known = np.flatnonzero(~np.isnan(column))
            if not known.size:
                raise FileProblemError(name, "has a series without any value", hint="remove it")
            at = np.arange(len(column))
            if fill == "linear":
                part[:, channel] = np.interp(at, known, column[known])
            else:  # before the first known value, that one
                part[:, channel] = column[known[np.maximum(np.searchsorted(known, at, side="right") - 1, 0)]]
    return values

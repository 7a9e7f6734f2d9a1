"""Read time series from a table, check that their steps are even, and hold them in one array.

Letters: S series, N rows of all series concatenated, C channels.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from glassformer.data.readers import (
    UTF8,
    CsvReader,
    DelimitedReader,
    ExcelReader,
    ParquetReader,
    TableOptions,
    file_format,
    find_column,
    open_text,
    with_point,
)
from glassformer.data.row_errors import MAX_BAD_SHARE, RowCounter, RowErrors, StrictRowCounter
from glassformer.data.timestamps import (
    InvalidTimestampError,
    Timestamp,
    TimeStep,
    advance,
    find_step,
    format_timestamp,
    parse_timestamp,
)
from glassformer.errors import EmptyInputError, FileProblemError, UnknownNameError
from glassformer.messages import quantity

Fill = Literal["error", "linear", "last", "ignore"]
TIME_NAMES = ("date", "ds", "timestamp", "datetime", "time", "date time", "date_time")
ID_NAMES = ("unique_id", "item_id", "series_id", "id", "series")
VALUE_NAMES = ("y", "target", "value")
INDEX_NAMES = ("", "unnamed: 0")  # the row index that pandas writes
STEP_NAMES = ("step", "t", "index", "year", *INDEX_NAMES)  # columns of step numbers, if they increase
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "?"})
_MAX_TEXT_SHARE = 0.5  # a column whose cells, without the empty ones, are text more often is not numeric
_FILL_HINT = "fix the data, or set data.fill_missing (`--fill` of forecast) to linear or last"


@dataclass(frozen=True, kw_only=True)
class SeriesSet:
    """One or many series with the same channels and the same step.

    values: (N, C), in double precision, which keeps small variations on a large offset
    stamps: (N,), timestamps as integers    ends: (S,), the row after the last one of each series
    ids: names of the series    names: names of the channels    time_column: None if the rows are numbered
    notes: warnings for the user    separators: delimiter and decimal separator of the CSV file that was read
    covariates: (N, K), known covariates    future: for each series, those after its last value, (rows, K)
    """

    values: NDArray[np.float64]
    stamps: NDArray[np.int64]
    ends: NDArray[np.int64]
    ids: tuple[str, ...]
    names: tuple[str, ...]
    step: TimeStep
    time_column: str | None = None
    notes: tuple[str, ...] = ()
    separators: tuple[str, str] = (",", ".")
    covariates: NDArray[np.float64] | None = None
    future: tuple[NDArray[np.float64], ...] = ()

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Return the first row of each series: (S,)."""
        return np.concatenate(([0], self.ends[:-1])).astype(np.int64)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of rows of each series: (S,)."""
        return self.ends - self.starts

    def series(self, number: int) -> NDArray[np.float64]:
        """Return the values of one series: (rows, C)."""
        return self.values[int(self.starts[number]) : int(self.ends[number])]

    def timestamp(self, row: int) -> str:
        """Format the timestamp of a row, counted over all series."""
        return format_timestamp(int(self.stamps[row]), self.step.kind != "numbers")


def read_series(
    path: str | Path,
    *,
    errors: RowErrors,
    time: str | None = None,
    target: str | Sequence[str] | None = None,
    covariates: Sequence[str] = (),
    fill: Fill = "error",
    display_name: str | None = None,
    **table_options: Unpack[TableOptions],
) -> SeriesSet:
    """Read the series in a CSV, Excel or Parquet file, wide (a column each) or long (unique_id, ds, y).

    errors: collects skipped rows.
    time: the column of timestamps; by default one with a usual name, or with dates. Without any, the rows of
    each series are numbered.    target: the column or columns of values; by default all.
    covariates: columns of known covariates. Rows at the end of a series that have only them are its future.
    fill: how to handle missing rows and values, and repeated timestamps: raise an error, interpolate
    linearly, repeat the last value, or (rows only) ignore them.
    display_name: name of the file in errors, e.g. if it is a copy of a table in memory; rows are then
    counted without the header.    table_options: how a CSV file is written.
    """
    file = _SeriesFile(Path(path), display_name, **table_options)
    is_chosen = target is not None
    time, names, id_column = file.choose_columns(time, [target] if isinstance(target, str) else target)
    for name in covariates:
        if name not in file.columns:
            raise UnknownNameError("column", name, file.columns, where=file.name)
    names, ids = tuple(name for name in names if name not in covariates), dict[str, int]()
    rows, text = _read_rows(file, time, (*names, *covariates), id_column, ids)
    left_out = [] if is_chosen else [n for n in _text_columns(rows, text) if n < len(names)]
    left_out = left_out if len(left_out) < len(names) else []  # the error names a column
    if left_out:
        rows = replace(rows, values=np.delete(rows.values, left_out, 1))
        kept = [n for n in range(len(names) + len(covariates)) if n not in left_out]
        text = {kept.index(n): cell for n, cell in text.items() if n in kept}
        ignored, names = [names[n] for n in left_out], tuple(names[n] for n in kept if n < len(names))
    if covariates:
        rows = _mark_future(rows, len(names))
    filled = [] if time is not None else ["there is no column of timestamps, so the rows are numbered"]
    filled += [f"ignored columns of text: {', '.join(ignored)}"] if left_out else []
    filled += [file.note] if file.note else []
    filled += _check_values(rows, (*names, *covariates), text, fill)
    rows, step, notes = _even_steps(rows, fill, errors.start_file(file.name, unit=file.unit))
    known, future = None, tuple[NDArray[np.float64], ...]()
    if covariates:
        known, is_future = rows.values[:, len(names) : -1], rows.values[:, -1] > 0
        parts = zip(np.split(known, rows.ends()[:-1]), np.split(is_future, rows.ends()[:-1]), strict=True)
        future = tuple(part[selected] for part, selected in parts)
        rows, known = rows.select(~is_future), known[~is_future]
        rows = replace(rows, values=rows.values[:, : len(names)])
    constant = [name for n, name in enumerate(names) if (rows.values[:, n] == rows.values[0, n]).all()]
    if constant:
        filled.append(f"constant columns: {', '.join(constant[:5])}{', ...' * (len(constant) > 5)}")
    return SeriesSet(
        values=rows.values,
        stamps=rows.stamps,
        ends=rows.ends(),
        ids=tuple(ids),
        names=names,
        step=step,
        time_column=time,
        notes=(*notes, *filled),
        separators=file.separators,
        covariates=known,
        future=future,
    )


def _text_columns(rows: _Rows, text: _Text) -> list[int]:
    """Return the columns that contain more text than numbers; empty cells are neither."""
    numbers = np.isfinite(rows.values).sum(0)  # (C,)
    return sorted(n for n, (cells, _, _) in text.items() if cells > _MAX_TEXT_SHARE * (cells + numbers[n]))


def _mark_future(rows: _Rows, targets: int) -> _Rows:
    """Append a column that is 1 in the rows after the last value of each series, whose targets become 0."""
    future = np.asarray(np.isnan(rows.values[:, :targets]).all(1), np.bool_)  # (N,)
    for number in range(int(rows.series.max()) + 1):
        members = np.flatnonzero(rows.series == number)
        values = np.flatnonzero(~future[members])
        if not values.size:
            raise FileProblemError(rows.name, "has a series without any value", hint="remove it")
        future[members[: values[-1]]] = False
    marked = np.concatenate((rows.values, future[:, None].astype(np.float64)), 1)
    marked[future, :targets] = 0.0
    return replace(rows, values=marked)


class _SeriesFile:
    """One table: CSV (also .gz), Excel or Parquet; a row that cannot be read is an error.

    name: the file's name in errors    first: the cells of the first row    note: the separators that were
    detected    unit: what errors count from 1, "line" or "row"; the header is a line but not a row
    """

    table: DelimitedReader | ParquetReader
    first: Sequence[object]
    note = ""
    unit = "row"

    def __init__(self, path: Path, display_name: str | None, **text: Unpack[TableOptions]) -> None:
        """Open a table and check its header."""
        self.path, self.name = path, display_name or str(path)
        if file_format(path) == "parquet":
            self.table = table = ParquetReader(path)
            self.columns, self.first = table.names, table.head(1).rows[0]
            return
        if file_format(path) == "xlsx":
            reader: DelimitedReader = ExcelReader(path, **text)
        else:
            text["encoding"] = _header_encoding(path, text)
            reader = CsvReader(path, **text)
        self.table, rows = reader, reader.cells(StrictRowCounter(self.name))
        self.columns = tuple(cell.strip() for cell in next(rows)[1])
        if all(map(_is_number, self.columns[1:])) and (
            _is_number(self.columns[0]) or _is_date(self.columns[0])
        ):
            raise FileProblemError(
                self.name, "has no header", 1, hint="add a first line that names the columns"
            )
        _, first = next(rows, (0, None))
        if first is None:
            raise EmptyInputError(f"file {self.name}", hint="it has a header and no rows")
        if len(set(self.columns)) < len(self.columns):
            repeated = next(column for column in self.columns if self.columns.count(column) > 1)
            raise FileProblemError(self.name, f"has more than one column '{repeated}'", 1)
        self.first = first
        self.unit = "line" if display_name is None else "row"
        self.note = "" if any(reader.separators) else reader.note

    @property
    def separators(self) -> tuple[str, str]:
        """The delimiter and the decimal separator of a CSV file; the usual ones of other files."""
        if isinstance(self.table, ParquetReader) or file_format(self.path) != "csv":
            return ",", "."
        return self.table.delimiter, self.table.decimal

    def choose_columns(
        self, time: str | None, target: Sequence[str] | None
    ) -> tuple[str | None, tuple[str, ...], str | None]:
        """Return the names of the timestamp column, the value columns, and the series-id column.

        There may be no timestamp column and no series-id column.
        """
        for name in [*filter(None, [time]), *(target or [])]:
            if name not in self.columns:
                raise UnknownNameError("column", name, self.columns, where=str(self.name))
        time = time or find_column(self.columns, TIME_NAMES) or self._find_time(target or ())
        others = [name for name in self.columns if name != time and name.lower() not in INDEX_NAMES]
        value = find_column(others, VALUE_NAMES) if target is None else target[0]
        id_column = find_column(others, ID_NAMES)
        if id_column is not None and value is not None and id_column != value:
            return time, tuple(target or [value]), id_column
        if not others:
            raise FileProblemError(self.name, f"has no column of values besides '{self.columns[0]}'")
        return time, tuple(others if target is None else target), None

    def _find_time(self, target: Sequence[str]) -> str | None:
        """Find a column of dates, or one of increasing step numbers that is named so."""
        names = [name for name in self.columns if name not in target]
        for name, cell in zip(self.columns, self.first, strict=False):
            if name in names and _is_date(cell):
                return name
        numbers = find_column(names, STEP_NAMES)
        if numbers is None:
            return None
        cells = [str(cell).strip() for _, (cell,) in self.rows([numbers])]
        if not all(re.fullmatch(r"[+-]?\d{1,18}", cell) for cell in cells):
            return None
        return numbers if all(int(a) < int(b) for a, b in pairwise(cells)) else None

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[object]]]:
        """Yield the line number of each row and its cells in these columns."""
        counter = StrictRowCounter(self.name)
        if isinstance(self.table, ParquetReader):
            yield from self.table.rows(columns, counter)
            return
        indices = [self.columns.index(name) for name in columns]
        rows, has_commas = self.table.cells(counter), self.table.decimal == ","
        next(rows)
        for line, row in rows:
            if len(row) != len(self.columns):
                problem = f"has {quantity(len(row), 'column')}, but the header has {len(self.columns)}"
                counter.add_error(line, problem)
            cells = [row[index] for index in indices]
            yield line - (self.unit == "row"), [*map(with_point, cells)] if has_commas else cells


def _header_encoding(path: Path, text: TableOptions) -> str:
    """Return the encoding; Latin-1 if the header is not UTF-8, because of units such as µ and °."""
    encoding = text.get("encoding", UTF8)
    with open_text(path, encoding=encoding) as stream:
        try:
            stream.readline().decode()
        except UnicodeDecodeError:
            return "latin-1"
    return encoding


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _is_date(cell: object) -> bool:
    try:
        return parse_timestamp(cell).dated
    except InvalidTimestampError:
        return False


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of all series: values (N, C); timestamps, series numbers and line numbers, (N,) each."""

    name: str
    dated: bool
    values: NDArray[np.float64]
    stamps: NDArray[np.int64]
    series: NDArray[np.int32]
    lines: NDArray[np.int32]

    def select(self, rows: NDArray[Any]) -> _Rows:
        arrays = {name: getattr(self, name)[rows] for name in ("values", "stamps", "series", "lines")}
        return replace(self, **arrays)

    def same_series(self) -> NDArray[np.bool_]:
        """Return whether each row and the next are of the same series: (N - 1,)."""
        return np.diff(self.series) == 0

    def ends(self) -> NDArray[np.int64]:
        """Return the row after the last one of each series: (S,)."""
        return np.flatnonzero(np.append(~self.same_series(), True)).astype(np.int64) + 1

    def timestamp(self, row: int) -> str:
        return format_timestamp(int(self.stamps[row]), self.dated)

    def problem(self, row: int, problem: str, hint: str = "") -> FileProblemError:
        return FileProblemError(self.name, problem, int(self.lines[row]), hint)


_Text = dict[int, tuple[int, int, str]]  # by column: number of text cells, and line and content of the first


def _read_rows(
    file: _SeriesFile, time: str | None, names: Sequence[str], id_column: str | None, ids: dict[str, int]
) -> tuple[_Rows, _Text]:
    """Read all rows, and how many cells of each column are text. `ids` is filled with the series numbers."""
    values, stamps, series, lines = array("d"), array("q"), array("i"), array("i")
    text: _Text = {}
    kinds = set[bool]()  # whether timestamps are dates

    def number(line: int, column: int, cell: object) -> float:
        try:
            return float(cell)  # type: ignore[arg-type]
        except (ValueError, TypeError):
            content = str("" if cell is None else cell).strip()
            if content.lower() not in MISSING:
                count, first, example = text.get(column, (0, line, content))
                text[column] = (count + 1, first, example)
            return math.nan

    one_series = file.path.name.split(".")[0]
    counts = Counter[int]()  # rows of each series, if there are no timestamps
    special = [name for name in (id_column, time) if name is not None]
    for line, cells in file.rows([*special, *names]):
        number_of_series = ids.setdefault(
            one_series if id_column is None else str(cells[0]).strip(), len(ids)
        )
        if time is None:
            counts[number_of_series] += 1
            stamp = Timestamp(counts[number_of_series], dated=False)
        else:
            stamp = read_timestamp(cells[len(special) - 1], file.name, line)
        kinds.add(stamp.dated)
        if len(kinds) > 1:
            before = "numbers" if stamp.dated else "dates"
            cell = cells[len(special) - 1]
            raise FileProblemError(file.name, f"timestamp {cell!r:.40} follows {before}", line)
        stamps.append(stamp.at)
        lines.append(line)
        series.append(number_of_series)
        numbers = cells[len(special) :]
        try:
            values.extend(list(map(float, numbers)))  # type: ignore[arg-type]
        except (ValueError, TypeError):
            values.extend([number(line, n, cell) for n, cell in enumerate(numbers)])
    if len(stamps) < 2:
        raise FileProblemError(file.name, "has one row; a series needs at least two")
    rows = _Rows(
        name=file.name,
        dated=kinds == {True},
        values=np.frombuffer(values, np.float64).reshape(len(stamps), -1),
        stamps=np.frombuffer(stamps, np.int64),
        series=np.frombuffer(series, np.int32),
        lines=np.frombuffer(lines, np.int32),
    )
    return rows, text


def read_timestamp(cell: object, path: str | Path, line: int) -> Timestamp:
    """Parse the timestamp in a cell of a file."""
    try:
        return parse_timestamp(cell)
    except InvalidTimestampError as error:
        raise FileProblemError(path, str(error), line) from None


def _check_values(rows: _Rows, names: Sequence[str], text: _Text, fill: Fill) -> list[str]:
    """Raise an error for non-finite values, or return a note if they will be filled."""
    bad = ~np.isfinite(rows.values)  # (N, C)
    if not bad.any():
        return []
    for column in _text_columns(rows, text):
        _, line, example = text[column]
        problem = f"column '{names[column]}' contains text ({example!r:.40})"
        raise FileProblemError(rows.name, problem, line, hint="choose the columns of numbers")
    row, column = (int(n) for n in np.argwhere(bad)[0])
    _, line, example = text.get(column, (0, 0, ""))
    what = f"{example!r:.40}" if line == rows.lines[row] else "no finite value"
    problem = f"{what} in column '{names[column]}' ({int(bad.sum()):,} such values)"
    if fill in ("error", "ignore"):
        raise rows.problem(row, problem, _FILL_HINT)
    share = bad.mean(0)
    if share.max() > MAX_BAD_SHARE:
        raise FileProblemError(rows.name, f"{share.max():.0%} of column '{names[share.argmax()]}' is missing")
    rows.values[bad] = np.nan  # infinite values are filled too
    return [f"line {rows.lines[row]}: {problem}; filled"]


def _even_steps(rows: _Rows, fill: Fill, counter: RowCounter) -> tuple[_Rows, TimeStep, list[str]]:
    """Check the steps between rows and fill gaps as `fill` says; skipped rows go to the counter."""
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
        after = f"a multiple of {step} after {rows.timestamp(row - 1)}"
        problem = f"timestamp {rows.timestamp(row)} is not {after}"
        if fill != "ignore":
            raise rows.problem(row, problem, "resample to even steps")
        notes.append(f"line {rows.lines[row]}: {problem}; treated as even")
    total = int(missing.sum())
    if total:
        row = int(np.flatnonzero(missing)[0]) + 1
        between = f"first between {rows.timestamp(row - 1)} and {rows.timestamp(row)} (step {step})"
        problem = f"{quantity(total, 'row')} missing, {between}"
        if fill == "error":
            raise rows.problem(row, problem, _FILL_HINT)
        if fill != "ignore" and total > MAX_BAD_SHARE * (total + len(counted)):
            raise rows.problem(row, f"{problem}, too many to fill")
        notes.append(f"line {rows.lines[row]}: {problem}; {'ignored' if fill == 'ignore' else 'filled'}")
    if fill in ("linear", "last"):
        if total:
            rows = _insert_missing(rows, step, missing)
        _fill_missing(rows, fill)
    return rows, step, notes


def _sort(rows: _Rows, notes: list[str]) -> _Rows:
    """Group the rows by series; reverse them if all have the newest first, and reject any other order."""
    if (np.diff(rows.series) < 0).any():
        rows = rows.select(np.argsort(rows.series, kind="stable"))
    same, steps = rows.same_series(), np.diff(rows.stamps)
    if not same.any():
        raise FileProblemError(rows.name, "has no series with at least two rows")
    back = np.flatnonzero(same & (steps < 0))
    if back.size == same.sum():
        notes.append("reversed the rows, which had the newest first")
        return rows.select(np.lexsort((rows.stamps, rows.series)))
    if back.size:
        row = int(back[0]) + 1
        problem = f"timestamp {rows.timestamp(row)} follows {rows.timestamp(row - 1)}"
        raise rows.problem(row, f"{problem} ({back.size:,} such rows)", "sort the rows by time")
    return rows


def _drop_repeated(
    rows: _Rows, counted: NDArray[np.int64], fill: Fill, counter: RowCounter, notes: list[str]
) -> tuple[_Rows, NDArray[np.int64]]:
    """Keep the first of several rows with the same timestamp. counted: timestamps in steps, (N,)."""
    repeated = np.flatnonzero(rows.same_series() & (np.diff(counted) == 0)) + 1
    if not repeated.size:
        return rows, counted
    row = int(repeated[0])
    problem = f"repeats the timestamp {rows.timestamp(row)}"
    if fill == "error":
        raise rows.problem(row, f"{problem} ({repeated.size:,} such rows)", _FILL_HINT)
    if fill == "ignore":
        notes.append(f"line {rows.lines[row]} {problem} ({repeated.size:,} such rows); ignored")
        return rows, counted
    for row in repeated.tolist():
        counter.add_error(int(rows.lines[row]), f"repeats the timestamp {rows.timestamp(row)}")
    first = np.ones(len(counted), bool)
    first[repeated] = False
    return rows.select(first), counted[first]


def _insert_missing(rows: _Rows, step: TimeStep, missing: NDArray[np.int64]) -> _Rows:
    """Insert missing rows with NaN values. missing: how many are missing before each row but the first."""
    positions = np.concatenate(([0], np.cumsum(missing + 1)))
    every = np.arange(int(positions[-1]) + 1)
    before = np.searchsorted(positions, every, side="right") - 1  # the known row at or before each
    filled = rows.select(before)
    for row in np.setdiff1d(every, positions):
        filled.values[row] = np.nan
        filled.stamps[row] = advance(int(filled.stamps[row]), step, int(row - positions[before[row]]))
    return filled


def _fill_missing(rows: _Rows, fill: Fill) -> None:
    """Replace NaN by linear interpolation or the last known value."""
    for part in np.split(rows.values, rows.ends()[:-1]):  # views
        for channel in np.flatnonzero(np.isnan(part).any(0)):
            column = part[:, channel]
            known = np.flatnonzero(~np.isnan(column))
            if not known.size:
                raise FileProblemError(rows.name, "has a series without any value", hint="remove it")
            positions = np.arange(len(column))
            if fill == "linear":
                part[:, channel] = np.interp(positions, known, column[known])
            else:  # values before the first known value are set to it
                part[:, channel] = column[
                    known[np.maximum(np.searchsorted(known, positions, side="right") - 1, 0)]
                ]

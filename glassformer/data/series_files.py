"""Tables of numbers over time, as they lie in files: which columns they have, and their cells row by row."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glassformer.data.lines import Flaw, chunks, lines
from glassformer.data.names import known_one
from glassformer.data.parquet import Parquet
from glassformer.data.problems import Tally
from glassformer.data.tables import kind_of
from glassformer.data.timestamps import BadStampError, read_stamp
from glassformer.errors import GlassformerError

TIMES = ("date", "ds", "timestamp", "datetime", "time", "date time", "date_time")
IDS = ("unique_id", "item_id", "series_id", "id", "series")
VALUES = ("y", "target", "value")
_INDEX = ("", "unnamed: 0")  # a column that only numbers the rows, as some programs write one
Row = tuple[int, Sequence[object]]


@dataclass(frozen=True, kw_only=True)
class Given:
    """By what the person in front says which columns to use and how to fill gaps: keys, or options.

    source: what they have: a file, whose lines are counted, or a table in memory, whose rows are.
    """

    time: str
    columns: str
    fill: str
    source: Literal["file", "table"] = "file"


KEYS = Given(time="data.time", columns="data.target", fill="data.fill")  # of a recipe


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The columns that are used. Without `series` the file is one series and each value column a channel."""

    time: str
    values: tuple[str, ...]
    series: str | None = None


@dataclass(frozen=True)
class SeriesFile:
    """One table: CSV (commas, semicolons or tabs, also .gz) or Parquet."""

    path: Path
    names: tuple[str, ...]
    first: tuple[object, ...]
    between: str | None  # what stands between cells; None: Parquet
    unit: Literal["line", "row"]  # what is counted from 1; a header is a line and no row

    def layout(self, time: str | None, target: Sequence[str] | None, given: Given = KEYS) -> Layout:
        """Which columns to use: those asked for, else those that go by a usual name."""
        for name in ([] if time is None else [time]) + list(target or []):
            if name not in self.names:
                raise GlassformerError(
                    f"'{self.path}' has no column '{name}'; it has {', '.join(self.names[:12])}"
                )
        time = time or known_one(self.names, TIMES) or self._looks_like_time(given)
        others = [name for name in self.names if name != time and name.lower() not in _INDEX]
        value = known_one(others, VALUES) if target is None else target[0]
        series = known_one(others, IDS)
        if series is not None and value is not None and series != value:
            return Layout(time=time, values=tuple(target or [value]), series=series)
        values = tuple(others if target is None else target)
        if not values:
            raise GlassformerError(f"'{self.path}' has no column of values beside the time '{time}'")
        return Layout(time=time, values=values)

    def _looks_like_time(self, given: Given) -> str:
        try:
            read_stamp(self.first[0])
        except (BadStampError, IndexError):
            raise GlassformerError(
                f"'{self.path}' has no column of time stamps that is known ({', '.join(self.names[:12])}); "
                f"say which it is with {given.time}"
            ) from None
        return self.names[0]

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Every row's line and the cells of these columns; a line that is no row of the table is an error."""
        if self.between is None:
            yield from Parquet(self.path).rows(list(columns), Tally(str(self.path)))
            return
        places = [self.names.index(name) for name in columns]
        cells = _cells(self.path, self.between)
        next(cells)
        for line, row in cells:
            if len(row) != len(self.names):
                raise GlassformerError(
                    f"{self.path} line {line:,} has {len(row)} columns, but the header {len(self.names)}"
                )
            yield line - (self.unit == "row"), [row[place] for place in places]


def open_series_file(path: str | Path, given: Given = KEYS) -> SeriesFile:
    """The table in a file, its header checked."""
    place = Path(path)
    if kind_of(place) == "parquet":
        table = Parquet(place)
        head = table.head(1)
        if not head.rows:
            raise GlassformerError(f"'{path}' holds no rows")
        return SeriesFile(place, table.names, head.rows[0], None, "row")
    header = _header(place)
    between = max(",;\t", key=header.count)
    rows = _cells(place, between)
    names = tuple(name.strip() for name in next(rows)[1])
    _, first = next(rows, (0, None))
    if _is_data(names):
        raise GlassformerError(
            f"'{path}' begins with numbers; give it a first line that names its columns, as in "
            f"date{between}name{between}name"
        )
    if first is None:
        raise GlassformerError(f"'{path}' has a header and no rows")
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise GlassformerError(f"'{path}' names more than one column '{min(repeated)}'; rename one")
    return SeriesFile(place, names, tuple(first), between, "line" if given.source == "file" else "row")


def _header(path: Path) -> str:
    """The first line; one that is not UTF-8 is read as Latin-1, for units such as µ and ° are often that."""
    for line in lines(path):
        if not isinstance(line, Flaw):
            return line
        if "UTF-8" not in line.what:
            raise GlassformerError(f"{path} line 1 {line.what}")
        break
    whole = b""
    for chunk in chunks(path):
        whole += chunk
        if b"\n" in chunk:
            break
    return whole.partition(b"\n")[0].decode("latin-1").removesuffix("\r")


def _cells(path: Path, between: str) -> Iterator[tuple[int, list[str]]]:
    """The header and every row that is not blank, with its line."""

    def fed() -> Iterator[str]:
        yield _header(path)
        every = lines(path)
        next(every)
        for number, line in enumerate(every, 2):
            if isinstance(line, Flaw):
                raise GlassformerError(f"{path} line {number:,} {line.what}")
            yield line

    reader = csv.reader(fed(), delimiter=between)
    try:
        for row in reader:
            if row and any(row):
                yield reader.line_num, row
    except csv.Error as error:
        raise GlassformerError(
            f"{path} line {reader.line_num:,} cannot be cut into columns ({error})"
        ) from None


def _is_data(names: Sequence[str]) -> bool:
    """Whether what should name the columns is itself a row of numbers."""
    return all(_number(name) for name in names[1:]) and (_number(names[0]) or _stamp(names[0]))


def _number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _stamp(text: str) -> bool:
    try:
        read_stamp(text)
    except BadStampError:
        return False
    return True

"""Files of rows and columns as streams: TSV, CSV, JSON Lines and Parquet, all but the last also as .gz.

Every kind gives the same two things: its head, from which columns can be chosen, and its rows, each with the
line it begins at and the values of the columns asked for.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Literal

from glassformer.data.lines import Flaw, checked, lines
from glassformer.data.names import looks_like_names
from glassformer.data.problems import Tally
from glassformer.errors import GlassformerError

Column = str | int  # a name, or a number counted from 1
Kind = Literal["plain", "tsv", "csv", "jsonl", "parquet"]
_SUFFIXES: dict[str, Kind] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
HEAD = 1000  # rows looked at before columns are chosen


def kind_of(path: str | PathLike[str]) -> Kind:
    """What a file is by the end of its name, `.gz` aside; anything unknown is plain text.

    >>> kind_of("train.tsv.gz"), kind_of("train.en")
    ('tsv', 'plain')
    """
    path = Path(path)
    packed = path.suffix.lower() == ".gz"
    kind = _SUFFIXES.get(Path(path.stem if packed else path.name).suffix.lower(), "plain")
    if kind == "parquet" and packed:
        raise GlassformerError(f"'{path}' is Parquet inside gzip; unpack it first")
    return kind


@dataclass(frozen=True, kw_only=True)
class Head:
    """The first rows. `names` is None where a first line may or may not name the columns."""

    names: tuple[str, ...] | None
    rows: list[tuple[object, ...]]


def numbered(names: Sequence[str]) -> list[Column]:
    """Columns as a person writes them.

    >>> numbered(["en", "2"])
    ['en', 2]
    """
    return [int(name) if name.isascii() and name.isdecimal() else name for name in names]


class Table(ABC):
    """One file of rows."""

    unit = "line"

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = checked(path)

    @abstractmethod
    def head(self, count: int = HEAD) -> Head:
        """The first `count` good rows."""

    @abstractmethod
    def rows(self, columns: Sequence[Column], tally: Tally) -> Iterator[tuple[int, Sequence[object]]]:
        """Every row: its line, and its values in the order of `columns`."""

    def missing(self, column: Column, names: Sequence[str]) -> GlassformerError:
        """The error for a column that is not there."""
        told = ", ".join(f"'{name[:40]}'" for name in names[:12]) + (", ..." if len(names) > 12 else "")
        return GlassformerError(f"'{self.path}' has no column '{column}'; it has {told}")


def open_table(path: str | PathLike[str], kind: Kind | None = None) -> Table:
    """The table in a file, of the kind its name says unless another is given."""
    match kind or kind_of(path):
        case "csv":
            return Commas(path)
        case "jsonl":
            return JsonLines(path)
        case "parquet":
            from glassformer.data.parquet import Parquet

            return Parquet(path)
        case _:
            return Tabs(path)


class Delimited(Table):
    """Rows of cells; the first row names the columns where the columns asked for are names."""

    @abstractmethod
    def cells(self, tally: Tally) -> Iterator[tuple[int, list[str]]]:
        """Every row that is not blank."""

    def head(self, count: int = HEAD) -> Head:
        tally = Tally(str(self.path))
        rows: list[tuple[object, ...]] = [tuple(row) for _, row in islice(self.cells(tally), count)]
        if not rows:
            tally.end()
        return Head(names=None, rows=rows)

    def rows(self, columns: Sequence[Column], tally: Tally) -> Iterator[tuple[int, Sequence[object]]]:
        rows = self.cells(tally)
        first = next(rows, None)
        if first is None:
            return
        names = [cell.strip() for cell in first[1]]
        named = any(isinstance(column, str) for column in columns)
        places = [self._place(column, names) for column in columns]
        needed = max(places) + 1
        if not named and not looks_like_names(names):
            rows = _chained(first, rows)
        for line, row in rows:
            if len(row) < needed:
                tally.add(line, f"has {len(row)} column{'s' * (len(row) != 1)}, needs {needed}")
            else:
                yield line, [row[place] for place in places]

    def _place(self, column: Column, names: list[str]) -> int:
        if isinstance(column, int):
            if column < 1:
                raise GlassformerError(f"column {column} cannot be; columns are counted from 1")
            return column - 1
        if names.count(column) > 1:
            raise GlassformerError(
                f"'{self.path}' names more than one column '{column}'; give its number instead"
            )
        if column not in names:
            raise self.missing(column, names)
        return names.index(column)


def _chained(
    first: tuple[int, list[str]], rest: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    yield first
    yield from rest


class Tabs(Delimited):
    """Cells between tabs; a quote is a letter like any other."""

    def cells(self, tally: Tally) -> Iterator[tuple[int, list[str]]]:
        for number, line in enumerate(lines(self.path), 1):
            if isinstance(line, Flaw):
                tally.add(number, line.what)
            elif line and not line.isspace():
                yield number, line.split("\t")


class Commas(Delimited):
    """Cells between commas; a quoted cell may hold commas, doubled quotes and line ends."""

    def cells(self, tally: Tally) -> Iterator[tuple[int, list[str]]]:
        number, flaw = 0, ""

        def fed() -> Iterator[str]:
            nonlocal number, flaw
            for line in lines(self.path):
                number += 1
                if isinstance(line, Flaw):
                    flaw = flaw or line.what
                    yield "\n"
                else:
                    yield line + "\n"

        reader = csv.reader(fed(), strict=True)
        while True:
            begin, flaw = number + 1, ""
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                tally.add(begin, _quoting(error, number - begin))
                continue
            if flaw:
                tally.add(begin, flaw)
            elif any(cell and not cell.isspace() for cell in row):
                yield begin, row


def _quoting(error: csv.Error, further: int) -> str:
    told = str(error)
    if "end of data" in told or "limit" in told:
        return f"opens a quote that is not closed in the {further:,} lines after it"
    return "has text after a closing quote"


class JsonLines(Table):
    """One JSON object a line; a key inside an object inside is written with a dot, `translation.en`."""

    def objects(self, tally: Tally) -> Iterator[tuple[int, dict[str, object]]]:
        """Every line that is an object."""
        for number, line in enumerate(lines(self.path), 1):
            if isinstance(line, Flaw):
                tally.add(number, line.what)
            elif line and not line.isspace():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    if number == 1 and line.strip() in ("[", "{"):
                        raise GlassformerError(
                            f"'{self.path}' is JSON over several lines; write one object a line"
                        ) from None
                    tally.add(number, f"is not JSON ({getattr(error, 'msg', 'nested too deep')})")
                    continue
                if isinstance(value, dict):
                    yield number, value
                else:
                    tally.add(number, f"is a JSON {_JSON.get(type(value), 'number')}, not an object")

    def head(self, count: int = HEAD) -> Head:
        tally = Tally(str(self.path))
        objects = [dict(_leaves(value)) for _, value in islice(self.objects(tally), count)]
        if not objects:
            tally.end()
        names = tuple(dict.fromkeys(key for each in objects for key in each))
        return Head(names=names, rows=[tuple(each.get(name) for name in names) for each in objects])

    def rows(self, columns: Sequence[Column], tally: Tally) -> Iterator[tuple[int, Sequence[object]]]:
        for column in columns:
            if isinstance(column, int):
                raise GlassformerError(
                    f"'{self.path}' is JSON; name the key to read, not its number {column}"
                )
        keys = [str(column) for column in columns]
        for number, value in self.objects(tally):
            try:
                yield number, [_at(value, key) for key in keys]
            except KeyError as error:
                tally.add(number, f"has no key '{error.args[0]}'")


_JSON: dict[type, str] = {list: "list", str: "string", bool: "truth value", type(None): "null"}


def _leaves(value: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    for key, inner in value.items():
        if isinstance(inner, dict) and not before:  # one level down is what files in use have
            yield from _leaves(inner, f"{key}.")
        else:
            yield before + key, inner


def _at(value: Mapping[str, object], key: str) -> object:
    if key in value:
        return value[key]
    outer, _, inner = key.partition(".")
    below = value.get(outer)
    if inner and isinstance(below, dict) and inner in below:
        return below[inner]
    raise KeyError(key)

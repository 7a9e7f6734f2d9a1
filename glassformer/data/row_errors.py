"""Count rows or images that cannot be used, report them with file and line, and skip them.

A few bad rows in a large file are skipped with a warning. A file without a good row, or with more than 10 %
bad rows, is probably the wrong file or read with the wrong options, so it raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import ClassVar

from glassformer.errors import EmptyInputError, FileProblemError, GlassformerError

SHOWN = 3  # maximum number of errors kept and shown per file
MAX_BAD_SHARE = 0.1
GIVE_UP_AFTER = 1000  # stop reading after this many bad rows without a good one


@dataclass(frozen=True, slots=True)
class Invalid:
    """A line or value that cannot be used. reason: a predicate; messages put the position before it."""

    reason: str


@dataclass(frozen=True)
class RowError:
    """One row that was skipped; `line` is None if the file has no lines."""

    file: str
    line: int | None
    reason: str
    unit: str = "line"

    def __str__(self) -> str:
        position = "" if self.line is None else f" {self.unit} {self.line:,}"
        return f"{self.file}{position}: {self.reason}"


@dataclass(eq=False)
class TooManyBadRowsError(GlassformerError):
    """Too many rows are bad: most likely the file or the columns are wrong.

    first: the first bad row. items: what the rows are, e.g. "images".
    """

    path: str
    bad: int
    rows: int
    first: str
    items: str = "rows"
    hint: str = "fix or remove them"
    template: ClassVar[str] = "{bad:,} of {rows:,} {items} of {path} cannot be used: {first}"


@dataclass
class RowCounter:
    """Count the good and bad rows of one pass over one file. items: what the rows are, in messages."""

    file: str
    unit: str = "line"
    items: str = "rows"
    good: int = 0
    bad: int = 0
    first: list[RowError] = field(default_factory=list)

    def add_error(self, line: int | None, reason: str, *, file: str | PathLike[str] | None = None) -> None:
        """Count a bad row. file: if it is not the counter's file, e.g. the second of two aligned files."""
        self.bad += 1
        if len(self.first) < SHOWN:
            self.first.append(RowError(self.file if file is None else fspath(file), line, reason, self.unit))
        if not self.good and self.bad >= GIVE_UP_AFTER:
            raise self._too_many()

    @contextmanager
    def row(self, line: int | None = None, *, file: str | PathLike[str] | None = None) -> Iterator[None]:
        """Context that reads a row; a ValueError, TypeError or KeyError in it says why the row is bad."""
        try:
            yield
        except GlassformerError:  # concerns the whole file
            raise
        except TypeError:
            self.add_error(line, "has a value of the wrong type", file=file)
        except KeyError as error:
            self.add_error(line, f"has no {error}", file=file)
        except ValueError as error:
            self.add_error(line, str(error), file=file)
        else:
            self.good += 1

    def finish(self) -> None:
        """Raise an error if the file has no rows or too many bad ones."""
        if not self.good and not self.bad:
            raise EmptyInputError(f"file {self.file}", hint=f"add {self.items}")
        if self.bad > MAX_BAD_SHARE * (self.good + self.bad):
            raise self._too_many()

    def _too_many(self) -> TooManyBadRowsError:
        rows = self.good + self.bad
        return TooManyBadRowsError(self.file, self.bad, rows, str(self.first[0]), self.items)


class StrictRowCounter(RowCounter):
    """Raises an error for the first bad row."""

    def add_error(self, line: int | None, reason: str, *, file: str | PathLike[str] | None = None) -> None:
        raise FileProblemError(self.file, reason, line)


class RowErrors:
    """Collect the skipped rows of all files that are read.

    >>> errors = RowErrors()
    >>> counter = errors.start_file("train.tsv")
    >>> counter.good += 28_999
    >>> counter.add_error(17, "has 1 column, needs 2")
    >>> errors.summary()
    'skipped 1 of 29,000 rows: train.tsv line 17: has 1 column, needs 2'
    """

    def __init__(self) -> None:
        self._counters: dict[str, RowCounter] = {}

    def start_file(self, file: str | PathLike[str], *, unit: str = "line", items: str = "rows") -> RowCounter:
        """Return the counter for a new pass over a file, replacing that of an earlier pass.

        unit: what the numbers of bad rows count, e.g. "line" or "row". items: what the rows are, in messages.
        """
        counter = self._counters[fspath(file)] = RowCounter(fspath(file), unit, items)
        return counter

    def add(self, other: RowErrors) -> None:
        """Add the files of another collection."""
        self._counters |= other._counters

    @property
    def count(self) -> int:
        """Number of skipped rows."""
        return sum(counter.bad for counter in self._counters.values())

    @property
    def rows(self) -> int:
        """Number of rows read, good and bad."""
        return self.count + sum(counter.good for counter in self._counters.values())

    @property
    def first(self) -> list[RowError]:
        """The first few errors, in the order of the files."""
        return [error for counter in self._counters.values() for error in counter.first][:SHOWN]

    def summary(self) -> str:
        """Describe how many rows were skipped and the first few of them; empty if none was."""
        if not self.count:
            return ""
        more = "; ..." if self.count > len(self.first) else ""
        items = next(iter(self._counters.values())).items
        return f"skipped {self.count:,} of {self.rows:,} {items}: {'; '.join(map(str, self.first))}{more}"

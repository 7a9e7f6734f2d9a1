"""Rows that cannot be used: told with file and line, counted, and left out.

A few bad rows in a large file are nothing to stop for. A file without one good row, or with more than a tenth
bad, is probably the wrong file or read in the wrong way, so that is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike, fspath

from glassformer.errors import GlassformerError

KEPT = 3  # how many are kept word for word
SHARE = 0.1  # the most of a file that may be bad
HOPELESS = 1000  # so many bad rows and not one good: the rest is not read


@dataclass(frozen=True)
class Problem:
    """One row that was left out; `line` is None where a file has no lines."""

    file: str
    line: int | None
    what: str
    unit: str = "line"

    def __str__(self) -> str:
        place = "" if self.line is None else f" {self.unit} {self.line:,}"
        return f"{self.file}{place}: {self.what}"


@dataclass
class Tally:
    """The good and bad rows of one reading of one file."""

    file: str
    unit: str = "line"
    good: int = 0
    bad: int = 0
    first: list[Problem] = field(default_factory=list)

    def add(self, line: int | None, what: str, *, file: str | PathLike[str] | None = None) -> None:
        """Count a bad row; `file` names another one than the tally's (the second of two aligned files)."""
        self.bad += 1
        if len(self.first) < KEPT:
            self.first.append(Problem(self.file if file is None else fspath(file), line, what, self.unit))
        if not self.good and self.bad >= HOPELESS:
            raise GlassformerError(f"none of the first {self.bad:,} rows can be used: {self.first[0]}")

    def end(self) -> None:
        """Judge the file once it is read."""
        if not self.good and not self.bad:
            raise GlassformerError(f"'{self.file}' holds no rows; give a file with at least one")
        if not self.good:
            raise GlassformerError(f"'{self.file}' holds no row that can be used: {self.first[0]}")
        if self.bad > SHARE * (self.good + self.bad):
            raise GlassformerError(
                f"{self.bad:,} of the {self.good + self.bad:,} rows of '{self.file}' cannot be used, "
                f"more than {SHARE:.0%}: {self.first[0]}; mend or remove them"
            )


class Problems:
    """What was left out of all files that were read.

    >>> problems = Problems()
    >>> tally = problems.begin("train.tsv")
    >>> tally.good += 28_999
    >>> problems.add("train.tsv", 17, "has 1 column, needs 2")
    >>> problems.sentence()
    '1 of 29,000 rows was left out: train.tsv line 17: has 1 column, needs 2'
    """

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}

    def begin(self, file: str | PathLike[str], *, unit: str = "line") -> Tally:
        """Start to read a file. What an earlier reading of it found is forgotten, so nothing counts twice."""
        tally = self._tallies[fspath(file)] = Tally(fspath(file), unit)
        return tally

    def add(self, file: str | PathLike[str], line: int | None, what: str) -> None:
        """Count one bad row of a file, begun or not."""
        (self._tallies.get(fspath(file)) or self.begin(file)).add(line, what)

    @property
    def count(self) -> int:
        """How many rows were left out."""
        return sum(tally.bad for tally in self._tallies.values())

    @property
    def rows(self) -> int:
        """How many rows were seen, good and bad."""
        return self.count + sum(tally.good for tally in self._tallies.values())

    @property
    def first(self) -> list[Problem]:
        """The first few, in the order of the files."""
        return [problem for tally in self._tallies.values() for problem in tally.first][:KEPT]

    def sentence(self) -> str:
        """For people: how many rows were left out, and the first few of them; empty when none was."""
        count = self.count
        if not count:
            return ""
        of = f" of {self.rows:,}" if self.rows > count else ""
        verb = "row was" if count == 1 and not of else "rows was" if count == 1 else "rows were"
        told = self.first
        more = "; ..." if count > len(told) else ""
        return f"{count:,}{of} {verb} left out: {'; '.join(map(str, told))}{more}"

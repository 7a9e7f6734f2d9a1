"""Rows of text that can be read again and again, each time as a stream from the start."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from os import PathLike
from pathlib import Path

from glassformer.data.lines import Flaw, checked
from glassformer.data.problems import Problems
from glassformer.data.stamps import Stamp, by_time
from glassformer.data.tables import Column, Table
from glassformer.errors import GlassformerError

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


class Source(ABC):
    """Rows of strings, one for every field."""

    fields: tuple[str, ...]

    @abstractmethod
    def rows(self, problems: Problems) -> Iterator[tuple[str, ...]]:
        """Every good row from the first on; the others are told to `problems`."""

    @abstractmethod
    def fingerprint(self, stamp: Stamp = by_time) -> str:
        """Hex that changes when a file or an option does: what was prepared from it is then out of date."""


class Texts(Source):
    """Documents of any length, given in pieces that fit in memory: put end to end, they are the document.

    `pieces` says which document each piece belongs to. `rows` gives the pieces alone, for whoever only wants
    text (a tokenizer that learns); `documents` gives them grouped, for whoever must know where one ends.
    """

    fields = ("text",)

    @abstractmethod
    def pieces(self, problems: Problems) -> Iterator[tuple[int, str]]:
        """The number of a document, ever higher, and the next piece of it."""

    def rows(self, problems: Problems) -> Iterator[tuple[str, ...]]:
        for _, piece in self.pieces(problems):
            yield (piece,)

    def documents(self, problems: Problems) -> Iterator[Iterator[str]]:
        """The pieces of one document after another; read each before asking for the next."""
        for _, pieces in groupby(self.pieces(problems), itemgetter(0)):
            yield map(itemgetter(1), pieces)


def paths_of(paths: Paths) -> list[Path]:
    """One path or several, each of them an ordinary file."""
    given = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if not given:
        raise GlassformerError("no file was given")
    return [checked(path) for path in given]


def fingerprint_of(paths: Sequence[Path], *options: object, stamp: Stamp = by_time) -> str:
    """Hex of what the files are known by, and of the options."""
    files = [stamp(path) for path in paths]
    return hashlib.blake2b(repr((files, options)).encode(), digest_size=16).hexdigest()


def text_of(value: object) -> str | Flaw:
    """A value as text, without white space around it."""
    if not isinstance(value, str):
        return Flaw("is missing" if value is None else "is not text")
    text = value.strip()
    if not text:
        return Flaw("is empty")
    if "\0" in text:
        return Flaw("holds a NUL")
    if text.isascii():  # known of a string without looking at its letters
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can write one
        return Flaw("holds half of a surrogate pair")
    return text


def label_of(value: object) -> str | Flaw:
    """A value as a label: 1, 1.0 and " 1 " are the same one."""
    if isinstance(value, float) and value == value and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return Flaw("is not a number" if value != value else f"is {value}, which names no class")
    return text_of(value)


class Rows(Source):
    """The rows of one or several tables, by the columns that were asked for or chosen."""

    def __init__(
        self,
        fields: tuple[str, ...],
        tables: Sequence[Table],
        columns: Sequence[Column],
        clean: Sequence[Callable[[object], str | Flaw]],
    ) -> None:
        self.fields, self.tables, self.columns = fields, list(tables), tuple(columns)
        self._clean = list(clean)

    @property
    def chosen(self) -> str:
        """Which columns are read, for people.

        Given as `columns`, the names or numbers in it read another file (the validation set) alike.
        """
        told = [f"'{column}'" if isinstance(column, str) else f"column {column}" for column in self.columns]
        return ", ".join(f"{field} from {column}" for field, column in zip(self.fields, told, strict=True))

    @property
    def unread(self) -> list[Column]:
        """The columns of the first table that are not read."""
        head = self.tables[0].head(1)
        names = head.names
        if names is None and any(isinstance(column, str) for column in self.columns):
            names = tuple(str(cell).strip() for cell in head.rows[0])
        every = range(1, len(head.rows[0]) + 1) if names is None else names
        return [column for column in every if column not in self.columns]

    def rows(self, problems: Problems) -> Iterator[tuple[str, ...]]:
        for table in self.tables:
            tally = problems.begin(table.path, unit=table.unit)
            for line, values in table.rows(self.columns, tally):
                row = []
                for field, value, clean in zip(self.fields, values, self._clean, strict=True):
                    read = clean(value)
                    if isinstance(read, Flaw):
                        tally.add(line, f"{field} {read.what}")
                        break
                    row.append(read)
                else:
                    tally.good += 1
                    yield tuple(row)
            tally.end()

    def fingerprint(self, stamp: Stamp = by_time) -> str:
        return fingerprint_of([table.path for table in self.tables], self.fields, self.columns, stamp=stamp)

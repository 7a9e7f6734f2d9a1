"""Examples as arrays of token ids on disk: written once in a stream, then memory-mapped.

A folder holds, for each field (`source`, `target`, ...), the ids of all rows end to end and where each row
ends. Neither writing nor reading keeps the corpus in memory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from glassformer.data.ragged import Ragged
from glassformer.errors import GlassformerError

FORMAT = 1
TOGETHER = 4096  # rows written at once


@dataclass(frozen=True, kw_only=True)
class Part:
    """The next ids of a field, and where among them rows end.

    What stands after the last of the ends begins a row that goes on in the next part, so that no row need fit
    in memory. An end of 0 closes a row that was begun before.
    """

    ids: NDArray[np.int64]
    ends: NDArray[np.int64]


def write_store(
    folder: str | Path, fields: Sequence[str], rows: Iterable[Sequence[Sequence[int]]], *, highest: int
) -> Store:
    """Write rows (each a sequence of ids for every field) and open the result, as `write_parts` does."""
    return write_parts(folder, fields, _in_parts(fields, rows), highest=highest)


def write_blocks(
    folder: str | Path, fields: Sequence[str], blocks: Iterable[Sequence[Ragged]], *, highest: int
) -> Store:
    """Write rows that come many at a time, the same rows of every field together."""
    parts = (
        tuple(Part(ids=field.ids, ends=field.lengths.cumsum()) for field in fields_of) for fields_of in blocks
    )
    return write_parts(folder, fields, parts, highest=highest)


def _in_parts(fields: Sequence[str], rows: Iterable[Sequence[Sequence[int]]]) -> Iterator[tuple[Part, ...]]:
    rest, count = iter(rows), 0
    while many := list(islice(rest, TOGETHER)):
        for n, row in enumerate(many, count):
            if len(row) != len(fields):
                raise GlassformerError(f"row {n} has {len(row)} fields; the store has {len(fields)}")
        count += len(many)
        columns = [Ragged.of(column) for column in zip(*many, strict=True)]
        yield tuple(Part(ids=column.ids, ends=column.lengths.cumsum()) for column in columns)


def write_parts(
    folder: str | Path, fields: Sequence[str], parts: Iterable[Sequence[Part]], *, highest: int
) -> Store:
    """Write what comes of every field, part by part, and open the result.

    `highest` is the largest id that may come: it decides how many bytes an id takes. The folder appears
    under its name only when it is whole.
    """
    try:
        return _write(folder, fields, parts, highest)
    except OSError as error:
        raise GlassformerError(
            f"The examples could not be written to {folder} ({error.strerror or error}); "
            "free space or mend the folder, then run the same command again."
        ) from error


def _write(folder: str | Path, fields: Sequence[str], parts: Iterable[Sequence[Part]], highest: int) -> Store:
    path = Path(folder)
    if path.exists():
        raise GlassformerError(f"'{folder}' exists already; remove it or give another folder")
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    kind = np.dtype(np.uint16 if highest < 1 << 16 else np.uint32)
    rows, sizes = [0] * len(fields), [0] * len(fields)
    ids = [(part / f"{name}.ids").open("wb") for name in fields]
    marks = [(part / f"{name}.ends").open("wb") for name in fields]
    try:
        for each in parts:
            for n, (name, given) in enumerate(zip(fields, each, strict=True)):
                if len(given.ids) and not 0 <= given.ids.min() <= given.ids.max() <= highest:
                    outside = np.flatnonzero((given.ids < 0) | (given.ids > highest))[0]
                    row = rows[n] + int(np.searchsorted(given.ends, outside, side="right"))
                    raise GlassformerError(f"row {row} field '{name}' holds an id outside 0 to {highest}")
                ids[n].write(given.ids.astype(kind).tobytes())
                marks[n].write((given.ends + sizes[n]).astype(np.int64).tobytes())
                rows[n] += len(given.ends)
                sizes[n] += len(given.ids)
        if len(set(rows)) > 1:
            raise GlassformerError(f"the fields of '{folder}' have {rows} rows; give as many of each")
        about = {"format": FORMAT, "fields": list(fields), "rows": max(rows, default=0), "dtype": kind.name}
        with (part / "store.json").open("w") as file:
            json.dump(about, file)
            _settle(file)
        for stream in (*ids, *marks):
            _settle(stream)
    finally:
        for stream in (*ids, *marks):
            stream.close()
    part.rename(path)
    return Store(path)


def _settle(file: IO[bytes] | IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())


class Store:
    """The rows of a written store, by number."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            about = json.loads((self.folder / "store.json").read_text())
            self.fields: tuple[str, ...] = tuple(about["fields"])
            self.rows: int = about["rows"]
            kind = np.dtype(about["dtype"])
            fits = about["format"] == FORMAT
        except (OSError, ValueError, KeyError, TypeError):
            raise GlassformerError(f"'{folder}' is not a store of examples; prepare it again") from None
        if not fits:
            raise GlassformerError(f"'{folder}' was written by another version; prepare it again")
        self._ends = [self._map(f"{name}.ends", np.dtype(np.int64)) for name in self.fields]
        self._ids = [self._map(f"{name}.ids", kind) for name in self.fields]
        for name, ids, ends in zip(self.fields, self._ids, self._ends, strict=True):
            if len(ends) != self.rows or (self.rows and ends[-1] != len(ids)):
                raise GlassformerError(f"'{folder}' is cut short in field '{name}'; prepare it again")

    def _map(self, name: str, kind: np.dtype[np.generic]) -> NDArray[np.generic]:
        path = self.folder / name
        if not path.is_file() or path.stat().st_size % kind.itemsize:
            raise GlassformerError(f"{path} is missing or cut short; prepare the data again")
        if path.stat().st_size == 0:  # nothing to map
            return np.empty(0, kind)
        return np.memmap(path, kind, mode="r")

    def __len__(self) -> int:
        return self.rows

    def together(self, rows: NDArray[np.int64]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The ids of these rows, one row after another, by field; and their lengths (rows, fields)."""
        lengths = self.lengths(rows)
        found = []
        for ids, ends, many in zip(self._ids, self._ends, lengths.T, strict=True):
            after = many.cumsum()  # where each row ends among those asked for
            shift = np.asarray(ends[rows], np.int64) - after
            places = np.arange(int(many.sum())) + np.repeat(shift, many)
            found.append(np.asarray(ids[places], dtype=np.int64))
        return found, lengths

    def end_to_end(self, field: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """All ids of a field one row after another, and where each row ends; both stay on disk."""
        if field not in self.fields:
            raise GlassformerError(f"'{self.folder}' has no field '{field}'; it has {', '.join(self.fields)}")
        place = self.fields.index(field)
        return self._ids[place], self._ends[place]

    def longest(self, field: str, *, together: int = 1 << 20) -> int:
        """How many ids the longest row of a field has, found in a stream."""
        _, ends = self.end_to_end(field)
        most = before = 0
        for begin in range(0, len(ends), together):
            part = np.asarray(ends[begin : begin + together], np.int64)
            most = max(most, int(np.diff(part, prepend=before).max()))
            before = int(part[-1])
        return most

    def sizes(self) -> tuple[int, ...]:
        """How many ids each field has in all."""
        return tuple(len(ids) for ids in self._ids)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many ids each field of these rows has: (rows, fields)."""
        columns = []
        for ends in self._ends:
            stop = np.asarray(ends[rows], dtype=np.int64)
            before = np.asarray(ends[np.maximum(rows - 1, 0)], dtype=np.int64)
            columns.append(stop - np.where(rows > 0, before, 0))
        return np.stack(columns, -1) if columns else np.empty((len(rows), 0), np.int64)

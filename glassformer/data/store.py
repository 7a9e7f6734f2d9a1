"""Examples as arrays of token ids on disk: written once in a stream, then memory-mapped.

A folder holds, for each field (`source`, `target`, ...), the ids of all rows end to end and where each row
ends. Neither writing nor reading keeps the corpus in memory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from glassformer.core.errors import GlassformerError

FORMAT = 1


def write_store(
    folder: str | Path, fields: Sequence[str], rows: Iterable[Sequence[Sequence[int]]], *, highest: int
) -> Store:
    """Write rows (each a sequence of ids for every field) and open the result.

    `highest` is the largest id that may come: it decides how many bytes an id takes. The folder appears
    under its name only when it is whole.
    """
    return _written(folder, fields, (tuple((values,) for values in row) for row in rows), highest)


def write_documents(
    folder: str | Path, documents: Iterable[Iterable[Sequence[int]]], *, highest: int, field: str = "text"
) -> Store:
    """Write rows of one field, each given in pieces to be put end to end, so that none need fit in memory."""
    return _written(folder, (field,), ((pieces,) for pieces in documents), highest)


def _written(
    folder: str | Path,
    fields: Sequence[str],
    rows: Iterable[Sequence[Iterable[Sequence[int]]]],
    highest: int,
) -> Store:
    try:
        return _write(folder, fields, rows, highest)
    except OSError as error:
        raise GlassformerError(
            f"The examples could not be written to {folder} ({error.strerror or error}); "
            "free space or mend the folder, then run the same command again."
        ) from error


def _write(
    folder: str | Path,
    fields: Sequence[str],
    rows: Iterable[Sequence[Iterable[Sequence[int]]]],
    highest: int,
) -> Store:
    path = Path(folder)
    if path.exists():
        raise GlassformerError(f"'{folder}' exists already; remove it or give another folder")
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    kind = np.dtype(np.uint16 if highest < 1 << 16 else np.uint32)
    count, ends = 0, [0] * len(fields)
    ids = [(part / f"{name}.ids").open("wb") for name in fields]
    marks = [(part / f"{name}.ends").open("wb") for name in fields]
    try:
        for row in rows:
            if len(row) != len(fields):
                raise GlassformerError(f"row {count} has {len(row)} fields; the store has {len(fields)}")
            for n, pieces in enumerate(row):
                for values in pieces:
                    array = np.asarray(values, dtype=np.int64)
                    if array.size and not 0 <= array.min() <= array.max() <= highest:
                        raise GlassformerError(
                            f"row {count} field '{fields[n]}' holds an id outside 0 to {highest}"
                        )
                    ids[n].write(array.astype(kind).tobytes())
                    ends[n] += len(array)
                marks[n].write(np.int64(ends[n]).tobytes())
            count += 1
        about = {"format": FORMAT, "fields": list(fields), "rows": count, "dtype": kind.name}
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

    def row(self, number: int) -> tuple[NDArray[np.int64], ...]:
        """The ids of every field of one row."""
        parts = []
        for ids, ends in zip(self._ids, self._ends, strict=True):
            begin = int(ends[number - 1]) if number else 0
            parts.append(np.asarray(ids[begin : int(ends[number])], dtype=np.int64))
        return tuple(parts)

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

"""Token ids on disk, streamed to a folder once and then memory-mapped.

A folder holds, for each field (`source`, `target`, ...), the concatenated ids of all rows and the end offset
of each row. Neither writing nor reading needs the corpus in memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from glassformer.errors import (
    FileExistsAlreadyError,
    FileProblemError,
    InvalidValueError,
    UnknownNameError,
)
from glassformer.weights.atomic_write import atomic_folder

FORMAT = 1
_HINT = "prepare the data again"
ROWS_PER_WRITE = 4096


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Rows of token ids with different lengths, as two arrays: concatenated ids and row lengths (rows,)."""

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Build from lists or other sequences of ids.

        >>> Ragged.of([[7, 8], [], [9]])
        Ragged(ids=array([7, 8, 9]), lengths=array([2, 0, 1]))
        """
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
        return cls(ids=ids, lengths=lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, mask: NDArray[np.bool_]) -> Ragged:
        """Return the rows whose mask is True."""
        return Ragged(ids=self.ids[np.repeat(mask, self.lengths)], lengths=self.lengths[mask])

    def insert(self, ids: NDArray[np.int64], at: int) -> Ragged:
        """Insert one id (rows,) into each row before position `at`, which must exist in every row."""
        before = self.lengths.cumsum() - self.lengths
        return Ragged(ids=np.insert(self.ids, before + at, ids), lengths=self.lengths + 1)

    def truncate(self, length: int) -> Ragged:
        """Truncate rows to `length` ids; a truncated row keeps its last id, the end token."""
        position = positions_in_rows(self.lengths)
        mask = (position < length - 1) | (position == np.repeat(self.lengths, self.lengths) - 1)
        return Ragged(ids=self.ids[mask], lengths=np.minimum(self.lengths, length))

    def pop_last(self) -> tuple[Ragged, NDArray[np.int64]]:
        """Return the rows without their last ids, and the last ids (rows,); no row may be empty.

        >>> Ragged.of([[7, 8, 2], [1]]).pop_last()
        (Ragged(ids=array([7, 8]), lengths=array([2, 0])), array([2, 1]))
        """
        last = self.lengths.cumsum() - 1
        return Ragged(ids=np.delete(self.ids, last), lengths=self.lengths - 1), self.ids[last]

    def append(self, last: NDArray[np.int64]) -> Ragged:
        """Append one id (rows,) to each row."""
        return Ragged(ids=np.insert(self.ids, self.lengths.cumsum(), last), lengths=self.lengths + 1)


def positions_in_rows(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each id in its row, for rows of these lengths.

    >>> positions_in_rows(np.array([2, 0, 3]))
    array([0, 1, 0, 1, 2])
    """
    return np.arange(int(lengths.sum())) - np.repeat(lengths.cumsum() - lengths, lengths)


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """The next ids of a field, and the offsets in them at which rows end.

    Ids after the last end belong to a row that continues in the next chunk, so that no row needs to fit in
    memory. An end of 0 ends a row that started in an earlier chunk.
    """

    ids: NDArray[np.int64]
    ends: NDArray[np.int64]


def write_store(
    folder: str | Path, fields: Sequence[str], rows: Iterable[Sequence[Sequence[int]]], *, max_id: int
) -> Store:
    """Write rows, each with a sequence of ids per field, and open the result; see `write_chunks`."""

    def blocks() -> Iterator[list[Ragged]]:
        rest = iter(rows)
        while batch := list(islice(rest, ROWS_PER_WRITE)):
            yield [Ragged.of(column) for column in zip(*batch, strict=True)]

    return write_blocks(folder, fields, blocks(), max_id=max_id)


def write_blocks(
    folder: str | Path, fields: Sequence[str], blocks: Iterable[Sequence[Ragged]], *, max_id: int
) -> Store:
    """Write blocks of rows, each with one `Ragged` per field, and open the result; see `write_chunks`."""
    chunks = (tuple(Chunk(ids=rows.ids, ends=rows.lengths.cumsum()) for rows in block) for block in blocks)
    return write_chunks(folder, fields, chunks, max_id=max_id)


def write_chunks(
    folder: str | Path, fields: Sequence[str], chunks: Iterable[Sequence[Chunk]], *, max_id: int
) -> Store:
    """Write a store chunk by chunk and open the result.

    chunks: sequences of one chunk per field. max_id: the largest id, which determines the bytes per id.
    The folder is written atomically.
    """
    path = Path(folder)
    if path.exists():
        raise FileExistsAlreadyError(path)
    with atomic_folder(path) as part:
        _write(part, fields, chunks, max_id)
    return Store(path)


def _write(part: Path, fields: Sequence[str], chunks: Iterable[Sequence[Chunk]], max_id: int) -> None:
    dtype = np.dtype(np.uint16 if max_id < 1 << 16 else np.uint32)
    rows, sizes = [0] * len(fields), [0] * len(fields)
    with ExitStack() as stack:
        ids = [stack.enter_context((part / f"{name}.ids").open("wb")) for name in fields]
        ends = [stack.enter_context((part / f"{name}.ends").open("wb")) for name in fields]
        for field_chunks in chunks:
            for n, (name, chunk) in enumerate(zip(fields, field_chunks, strict=True)):
                if len(chunk.ids) and not 0 <= chunk.ids.min() <= chunk.ids.max() <= max_id:
                    raise InvalidValueError(
                        f"range of {name} ids",
                        [int(chunk.ids.min()), int(chunk.ids.max())],
                        f"ids from 0 to {max_id}",
                    )
                ids[n].write(chunk.ids.astype(dtype).tobytes())
                ends[n].write((chunk.ends + sizes[n]).astype(np.int64).tobytes())
                rows[n] += len(chunk.ends)
                sizes[n] += len(chunk.ids)
        if len(set(rows)) > 1:
            raise InvalidValueError("rows of the fields", rows, "the same number for each")
        metadata = {"format": FORMAT, "fields": list(fields), "rows": max(rows, default=0)}
        with (part / "store.json").open("w") as file:
            json.dump(metadata | {"dtype": dtype.name}, file)
            sync_file(file)
        for stream in (*ids, *ends):
            sync_file(stream)


def sync_file(file: IO[bytes] | IO[str]) -> None:
    """Flush a file and fsync it."""
    file.flush()
    os.fsync(file.fileno())


def map_file(path: Path, dtype: DTypeLike, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Memory-map a file as an array; without a shape, it has one dimension and the length of the file."""
    item = np.dtype(dtype).itemsize
    size = path.stat().st_size if path.is_file() else -1
    if size < 0 or size % item or (shape is not None and size != math.prod(shape) * item):
        raise FileProblemError(path, "is missing or truncated", hint=_HINT)
    if size == 0:  # an empty file cannot be mapped
        return np.empty(shape or 0, dtype)
    return np.memmap(path, dtype, mode="r", shape=shape or (size // item,))


class Store:
    """The rows of a written store, by number."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            metadata = json.loads((self.folder / "store.json").read_text())
            self.fields: tuple[str, ...] = tuple(metadata["fields"])
            self.rows: int = metadata["rows"]
            dtype = np.dtype(metadata["dtype"])
            if metadata["format"] != FORMAT:
                raise ValueError("unknown format")
        except (OSError, ValueError, KeyError, TypeError):
            raise FileProblemError(folder, "is not a token store", hint=_HINT) from None
        self._ends = [map_file(self.folder / f"{name}.ends", np.int64) for name in self.fields]
        self._ids = [map_file(self.folder / f"{name}.ids", dtype) for name in self.fields]
        for name, ids, ends in zip(self.fields, self._ids, self._ends, strict=True):
            if len(ends) != self.rows or (self.rows and ends[-1] != len(ids)):
                raise FileProblemError(folder, f"field '{name}' is truncated", hint=_HINT)

    def __len__(self) -> int:
        return self.rows

    def gather(self, rows: NDArray[np.int64]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the concatenated ids of these rows for each field, and the row lengths (rows, fields)."""
        lengths = self.lengths(rows)
        gathered = []
        for ids, ends, sizes in zip(self._ids, self._ends, lengths.T, strict=True):
            shift = np.asarray(ends[rows], np.int64) - sizes.cumsum()
            positions = np.arange(int(sizes.sum())) + np.repeat(shift, sizes)
            gathered.append(np.asarray(ids[positions], dtype=np.int64))
        return gathered, lengths

    def concatenated(self, field: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return all ids of a field, and the end offset of each row; both are memory-mapped."""
        if field not in self.fields:
            raise UnknownNameError("field", field, self.fields, where=self.folder.name)
        index = self.fields.index(field)
        return self._ids[index], self._ends[index]

    def max_length(self, field: str, *, rows_per_read: int = 1 << 20) -> int:
        """Return the length of the longest row of a field, reading `rows_per_read` lengths at a time."""
        _, ends = self.concatenated(field)
        longest = before = 0
        for start in range(0, len(ends), rows_per_read):
            part = np.asarray(ends[start : start + rows_per_read], np.int64)
            longest = max(longest, int(np.diff(part, prepend=before).max()))
            before = int(part[-1])
        return longest

    def sizes(self) -> tuple[int, ...]:
        """Return the total number of ids of each field."""
        return tuple(len(ids) for ids in self._ids)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of ids in each field of these rows: (rows, fields)."""
        columns = []
        for ends in self._ends:
            stop = np.asarray(ends[rows], dtype=np.int64)
            before = np.asarray(ends[np.maximum(rows - 1, 0)], dtype=np.int64)
            columns.append(stop - np.where(rows > 0, before, 0))
        return np.stack(columns, -1) if columns else np.empty((len(rows), 0), np.int64)

"""Several short examples in one row of a fixed width: hardly any padding, and every batch of one shape.

A device that is fastest with one shape (a compiled step on a GPU) is fed like this; which token belongs to
which example is told by segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassformer.core.errors import GlassformerError
from glassformer.data.batches import Batches
from glassformer.data.examples import IGNORED, Arrays, PairExamples

OPEN = 48  # rows being filled at once: more fill better, fewer are quicker to look through
NEXT = -1  # stands between the examples of one row and of the next


def packed(lengths: NDArray[np.int64], width: int) -> list[list[int]]:
    """Examples (n, fields) put into rows of `width` in every field: each into the fullest row that has room.

    >>> packed(np.array([[3, 2], [2, 2], [5, 4], [1, 1]]), 6)
    [[0, 1, 3], [2]]
    """
    rooms = np.empty((OPEN, lengths.shape[1]), np.int64)
    rows: list[list[int]] = []
    opened: list[int] = []
    for n, size in enumerate(lengths):
        many = len(opened)
        fits = (rooms[:many] >= size).all(1)
        if fits.any():
            left = np.where(fits, rooms[:many].sum(1), np.iinfo(np.int64).max)
            slot = int(left.argmin())
        else:
            slot = many
            if many == OPEN:  # the fullest makes way
                slot = int(rooms.sum(1).argmin())
            else:
                opened.append(0)
            opened[slot] = len(rows)
            rows.append([])
            rooms[slot] = width
        rows[opened[slot]].append(n)
        rooms[slot] -= size
    return rows


def halves(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """A batch's examples in two; packed rows stay whole. One row cannot be divided.

    >>> [half.tolist() for half in halves(np.array([4, 5, NEXT, 6, NEXT, 7]))]
    [[4, 5, -1, 6], [7]]
    """
    ends = np.flatnonzero(rows == NEXT)
    if len(ends):
        middle = int(ends[len(ends) // 2])
        return [rows[:middle], rows[middle + 1 :]]
    cut = (len(rows) + 1) // 2
    return [half for half in (rows[:cut], rows[cut:]) if len(half)]


@dataclass(frozen=True, kw_only=True)
class PackedBatches(Batches):
    """Batches of `tokens // (width x fields)` rows, each row holding as many examples as fit.

    A batch's rows come as one array of example numbers with NEXT between two rows.
    """

    width: int

    def plan(self, epoch: int, pool: int) -> list[NDArray[np.int64]]:
        """All batches of one pool; the last is filled up with empty rows."""
        rows = self.rows_of(epoch, pool)
        lengths = self.data.lengths(rows)
        if len(lengths) and int(lengths.max()) > self.width:
            raise GlassformerError(
                f"an example of {int(lengths.max())} tokens does not fit into rows of {self.width}"
            )
        many = max(1, self.tokens // (self.width * lengths.shape[1]))
        filled = packed(lengths, self.width)
        order = np.random.default_rng([self.seed, epoch, pool, 2]).permutation(len(filled))
        batches = []
        for begin in range(0, len(order), many):
            parts: list[NDArray[np.int64]] = []
            for place in range(begin, begin + many):
                if place > begin:
                    parts.append(np.array([NEXT]))
                parts.append(rows[filled[order[place]]] if place < len(order) else np.empty(0, np.int64))
            batches.append(np.concatenate(parts))
        return batches


class PackedPairs(PairExamples):
    """Pairs, several in a row: what each token belongs to is counted from 1 in `segments`, 0 is padding."""

    def __init__(self, examples: PairExamples, width: int) -> None:
        super().__init__(examples.store, pad_id=examples.pad_id, start_id=examples.start_id)
        self.examples, self.width = examples, width

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.examples.lengths(rows)

    def row(self, number: int, epoch: int) -> tuple[NDArray[np.int64], ...]:
        return self.examples.row(number, epoch)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """src, tgt, labels and the segments of both sides, each (rows, width)."""
        lines = np.split(rows, np.flatnonzero(rows == NEXT))
        shape = (len(lines), self.width)
        found = {name: np.zeros(shape, np.int64) for name in ("src_segments", "tgt_segments")}
        src, tgt = np.full(shape, self.pad_id, np.int64), np.full(shape, self.pad_id, np.int64)
        labels = np.full(shape, IGNORED, np.int64)
        for line, numbers in enumerate(lines):
            at = [0, 0]
            for segment, number in enumerate(numbers[numbers != NEXT], 1):
                source, target = self.row(int(number), epoch)
                read, written = (
                    slice(begin, begin + len(ids)) for begin, ids in zip(at, (source, target), strict=True)
                )
                src[line, read], found["src_segments"][line, read] = source, segment
                labels[line, written], found["tgt_segments"][line, written] = target, segment
                tgt[line, written.start] = self.start_id
                tgt[line, written.start + 1 : written.stop] = target[:-1]
                at = [read.stop, written.stop]
        return {"src": src, "tgt": tgt, "labels": labels, **found}

"""Rows of ids of any lengths as two arrays, so that thousands of rows are handled in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """All ids, one row after another, and how many each row has, (rows,)."""

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Rows that are lists, or anything with a length.

        >>> Ragged.of([[7, 8], [], [9]])
        Ragged(ids=array([7, 8, 9]), lengths=array([2, 0, 1]))
        """
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
        return cls(ids=ids, lengths=lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def only(self, rows: NDArray[np.bool_]) -> Ragged:
        """The rows that are True.

        >>> Ragged.of([[7, 8], [9]]).only(np.array([False, True])).ids
        array([9])
        """
        return Ragged(ids=self.ids[np.repeat(rows, self.lengths)], lengths=self.lengths[rows])

    def with_one(self, one: NDArray[np.int64], at: int) -> Ragged:
        """With one more id in each row, before the id that stands at place `at`, which every row has.

        >>> Ragged.of([[7, 8], [9]]).with_one(np.array([1, 2]), 0).ids
        array([1, 7, 8, 2, 9])
        """
        before = self.lengths.cumsum() - self.lengths
        return Ragged(ids=np.insert(self.ids, before + at, one), lengths=self.lengths + 1)

    def cut(self, most: int) -> Ragged:
        """With at most so many ids a row; the last id of a longer one, which ends it, stays.

        >>> Ragged.of([[1, 2, 3, 4, 9], [5, 9]]).cut(3).ids
        array([1, 2, 9, 5, 9])
        """
        place = within(self.lengths)
        kept = (place < most - 1) | (place == np.repeat(self.lengths, self.lengths) - 1)
        return Ragged(ids=self.ids[kept], lengths=np.minimum(self.lengths, most))

    def parted(self) -> tuple[Ragged, NDArray[np.int64]]:
        """The rows without their last ids, and those, (rows,); every row has one.

        >>> Ragged.of([[7, 8, 2], [1]]).parted()
        (Ragged(ids=array([7, 8]), lengths=array([2, 0])), array([2, 1]))
        """
        last = self.lengths.cumsum() - 1
        return Ragged(ids=np.delete(self.ids, last), lengths=self.lengths - 1), self.ids[last]

    def ended(self, last: NDArray[np.int64]) -> Ragged:
        """With one more id at the end of each row, (rows,).

        >>> Ragged.of([[7, 8], []]).ended(np.array([2, 1])).ids
        array([7, 8, 2, 1])
        """
        return Ragged(ids=np.insert(self.ids, self.lengths.cumsum(), last), lengths=self.lengths + 1)


def within(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each id in its row, of rows with these lengths.

    >>> within(np.array([2, 0, 3]))
    array([0, 1, 0, 1, 2])
    """
    return np.arange(int(lengths.sum())) - np.repeat(lengths.cumsum() - lengths, lengths)

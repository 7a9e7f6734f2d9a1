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
        after = self.lengths.cumsum()
        left = np.repeat(after, self.lengths) - np.arange(len(self.ids))  # ids from here to the row's end
        place = np.repeat(self.lengths, self.lengths) - left
        kept = (place < most - 1) | (left == 1)
        return Ragged(ids=self.ids[kept], lengths=np.minimum(self.lengths, most))

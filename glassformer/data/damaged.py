"""Sentences as pairs to learn from: a damaged one to read, the whole one to write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassformer.data.by_row import places, uniform
from glassformer.data.examples import PairExamples
from glassformer.data.noise import FOR_EACH, FOR_WORD, damage_all
from glassformer.data.ragged import Ragged, within
from glassformer.data.store import Store
from glassformer.errors import GlassformerError

_SENTENCES, _WORDS = 0xDA3A, 0xDA3B  # set the numbers drawn for a sentence apart from those for its words


@dataclass(frozen=True, kw_only=True)
class Damage:
    """How likely each damage is, what marks a gap, and where words begin.

    begins: for every id whether a word begins with it, (V,).
    gap_id: the token for a gap; None leaves a gap unmarked.
    """

    trim: float
    gap: float
    shuffle: float
    gap_id: int | None
    begins: NDArray[np.bool_]

    def __post_init__(self) -> None:
        for name in ("trim", "gap", "shuffle"):
            if not 0 <= getattr(self, name) <= 1:
                raise GlassformerError(f"data.{name} is {getattr(self, name)}; a chance is from 0 to 1")

    def done(self, whole: Ragged, rows: NDArray[np.int64], *, seed: int, epoch: int) -> Ragged:
        """Sentences with words moved and missing, none of them longer; `rows` are their numbers."""
        starts, many = self._words(whole)
        left, lengths = damage_all(
            many,
            each=uniform(seed + _SENTENCES, epoch, rows, FOR_EACH),
            word=uniform(seed + _WORDS, epoch, places(rows, many), FOR_WORD),
            trim=self.trim,
            gap=self.gap,
            shuffle=self.shuffle,
        )
        # The mark of a gap is one more word behind all others: the one that the number GONE, -1, finds.
        mark = [] if self.gap_id is None else [self.gap_id]
        ids = np.concatenate((whole.ids, np.array(mark, np.int64)))
        starts = np.append(starts, len(whole.ids))
        sizes = np.diff(starts, append=len(ids))[left]
        of = np.repeat(np.arange(len(rows)), lengths)
        return Ragged(
            ids=ids[np.repeat(starts[left], sizes) + within(sizes)],
            lengths=np.bincount(of, sizes, len(rows)).astype(np.int64),
        )

    def _words(self, whole: Ragged) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where words start among all ids, and how many each sentence has; none is without."""
        begins = self.begins[whole.ids]
        so_far = np.concatenate(([0], begins.cumsum()))
        after = whole.lengths.cumsum()
        before_row = np.repeat(so_far[after - whole.lengths], whole.lengths)
        # What stands before the first word goes with it, so that the row's start is the start of its first.
        starts = (within(whole.lengths) == 0) | (begins & (so_far[:-1] > before_row))
        total = np.concatenate(([0], starts.cumsum()))
        return np.flatnonzero(starts), total[after] - total[after - whole.lengths]


class DamagedExamples(PairExamples):
    """Each sentence of a store as a pair, damaged in another way in every epoch.

    The damage follows from seed, epoch and row alone. A sentence's last id is its end token, which stays.
    """

    def __init__(
        self, store: Store, *, how: Damage, seed: int, pad_id: int, start_id: int, multiple: int = 1
    ) -> None:
        super().__init__(store, pad_id=pad_id, start_id=start_id, multiple=multiple)
        self.how, self.seed = how, seed

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sentence's for both: no damage makes it longer."""
        return self.store.lengths(rows).repeat(2, axis=1)

    def together(
        self, rows: NDArray[np.int64], epoch: int
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        (ids,), lengths = self.store.together(rows)
        whole, ends = Ragged(ids=ids, lengths=lengths[:, 0]).parted()
        damaged = self.how.done(whole, rows, seed=self.seed, epoch=epoch).ended(ends)
        return [damaged.ids, ids], np.stack((damaged.lengths, lengths[:, 0]), 1)

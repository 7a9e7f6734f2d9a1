"""Sentences as pairs to learn from: a damaged one to read, the whole one to write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassformer.core.errors import GlassformerError
from glassformer.data.examples import PairExamples
from glassformer.data.noise import damage
from glassformer.data.store import Store

_SALT = 0xDA3A
_GONE = -1  # stands where words are missing


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

    def done(self, ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Ids (T,) with words moved and missing, (T' <= T,)."""
        starts = np.flatnonzero(self.begins[ids])
        if not len(starts):
            return ids
        starts[0] = 0  # what stands before the first word goes with it
        words = np.split(ids, starts[1:])
        order = damage(
            np.arange(len(words)), rng, trim=self.trim, gap=self.gap, shuffle=self.shuffle, gap_id=_GONE
        )
        gap = np.array([] if self.gap_id is None else [self.gap_id], np.int64)
        return np.concatenate([gap if n == _GONE else words[n] for n in order])


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

    def row(self, number: int, epoch: int) -> tuple[NDArray[np.int64], ...]:
        (whole,) = self.store.row(number)
        rng = np.random.default_rng([self.seed, epoch, number, _SALT])
        return np.concatenate((self.how.done(whole[:-1], rng), whole[-1:])), whole

    def together(
        self, rows: NDArray[np.int64], epoch: int
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        pairs = [self.row(int(row), epoch) for row in rows]
        nothing = np.empty(0, np.int64)
        sides = [np.concatenate([nothing, *(pair[n] for pair in pairs)]) for n in (0, 1)]
        lengths = np.array([[len(side) for side in pair] for pair in pairs], np.int64)
        return sides, lengths.reshape(-1, 2)

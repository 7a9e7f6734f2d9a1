"""Denoising: truncate, mask or shuffle sentences, to train a model that restores them.

Letters: R sequences, W words of all sequences together, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassformer.data.examples import PairExamples
from glassformer.data.randomness import position_keys, uniform
from glassformer.data.store import Ragged, Store, positions_in_rows

MAX_TRIM = 3  # at most 1 / MAX_TRIM of the words are trimmed
GAP_EVERY = 8  # one gap, and one more for every GAP_EVERY words
MAX_GAP = 3  # maximum number of words in a gap; adjacent gaps are merged
MAX_MOVE = 3  # maximum number of positions that a shuffled word moves
GAP = -1  # stands for a gap among word numbers
DRAWS_PER_SEQUENCE, DRAWS_PER_WORD = 6, 3
_SENTENCE_SALT, _WORD_SALT = 0xDA3A, 0xDA3B


def corrupt_batch(
    counts: NDArray[np.int64],
    *,
    sequence_draws: NDArray[np.float64],
    word_draws: NDArray[np.float64],
    trim: float,
    gap: float,
    shuffle: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Corrupt sequences of words and return the numbers of the words that are left.

    counts: words per sequence, (R,). sequence_draws (R, DRAWS_PER_SEQUENCE) and word_draws
    (W, DRAWS_PER_WORD): uniform random numbers in [0, 1). trim, gap, shuffle: probability of each corruption.
    Returns word numbers (W' <= W,), counted over all sequences, with GAP for each gap; and the number of
    entries of each sequence, (R,).
    """
    first = counts.cumsum() - counts
    position, row = positions_in_rows(counts), np.repeat(np.arange(len(counts)), counts)  # (W,)
    trims, gaps, shuffles = (sequence_draws[:, :3] < (trim, gap, shuffle)).T

    order = np.arange(len(word_draws))
    moving = np.flatnonzero(shuffles[row])
    noisy = position[moving] + word_draws[moving, 0] * (MAX_MOVE + 1)
    order[moving] = moving[np.lexsort((noisy, row[moving]))]

    trimmed = np.where(
        trims & (counts >= MAX_TRIM), 1 + _randint(sequence_draws[:, 3], counts // MAX_TRIM), 0
    )
    start = np.where(sequence_draws[:, 4] < 0.5, trimmed, 0)
    counts = counts - trimmed
    order = order[(position >= start[row]) & (position < (start + counts)[row])]
    position, row = positions_in_rows(counts), np.repeat(np.arange(len(counts)), counts)

    gap_counts = np.where(gaps & (counts > 1), 1 + counts // GAP_EVERY, 0)
    removed = _in_gap(counts, gap_counts, first, word_draws)
    empty = (counts > 0) & (np.bincount(row[removed], minlength=len(counts)) == counts)
    spared = counts.cumsum() - np.where(sequence_draws[:, 5] < 0.5, counts, 1)  # the first word or the last
    removed[spared[empty]] = False
    opens = removed & ~(np.concatenate(([False], removed))[:-1] & (position > 0))
    order[opens] = GAP
    stays = opens | ~removed
    return order[stays], np.bincount(row[stays], minlength=len(counts))


def _in_gap(
    counts: NDArray[np.int64],
    gap_counts: NDArray[np.int64],
    first: NDArray[np.int64],
    word_draws: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return a mask (W,) of the words in gaps; gap n of a sequence uses the draws of the sequence's word n.

    first: number of the first word of each sequence before trimming, (R,).
    """
    draws = word_draws[np.repeat(first, gap_counts) + positions_in_rows(gap_counts)]
    sizes = np.repeat(counts, gap_counts)
    start = _randint(draws[:, 1], sizes)
    end = np.minimum(start + 1 + _randint(draws[:, 2], MAX_GAP), sizes)
    offset = np.repeat(counts.cumsum() - counts, gap_counts)
    total = int(counts.sum())
    opened = np.bincount(offset + start, minlength=total + 1)
    closed = np.bincount(offset + end, minlength=total + 1)
    return (opened - closed).cumsum()[:-1] > 0


def _randint(draws: NDArray[np.float64], stop: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Turn uniform draws in [0, 1) into integers in [0, stop)."""
    return (draws * stop).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """Corrupt token sequences word by word.

    trim, gap, shuffle: probability of each corruption.
    starts_word: whether each token starts a word, (V,).
    gap_id: the token that replaces a gap; if None, gaps are not marked.
    """

    trim: float
    gap: float
    shuffle: float
    gap_id: int | None
    starts_word: NDArray[np.bool_]

    def apply(self, clean: Ragged, rows: NDArray[np.int64], *, seed: int, epoch: int) -> Ragged:
        """Corrupt the sentences with the given row numbers; no sentence gets longer."""
        starts, counts = self._word_starts(clean)
        left, lengths = corrupt_batch(
            counts,
            sequence_draws=uniform(seed + _SENTENCE_SALT, epoch, rows, DRAWS_PER_SEQUENCE),
            word_draws=uniform(seed + _WORD_SALT, epoch, position_keys(rows, counts), DRAWS_PER_WORD),
            trim=self.trim,
            gap=self.gap,
            shuffle=self.shuffle,
        )
        # The gap token is appended as one more word, which the index GAP (-1) selects.
        mark = [] if self.gap_id is None else [self.gap_id]
        ids = np.concatenate((clean.ids, np.array(mark, np.int64)))
        starts = np.append(starts, len(clean.ids))
        sizes = np.diff(starts, append=len(ids))[left]
        row = np.repeat(np.arange(len(rows)), lengths)
        return Ragged(
            ids=ids[np.repeat(starts[left], sizes) + positions_in_rows(sizes)],
            lengths=np.bincount(row, sizes, len(rows)).astype(np.int64),
        )

    def _word_starts(self, clean: Ragged) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the index at which each word starts in `clean.ids`, and the number of words per sentence."""
        starts_word = self.starts_word[clean.ids]
        so_far = np.concatenate(([0], starts_word.cumsum()))
        ends = clean.lengths.cumsum()
        before_row = np.repeat(so_far[ends - clean.lengths], clean.lengths)
        # Ids before the first word start belong to the first word, so each row starts with a word.
        first = positions_in_rows(clean.lengths) == 0
        starts = first | (starts_word & (so_far[:-1] > before_row))
        total = np.concatenate(([0], starts.cumsum()))
        return np.flatnonzero(starts), total[ends] - total[ends - clean.lengths]


class DenoisingExamples(PairExamples):
    """Pairs of a corrupted sentence and its original; the corruption differs in every epoch.

    The corruption depends only on seed, epoch and row. The end token of a sentence is kept.
    ids: `pad_id` and `start_id` of `PairExamples`.
    """

    def __init__(self, store: Store, *, corruption: Corruption, seed: int, **ids: int) -> None:
        super().__init__(store, **ids)
        self.corruption, self.seed = corruption, seed

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the length of the original sentence for both sides, since corruption never adds tokens."""
        return self.store.lengths(rows).repeat(2, axis=1)

    def gather(
        self, rows: NDArray[np.int64], epoch: int
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        (ids,), lengths = self.store.gather(rows)
        clean, ends = Ragged(ids=ids, lengths=lengths[:, 0]).pop_last()
        corrupted = self.corruption.apply(clean, rows, seed=self.seed, epoch=epoch).append(ends)
        return [corrupted.ids, ids], np.stack((corrupted.lengths, lengths[:, 0]), 1)

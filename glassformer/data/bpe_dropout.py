"""BPE dropout: split some tokens into shorter ones each time a text is read.

So the model is trained on many segmentations of a word. The splits depend only on seed, epoch and row.

Letters: N tokens of several rows concatenated, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from glassformer.data.examples import Ids, PairExamples
from glassformer.data.randomness import position_keys, uniform
from glassformer.data.store import Ragged, Store

ROUNDS = 3  # in each round a token, or a half of a token split before, may be split
# Upper bound on the growth of a row, as a multiple of the probability. Texts of common words grow by 2.6
# times the probability on average. A larger bound pads most rows; a smaller one often skips the last round.
MAX_GROWTH = 3
NO_SPLIT = -1


def split_table(spellings: Sequence[str], special: Collection[int] = ()) -> Ids:
    """Return for each token the two tokens that it can be split into, (V, 2), or NO_SPLIT twice.

    special: tokens that are never split. Of several splits, the one whose larger id is smallest is taken:
    lower ids are more frequent tokens.

    >>> split_table(["a", "b", "c", "ab", "abc"]).tolist()
    [[-1, -1], [-1, -1], [-1, -1], [0, 1], [3, 2]]
    """
    ids = {spelling: n for n, spelling in enumerate(spellings) if n not in special}
    table = np.full((len(spellings), 2), NO_SPLIT, np.int64)
    for spelling, number in ids.items():
        cuts = [(spelling[:n], spelling[n:]) for n in range(1, len(spelling))]
        splits = [(ids[left], ids[right]) for left, right in cuts if left in ids and right in ids]
        if splits:
            table[number] = min(splits, key=max)
    return table


class BpeDropout:
    """BPE dropout: split each token with the probability `prob`, in each of three rounds.

    table: from `split_table`.    max_length: maximum number of tokens in a row.
    """

    def __init__(self, table: Ids, prob: float, *, max_length: int, seed: int) -> None:
        self.table, self.prob, self.max_length, self.seed = table, prob, max_length, seed

    def __call__(self, ids: Ids, lengths: Ids, rows: Ids, *, epoch: int) -> tuple[Ids, Ids]:
        """Split tokens of the concatenated ids (N,) of `rows`; truncate rows longer than `max_length`.

        lengths: tokens of each row. Returns the new ids and lengths.
        """
        split = self._split(ids, lengths, rows, epoch, bound=None).truncate(self.max_length)
        return split.ids, split.lengths

    def without_truncation(self, ids: Ids, lengths: Ids, rows: Ids, *, epoch: int) -> tuple[Ids, Ids]:
        """Split tokens as in a call, but leave a row as it is in a round in which it would exceed `bound`."""
        split = self._split(ids, lengths, rows, epoch, bound=self.bound(lengths))
        return split.ids, split.lengths

    def bound(self, lengths: Ids) -> Ids:
        """Return the maximum number of tokens after splitting, for rows of these lengths."""
        longest = np.ceil(lengths * (1 + MAX_GROWTH * self.prob)).astype(np.int64) + 1
        return np.minimum(longest, self.max_length)

    def _split(self, ids: Ids, lengths: Ids, rows: Ids, epoch: int, *, bound: Ids | None) -> Ragged:
        for round_number in range(ROUNDS):
            draws = uniform(self.seed + round_number, epoch, position_keys(rows, lengths), 1)[:, 0]
            chosen = (self.table[ids, 0] != NO_SPLIT) & (draws < self.prob)
            row = np.repeat(np.arange(len(rows)), lengths)
            added = np.bincount(row[chosen], minlength=len(rows))
            if bound is not None:
                fits = lengths + added <= bound
                chosen, added = chosen & fits[row], np.where(fits, added, 0)
            repeats = 1 + chosen
            first = (repeats.cumsum() - repeats)[chosen]
            halves, ids, lengths = self.table[ids[chosen]], np.repeat(ids, repeats), lengths + added
            ids[first], ids[first + 1] = halves[:, 0], halves[:, 1]
        return Ragged(ids=ids, lengths=lengths)


class BpeDropoutPairs(PairExamples):
    """Pairs with BPE dropout on both sides, without truncation.

    The length of a row is known only after splitting, so `lengths` returns upper bounds. ids: `pad_id` and
    `start_id` of `PairExamples`.
    """

    def __init__(self, store: Store, *, source: BpeDropout, target: BpeDropout, **ids: int) -> None:
        super().__init__(store, **ids)
        self.sides = source, target

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return an upper bound on the tokens of each side in any epoch."""
        stored = self.store.lengths(rows)
        return np.stack([dropout.bound(stored[:, n]) for n, dropout in enumerate(self.sides)], 1)

    def gather(
        self, rows: NDArray[np.int64], epoch: int
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        fields, stored = self.store.gather(rows)
        split = [
            dropout.without_truncation(ids, stored[:, n], rows, epoch=epoch)
            for n, (ids, dropout) in enumerate(zip(fields, self.sides, strict=True))
        ]
        return [ids for ids, _ in split], np.stack([lengths for _, lengths in split], 1)

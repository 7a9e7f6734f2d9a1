"""Tokens cut anew each time a text is read: some become the two shorter ones that spell the same.

So a model meets a word in many cuttings, and learns what its parts mean too. What happens to a text follows
from seed, epoch and row alone. Letters: N tokens of some rows end to end, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from glassformer.data.by_row import places, uniform
from glassformer.data.ragged import Ragged

Ids = NDArray[np.int64]
ROUNDS = 3  # how often a token may be halved, and its halves
# So many times the chance is what a row may grow by. Texts of common words grow by 2.6 times the chance on
# average: more room is left empty in most rows, with less many rows cannot be cut in the last turn.
ROOM = 3
WHOLE = -1  # in place of halves that a token does not have


def halves(spellings: Sequence[str], kept: Collection[int] = ()) -> Ids:
    """For each token the two tokens that spell it together: (V, 2); where there are none, twice WHOLE.

    Of several ways it is the one whose rarer half comes first in the vocabulary, being the commoner.

    >>> halves(["a", "b", "c", "ab", "abc"]).tolist()
    [[-1, -1], [-1, -1], [-1, -1], [0, 1], [3, 2]]
    """
    numbers = {spelling: n for n, spelling in enumerate(spellings) if n not in kept}
    made = np.full((len(spellings), 2), WHOLE, np.int64)
    for spelling, number in numbers.items():
        cuts = [(spelling[:n], spelling[n:]) for n in range(1, len(spelling))]
        ways = [(numbers[one], numbers[two]) for one, two in cuts if one in numbers and two in numbers]
        if ways:
            made[number] = min(ways, key=max)
    return made


class Recut:
    """Halves each token with a chance, in each of three turns.

    longest: how many tokens a row may have at most.
    """

    def __init__(self, table: Ids, chance: float, *, longest: int, seed: int) -> None:
        self.table, self.chance, self.longest, self.seed = table, chance, longest, seed

    def __call__(self, ids: Ids, lengths: Ids, rows: Ids, *, epoch: int) -> tuple[Ids, Ids]:
        """The ids (N,) of some rows end to end and their lengths, cut anew; what is too long is cut off."""
        anew = self._turns(ids, lengths, rows, epoch, most=None)
        short = anew.cut(self.longest)
        return short.ids, short.lengths

    def whole(self, ids: Ids, lengths: Ids, rows: Ids, *, epoch: int) -> tuple[Ids, Ids]:
        """The same with nothing cut off: a row sits out a turn in which it would outgrow its bound."""
        anew = self._turns(ids, lengths, rows, epoch, most=self.bound(lengths))
        return anew.ids, anew.lengths

    def bound(self, lengths: Ids) -> Ids:
        """The most tokens that rows of such lengths, none over `longest`, have when they are cut anew."""
        return np.minimum(np.ceil(lengths * (1 + ROOM * self.chance)).astype(np.int64) + 1, self.longest)

    def _turns(self, ids: Ids, lengths: Ids, rows: Ids, epoch: int, *, most: Ids | None) -> Ragged:
        for turn in range(ROUNDS):
            drawn = uniform(self.seed + turn, epoch, places(rows, lengths), 1)[:, 0]
            chosen = (self.table[ids, 0] != WHOLE) & (drawn < self.chance)
            of = np.repeat(np.arange(len(rows)), lengths)
            more = np.bincount(of[chosen], minlength=len(rows))
            if most is not None:
                fits = lengths + more <= most
                chosen, more = chosen & fits[of], np.where(fits, more, 0)
            many = 1 + chosen
            first = (many.cumsum() - many)[chosen]
            pair, ids, lengths = self.table[ids[chosen]], np.repeat(ids, many), lengths + more
            ids[first], ids[first + 1] = pair[:, 0], pair[:, 1]
        return Ragged(ids=ids, lengths=lengths)

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
ROUNDS = 3  # how often a token may be halved
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
    """Halves each token with a chance, up to three times; a row keeps at most `longest` tokens."""

    def __init__(self, table: Ids, chance: float, *, longest: int, seed: int) -> None:
        self.table, self.chance, self.longest, self.seed = table, chance, longest, seed

    def __call__(self, ids: Ids, lengths: Ids, rows: Ids, *, epoch: int) -> tuple[Ids, Ids]:
        """The ids (N,) of some rows end to end and their lengths, cut anew."""
        for turn in range(ROUNDS):
            drawn = uniform(self.seed + turn, epoch, places(rows, lengths), 1)[:, 0]
            chosen = (self.table[ids, 0] != WHOLE) & (drawn < self.chance)
            many = 1 + chosen
            first = (many.cumsum() - many)[chosen]
            lengths = np.bincount(np.repeat(np.arange(len(rows)), lengths), many, len(rows)).astype(np.int64)
            pair, ids = self.table[ids[chosen]], np.repeat(ids, many)
            ids[first], ids[first + 1] = pair[:, 0], pair[:, 1]
        short = Ragged(ids=ids, lengths=lengths).cut(self.longest)
        return short.ids, short.lengths

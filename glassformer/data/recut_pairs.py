"""Pairs whose tokens are cut anew each time they are read, each side by itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassformer.data.examples import PairExamples
from glassformer.data.recut import Recut
from glassformer.data.store import Store


class RecutPairs(PairExamples):
    """Sources and targets in other tokens in every epoch, none of them ever shortened.

    How a row is cut is known only when it is read, so its lengths are bounds, which it then keeps within.
    """

    def __init__(
        self,
        store: Store,
        *,
        source: Recut,
        target: Recut,
        pad_id: int,
        start_id: int,
        multiple: int = 1,
    ) -> None:
        super().__init__(store, pad_id=pad_id, start_id=start_id, multiple=multiple)
        self.sides = source, target

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The most that each side has in any epoch."""
        stored = self.store.lengths(rows)
        return np.stack([recut.bound(stored[:, n]) for n, recut in enumerate(self.sides)], 1)

    def together(
        self, rows: NDArray[np.int64], epoch: int
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        both, stored = self.store.together(rows)
        anew = [
            recut.whole(ids, stored[:, n], rows, epoch=epoch)
            for n, (ids, recut) in enumerate(zip(both, self.sides, strict=True))
        ]
        return [ids for ids, _ in anew], np.stack([lengths for _, lengths in anew], 1)

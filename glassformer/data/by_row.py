"""Random numbers that belong to a row: the same whoever reads it, whenever, beside whatever other rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassformer.data.ragged import within

_LONGEST = 1 << 20  # places in a row that have random numbers of their own


def uniform(seed: int, epoch: int, rows: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Numbers from 0 up to 1, a function of each row and nothing else: (rows, count).

    >>> together = uniform(1, 0, np.array([5, 9]), 3)
    >>> bool((uniform(1, 0, np.array([9]), 3) == together[1:]).all())
    True
    """
    keys = np.random.SeedSequence([seed & (2**64 - 1), epoch, 0x1A6E]).generate_state(count, np.uint64)
    x = _mixed(rows.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) ^ keys)
    return (_mixed(x + keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def places(rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for every place in these rows, which no other place of any row has: (places of all rows,)."""
    return np.repeat(rows, lengths) * _LONGEST + within(lengths)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the result depends on every bit of x (multiplications wrap around on purpose)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

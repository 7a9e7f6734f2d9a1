"""Random numbers that belong to a row: the same whoever reads it, whenever, and in whatever batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassformer.data.store import positions_in_rows

_MAX_POSITIONS = 1 << 20  # per row


def uniform(seed: int, epoch: int, rows: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) that depend only on seed, epoch and row: (rows, count).

    >>> together = uniform(1, 0, np.array([5, 9]), 3)
    >>> bool((uniform(1, 0, np.array([9]), 3) == together[1:]).all())
    True
    """
    keys = np.random.SeedSequence([seed & (2**64 - 1), epoch, 0x1A6E]).generate_state(count, np.uint64)
    x = _mix(rows.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) ^ keys)
    return (_mix(x + keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def position_keys(rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for every position of these rows that no other position of any row has: (sum of lengths,)."""
    return np.repeat(rows, lengths) * _MAX_POSITIONS + positions_in_rows(lengths)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the result depends on every bit of x (multiplications overflow on purpose)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

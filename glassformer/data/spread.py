"""The mean and the spread of numbers of any size, from 1e-300 to 1e300, in double precision.

Squares of such numbers overflow or vanish, so they are worked out after division by a power of two, which
rounds nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

STILL = 1e-15  # of the mean: a spread that the rounding of doubles alone makes
DIGITS, MOST_DIGITS = 7, 17  # that single and double precision hold
Doubles = NDArray[np.float64]


def exponents(values: Doubles) -> NDArray[np.int32]:
    """The power of two just above the largest of each column: (..., T, C) -> (..., 1, C)."""
    return np.frexp(np.abs(values).max(-2, keepdims=True))[1]


def mean_and_spread(values: Doubles) -> tuple[Doubles, Doubles]:
    """Of each column: (..., T, C) -> two of (..., 1, C). One that stands still has a spread of 0.

    >>> mean, spread = mean_and_spread(np.array([[1e300, 5.0], [3e300, 5.0]]))
    >>> mean[0].tolist(), spread[0].tolist()
    ([2e+300, 5.0], [1e+300, 0.0])
    """
    power = exponents(values)
    near = np.ldexp(values, -power)
    first = near[..., :1, :]
    mean = first + (near - first).mean(-2, keepdims=True)
    spread = np.sqrt(np.square(near - mean).mean(-2, keepdims=True))
    still = spread <= STILL * np.abs(mean)
    return np.ldexp(mean, power), np.where(still, 0.0, np.ldexp(spread, power))


def mean_size(values: Doubles) -> Doubles:
    """The mean of each column's sizes, signs aside: (..., T, C) -> (..., 1, C)."""
    power = exponents(values)
    return np.ldexp(np.abs(np.ldexp(values, -power)).mean(-2, keepdims=True), power)


def written_of(value: float, swing: float, digits: int = DIGITS) -> str:
    """A number with so many digits, and as many before them as it is larger than the swing it lies in.

    >>> written_of(1000000002.1234567, 2.0), written_of(0.30000001192092896, 2.0), written_of(7.0, 0.0)
    ('1000000002.123457', '0.3', '7')
    """
    above = 0
    if abs(value) > swing > 0:
        above = math.floor(math.log10(abs(value))) - math.floor(math.log10(swing))
    return f"{value:.{min(digits + above, MOST_DIGITS)}g}"

"""Mean and standard deviation of numbers of any magnitude, from 1e-300 to 1e300, in double precision.

Squares of such numbers overflow or underflow, so they are divided by a power of two first, which is exact.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

CONSTANT_TOLERANCE = 1e-15  # relative to the mean: a standard deviation that rounding alone produces
DIGITS, MAX_DIGITS = 7, 17  # of single and double precision
Doubles = NDArray[np.float64]


def exponents(values: Doubles) -> NDArray[np.int32]:
    """The power of two just above the largest of each column: (..., T, C) -> (..., 1, C)."""
    return np.frexp(np.abs(values).max(-2, keepdims=True))[1]


def mean_and_std(values: Doubles) -> tuple[Doubles, Doubles]:
    """Of each column: (..., T, C) -> two of (..., 1, C). The std of a constant column is exactly 0.

    >>> mean, std = mean_and_std(np.array([[1e300, 5.0], [3e300, 5.0]]))
    >>> mean[0].tolist(), std[0].tolist()
    ([2e+300, 5.0], [1e+300, 0.0])
    """
    power = exponents(values)
    scaled = np.ldexp(values, -power)
    first = scaled[..., :1, :]
    mean = first + (scaled - first).mean(-2, keepdims=True)
    std = np.sqrt(np.square(scaled - mean).mean(-2, keepdims=True))
    constant = std <= CONSTANT_TOLERANCE * np.abs(mean)
    return np.ldexp(mean, power), np.where(constant, 0.0, np.ldexp(std, power))


def mean_abs(values: Doubles) -> Doubles:
    """The mean absolute value of each column: (..., T, C) -> (..., 1, C)."""
    power = exponents(values)
    return np.ldexp(np.abs(np.ldexp(values, -power)).mean(-2, keepdims=True), power)


def format_value(value: float, std: float, digits: int = DIGITS) -> str:
    """A number with `digits` digits below the magnitude of the standard deviation it varies by.

    >>> format_value(1000000002.1234567, 2.0), format_value(0.30000001192092896, 2.0), format_value(7.0, 0.0)
    ('1000000002.123457', '0.3', '7')
    """
    above = 0
    if abs(value) > std > 0:
        above = math.floor(math.log10(abs(value))) - math.floor(math.log10(std))
    return f"{value:.{min(digits + above, MAX_DIGITS)}g}"

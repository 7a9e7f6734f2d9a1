"""Cut time series into windows: past values as input, future values to predict.

A series is split in time: training first, then validation and test. A window belongs to the split that
contains its future; its past may reach back into the previous split, as in real use.
Letters: S series, N rows, C channels, B windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from glassformer.data.examples import EqualLengths
from glassformer.data.series import SeriesSet
from glassformer.data.timestamps import CalendarFeature, calendar_features
from glassformer.errors import EmptyInputError, InvalidValueError

_BLOCK_ROWS = 65_536
LOW_VARIANCE = 0.01  # standard deviation relative to that of all series
CONSTANT_TOLERANCE = 1e-15  # standard deviation that rounding alone produces, relative to the mean
DIGITS, MAX_DIGITS = 7, 17  # of single and double precision
Doubles = NDArray[np.float64]


def mean_and_std(values: Doubles) -> tuple[Doubles, Doubles]:
    """Return mean and standard deviation of each column of (..., T, C), both (..., 1, C).

    The standard deviation of a constant column is exactly 0.

    >>> mean, std = mean_and_std(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> mean[0].tolist(), std[0].tolist()
    ([2.0, 5.0], [1.0, 0.0])
    """
    first = values[..., :1, :]
    mean = first + (values - first).mean(-2, keepdims=True)
    std = np.sqrt(np.square(values - mean).mean(-2, keepdims=True))
    return mean, np.where(std <= CONSTANT_TOLERANCE * np.abs(mean), 0.0, std)


def format_value(value: float, std: float, digits: int = DIGITS) -> str:
    """Format a number of a series with standard deviation `std`: `digits` digits, counted from std's first.

    >>> format_value(1000000002.1234567, 2.0), format_value(0.30000001192092896, 2.0), format_value(7.0, 0.0)
    ('1000000002.123457', '0.3', '7')
    """
    above = 0
    if abs(value) > std > 0:
        above = math.floor(math.log10(abs(value))) - math.floor(math.log10(std))
    return f"{value:.{min(digits + above, MAX_DIGITS)}g}"


@dataclass(frozen=True)
class SplitRange:
    """The rows of each series that belong to one split: from `start` up to `end`, both (S,)."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]


@dataclass(frozen=True)
class SeriesSplit:
    """The training, validation and test rows of a split in time."""

    train: SplitRange
    valid: SplitRange
    test: SplitRange


def split_series(series: SeriesSet, split: tuple[float, ...]) -> SeriesSplit:
    """Split series in time, by fractions that add up to one or at row numbers."""
    if max(split) <= 1:
        return split_by_fraction(series, *split)
    return split_by_rows(series, *(int(end) for end in split))


def split_by_fraction(
    series: SeriesSet, train: float = 0.7, valid: float = 0.1, test: float = 0.2
) -> SeriesSplit:
    """Split each series by fractions of its length; rows left over by rounding go to validation."""
    if min(train, valid, test) < 0 or abs(train + valid + test - 1) > 1e-6 or train == 0:
        raise InvalidValueError("fractions", [train, valid, test], "three numbers that add up to 1")
    length = series.lengths
    train_end = (length * train + 1e-9).astype(np.int64)
    return _parts(np.zeros_like(length), train_end, length - (length * test + 1e-9).astype(np.int64), length)


def split_by_rows(series: SeriesSet, train_end: int, valid_end: int, test_end: int) -> SeriesSplit:
    """Split each series at the same row numbers; rows after `test_end` are not used.

    The hourly ETT series are split at 8,640, 11,520 and 14,400 (12, 4 and 4 months of 30 days).
    """
    shortest = int(series.lengths.min())
    if not 0 < train_end <= valid_end <= test_end:
        raise InvalidValueError("ends", [train_end, valid_end, test_end], "ascending row numbers")
    if test_end > shortest:
        raise InvalidValueError(
            "test_end", test_end, f"at most {shortest:,}, the length of the shortest series"
        )
    ones = np.ones(len(series), np.int64)
    return _parts(0 * ones, train_end * ones, valid_end * ones, test_end * ones)


def _parts(*ends: NDArray[np.int64]) -> SeriesSplit:
    return SeriesSplit(*(SplitRange(start, end) for start, end in pairwise(ends)))


@dataclass(frozen=True)
class Scaler:
    """Standardize each channel to mean 0 and standard deviation 1, and invert it."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def fit(cls, series: SeriesSet, part: SplitRange) -> Scaler:
        """Fit to the training split `part`; a constant channel is only shifted."""
        blocks = list(_blocks(series, part))
        count = sum(map(len, blocks))
        if not count:
            raise EmptyInputError("training split")
        first = blocks[0][0]  # differences to it are exactly 0 for a constant channel
        mean = first + sum((block - first).sum(0) for block in blocks) / count
        std = np.sqrt(sum(np.square(block - mean).sum(0) for block in blocks) / count)
        std = np.where(std <= CONSTANT_TOLERANCE * np.abs(mean), 1.0, std)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def transform(self, values: Doubles) -> NDArray[np.float32]:
        """Standardize values (..., C)."""
        with np.errstate(over="ignore"):  # values far outside the training range become infinite
            shifted = (values - np.array(self.mean)) / np.array(self.std)
            return shifted.astype(np.float32)

    def inverse(self, values: NDArray[np.float32]) -> Doubles:
        """Convert standardized values back to the original units."""
        return values.astype(np.float64) * np.array(self.std) + np.array(self.mean)


@dataclass(frozen=True, kw_only=True)
class KnownCovariates:
    """Known covariates: standardized columns, and calendar features of the timestamps.

    mean, std: of each column in the training data.
    """

    columns: tuple[str, ...] = ()
    calendar: tuple[CalendarFeature, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Number of values per time step: each calendar feature is a sine and a cosine."""
        return len(self.columns) + 2 * len(self.calendar)

    def fit(self, series: SeriesSet, part: SplitRange) -> KnownCovariates:
        """Return them with the mean and standard deviation of the training split `part`."""
        if not self.columns or series.covariates is None:
            return self
        scaler = Scaler.fit(replace(series, values=series.covariates), part)
        return replace(self, mean=scaler.mean, std=scaler.std)

    def transform(self, values: Doubles | None, stamps: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the covariates (N, width) of rows with these column values (N, K) and timestamps (N,)."""
        parts = []
        if self.columns and values is not None:
            parts.append(Scaler(self.mean, self.std).transform(values))
        if self.calendar:
            parts.append(calendar_features(stamps, self.calendar).astype(np.float32))
        return np.concatenate(parts, 1)


def low_variance_series(series: SeriesSet, part: SplitRange, scaler: Scaler) -> list[str]:
    """Return the names of series with a very small variance, on which little can be learned.

    All series of a column share one scale, so the errors of such a series barely count.
    """
    low = []
    for number, first in enumerate(series.starts):
        start, end = int(first + part.start[number]), int(first + part.end[number])
        if end > start:
            _, std = mean_and_std(series.values[start:end])  # (1, C)
            if ((std > 0) & (std < LOW_VARIANCE * np.array(scaler.std))).any():
                low.append(series.ids[number])
    return low


def _blocks(series: SeriesSet, part: SplitRange) -> Iterator[Doubles]:
    for number, first in enumerate(series.starts):
        start, end = int(first + part.start[number]), int(first + part.end[number])
        for row in range(start, end, _BLOCK_ROWS):
            yield series.values[row : min(row + _BLOCK_ROWS, end)].astype(np.float64, copy=False)


@dataclass(frozen=True, kw_only=True)
class Windows(EqualLengths):
    """All windows whose future lies in one split, ordered by series and time.

    part: the rows of the split.    context, horizon: number of past and of future steps.
    covariates: known covariates of each row, (N, K), standardized.
    """

    series: SeriesSet
    part: SplitRange
    scaler: Scaler
    context: int
    horizon: int
    covariates: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if not len(self):
            longest = int(self.series.lengths.max(initial=0))
            available = int((self.part.end - self.part.start).max(initial=0))
            raise InvalidValueError(
                "the longest series",
                f"{longest:,} rows, {available:,} of them in this split",
                f"enough for a window of {self.context:,} past and {self.horizon:,} future steps",
            )

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        """The row of each series at which the future of its first window starts: (S,)."""
        return np.maximum(self.part.start, self.context)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of windows of each series: (S,)."""
        return np.maximum(0, self.part.end - self.horizon - self._firsts + 1)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def starts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row at which the future of each window starts, counted over all series."""
        ends = np.cumsum(self.counts)
        which = np.searchsorted(ends, rows, side="right")
        inside = rows - (ends - self.counts)[which]
        return self.series.starts[which] + self._firsts[which] + inside

    def batch(self, rows: NDArray[np.int64], *, epoch: int = 0) -> dict[str, NDArray[np.float32]]:
        """Return past (B, context, C) and future (B, horizon, C), standardized; the same in every epoch.

        With known covariates, also those of all these steps, (B, context + horizon, K).
        """
        first = self.starts(rows) - self.context
        values = self._views[first]
        arrays = {"past": values[:, : self.context], "future": values[:, self.context :]}
        if self.covariates is not None:
            steps = np.arange(self.context + self.horizon)
            arrays["covariates"] = self.covariates[first[:, None] + steps]
        return arrays

    @cached_property
    def _views(self) -> NDArray[np.float32]:
        """Views of the standardized values at each row: (N - context - horizon + 1, context + horizon, C)."""
        steps = self.context + self.horizon
        values = np.ascontiguousarray(self.scaler.transform(self.series.values))
        return sliding_window_view(values, steps, axis=0).swapaxes(1, 2)

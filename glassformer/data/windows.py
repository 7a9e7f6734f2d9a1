"""Windows over series: so many past values to read, so many future ones to tell.

A series is cut in time: what comes first is learned from, what follows is judged by. A window belongs to the
part that its future lies in; its past may reach back into the part before, as it would in use.
Letters: S series, N rows, C channels, B windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from glassformer.data.series import SeriesSet
from glassformer.data.spread import STILL, Doubles, exponents, mean_and_spread
from glassformer.errors import GlassformerError

_BLOCK = 65_536
PUBLISHED_BATCH = 128
FAINT = 0.01  # of a column's spread


@dataclass(frozen=True)
class Part:
    """The rows of each series that are one part: from `begin` up to `end`, both (S,), counted per series."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]


@dataclass(frozen=True)
class Parts:
    """A cut in time into what is learned, what is chosen by, and what is judged by."""

    train: Part
    valid: Part
    test: Part


def by_share(series: SeriesSet, train: float = 0.7, valid: float = 0.1, test: float = 0.2) -> Parts:
    """Shares of every series' length; `valid` gets what rounding leaves."""
    if min(train, valid, test) < 0 or abs(train + valid + test - 1) > 1e-6 or train == 0:
        raise GlassformerError(
            f"shares of {train}, {valid} and {test} do not make a whole with some to learn"
        )
    length = series.lengths
    learned = (length * train + 1e-9).astype(np.int64)
    return _parts(np.zeros_like(length), learned, length - (length * test + 1e-9).astype(np.int64), length)


def by_rows(series: SeriesSet, train_end: int, valid_end: int, test_end: int) -> Parts:
    """The rows where each part ends, in every series; what comes after the last is not used.

    The hourly transformer series are cut at 8,640, 11,520 and 14,400 (12, 4 and 4 months of 30 days).
    """
    shortest = int(series.lengths.min())
    if not 0 < train_end <= valid_end <= test_end:
        raise GlassformerError(
            f"parts cannot end at rows {train_end}, {valid_end} and {test_end}, in this order"
        )
    if test_end > shortest:
        raise GlassformerError(f"the last part ends at row {test_end:,}, but a series has only {shortest:,}")
    every = np.ones(len(series), np.int64)
    return _parts(0 * every, train_end * every, valid_end * every, test_end * every)


def _parts(*ends: NDArray[np.int64]) -> Parts:
    return Parts(*(Part(begin, end) for begin, end in pairwise(ends)))


@dataclass(frozen=True)
class Scaler:
    """Each channel brought to mean 0 and spread 1, and back."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def fitted(cls, series: SeriesSet, part: Part) -> Scaler:
        """From the training part alone; a channel that never changes is only shifted."""
        blocks = list(_blocks(series, part))
        count = sum(map(len, blocks))
        if not count:
            raise GlassformerError("the part to learn the scale from has no rows")
        power = np.max([exponents(block)[0] for block in blocks], 0)  # (C,)
        first = np.ldexp(blocks[0][0], -power)  # summed from there, equal numbers leave nothing but 0
        mean = first + sum((np.ldexp(block, -power) - first).sum(0) for block in blocks) / count
        squares = sum(np.square(np.ldexp(block, -power) - mean).sum(0) for block in blocks)
        std = np.sqrt(squares / count)
        std = np.where(std <= STILL * np.abs(mean), 1.0, np.ldexp(std, power))
        return cls(tuple(np.ldexp(mean, power).tolist()), tuple(std.tolist()))

    def scaled(self, values: Doubles) -> NDArray[np.float32]:
        """(..., C) -> (..., C)."""
        with np.errstate(over="ignore"):  # far from all that was learned: infinite, as the answer will tell
            shifted = (values - np.array(self.mean)) / np.array(self.std)
            return shifted.astype(np.float32)

    def undone(self, values: NDArray[np.float32]) -> Doubles:
        """Scaled values in the series' own units again."""
        return values.astype(np.float64) * np.array(self.std) + np.array(self.mean)


def faint(series: SeriesSet, part: Part, scaler: Scaler) -> list[str]:
    """The series that vary, but so little beside the others of their column that hardly anything is learned.

    One scale serves all series of a column, and errors count by it.
    """
    found = []
    for number, first in enumerate(series.begins):
        begin, end = int(first + part.begin[number]), int(first + part.end[number])
        if end > begin:
            _, spread = mean_and_spread(series.values[begin:end])  # (1, C)
            if ((spread > 0) & (spread < FAINT * np.array(scaler.std))).any():
                found.append(series.ids[number])
    return found


def _blocks(series: SeriesSet, part: Part) -> Iterator[Doubles]:
    for number, first in enumerate(series.begins):
        begin, end = int(first + part.begin[number]), int(first + part.end[number])
        for at in range(begin, end, _BLOCK):
            yield series.values[at : min(at + _BLOCK, end)].astype(np.float64, copy=False)


@dataclass(frozen=True, kw_only=True)
class Windows:
    """All windows whose future lies in one part of the series, in the order of time, series after series.

    context, horizon: how many steps are read, and how many told.
    stride: how far apart windows begin.    limit: only so many, the first.
    """

    series: SeriesSet
    part: Part
    scaler: Scaler
    context: int
    horizon: int
    stride: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("context", "horizon", "stride"):
            if getattr(self, name) < 1:
                raise GlassformerError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not len(self):
            room = int((self.part.end - self.part.begin).max(initial=0))
            raise GlassformerError(
                f"no window of {self.context:,} past and {self.horizon:,} future steps fits: the longest "
                f"series has {int(self.series.lengths.max(initial=0)):,} rows, {room:,} of them in this part"
            )
        channels = self.series.values.shape[1]
        if not len(self.scaler.mean) == len(self.scaler.std) == channels:
            raise GlassformerError(
                f"the scale is of {len(self.scaler.mean)} channels; the series has {channels}"
            )

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        """Where the first future of each series begins: (S,)."""
        return np.maximum(self.part.begin, self.context)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many windows each series has; none where it is too short: (S,)."""
        room = self.part.end - self.horizon - self._firsts
        return np.where(room < 0, 0, room // self.stride + 1)

    def __len__(self) -> int:
        count = int(self.counts.sum())
        return count if self.limit is None else min(count, self.limit)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every window costs the same: (rows, 1) ones."""
        return np.ones((len(rows), 1), np.int64)

    def starts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of all series end to end at which each window's future begins."""
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"windows are numbered from 0 to {len(self) - 1}")
        ends = np.cumsum(self.counts)
        which = np.searchsorted(ends, rows, side="right")
        inside = rows - (ends - self.counts)[which]
        return self.series.begins[which] + self._firsts[which] + inside * self.stride

    def batch(self, rows: NDArray[np.int64], *, epoch: int = 0) -> dict[str, NDArray[np.float32]]:
        """past (B, context, C) and future (B, horizon, C), scaled; the same in every epoch."""
        values = self._views[self.starts(rows) - self.context]
        return {"past": values[:, : self.context], "future": values[:, self.context :]}

    @cached_property
    def _views(self) -> NDArray[np.float32]:
        """The scaled values from every row on (N - context - horizon + 1, context + horizon, C).

        Views of one array: a window is cut out of it in one piece, which keeps up with a GPU.
        """
        steps = self.context + self.horizon
        values = np.ascontiguousarray(self.scaler.scaled(self.series.values))
        return sliding_window_view(values, steps, axis=0).swapaxes(1, 2)

    def published(self, batch: int = PUBLISHED_BATCH) -> Windows:
        """Without the last windows that do not fill a batch, as many published figures were worked out.

        Those are the latest and often the hardest, so such figures are for comparing with such figures only.
        """
        whole = len(self) // batch * batch
        if not whole:
            raise GlassformerError(f"{len(self)} windows do not fill a batch of {batch}")
        return replace(self, limit=whole)

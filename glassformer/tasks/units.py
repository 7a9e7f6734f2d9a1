"""What the values of series are scaled by before a forecaster reads them, and after it has told.

A model learned on scaled values says so, and its scale is put on and taken off again. One that scales every
window by itself adds a small number to the spread, lest a still series be divided by 0; in units that make
the spread small (returns, rates, concentrations) that number would outweigh it. So each window is brought to
a size of 1 first: what is told is then the same in any units.

B windows, T steps read, N steps told, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.stable_stats import Doubles, mean_abs, mean_and_std
from glassformer.data.windows import Scaler
from glassformer.errors import GlassformerError
from glassformer.tasks.reading import named

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class WindowScale:
    """What each window's columns are shifted and divided by: both (..., 1, C), in double precision."""

    shift: Doubles
    size: Doubles

    @classmethod
    def spread(cls, windows: Doubles) -> WindowScale:
        """To mean 0 and spread 1: (..., T, C). One that stands still has its own height for a spread."""
        mean, spread = mean_and_std(windows)
        return cls(shift=mean, size=_nonzero(np.where(spread == 0, np.abs(mean), spread)))

    @classmethod
    def height(cls, windows: Doubles) -> WindowScale:
        """To a mean size of 1, nothing shifted: (..., T, C)."""
        size = mean_abs(windows)
        return cls(shift=np.zeros_like(size), size=_nonzero(size))

    def transform(self, values: Doubles) -> Floats:
        """(..., T, C) -> (..., T, C)."""
        return ((values - self.shift) / self.size).astype(np.float32)

    def inverse(self, values: Floats) -> Doubles:
        """What is told of scaled values, (..., N, C), in the series' own units."""
        return values.astype(np.float64) * self.size + self.shift


def _nonzero(size: Doubles) -> Doubles:
    """Where nothing has any size, there is nothing to divide by."""
    return np.where(size == 0, 1.0, size)


def scale_of(bundle: Bundle, windows: Doubles) -> Scaler | WindowScale:
    """What these windows (..., T, C) are scaled by: the scale the model learned with, else their own.

    Left as they are: windows for a model that scales nothing, to which units matter, and counts, which have
    no units.
    """
    job = bundle.job
    if job.mean is not None and job.std is not None:
        return Scaler(tuple(map(float, job.mean)), tuple(map(float, job.std)))
    read, head = (getattr(bundle.spec, name, None) for name in ("input", "head"))
    counts = isinstance(head, specs.Forecast) and head.distribution == "negative_binomial"
    if isinstance(read, specs.SeriesPatches) and not counts:
        if read.scaling == "std":
            return WindowScale.spread(windows)
        if read.scaling == "mean":
            return WindowScale.height(windows)
    count = windows.shape[-1]
    return Scaler((0.0,) * count, (1.0,) * count)


def check_columns(bundle: Bundle, names: Sequence[str]) -> None:
    """Refuse more or fewer columns than the model reads or was trained on."""
    job = bundle.job
    count = len(names)
    read = getattr(bundle.spec, "input", None)
    if isinstance(read, specs.SeriesPatches) and read.channels != count:
        raise GlassformerError(
            f"there are {count} columns ({', '.join(names[:8])}), and {named(bundle)} reads "
            f"{read.channels}; name as many with --columns (`columns`)"
        )
    if job.mean is not None and len(job.mean) != count:
        raise GlassformerError(
            f"there are {count} columns, and {named(bundle)} was trained on {len(job.mean)}; "
            "name as many with --columns (`columns`)"
        )

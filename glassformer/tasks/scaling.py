"""How time series are scaled before a model reads them, and its predictions scaled back.

A model trained on scaled values has its scale in job.json. One that normalizes every window itself adds a
small epsilon to the standard deviation; in units that make the deviation small (returns, rates) the epsilon
would dominate. So each window is scaled to unit size first: the forecast does not depend on the units.

B windows, T steps read, N steps predicted, C columns.
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
from glassformer.errors import ShapeError

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class WindowScale:
    """What each window's columns are shifted and divided by: both (..., 1, C), in double precision."""

    shift: Doubles
    size: Doubles

    @classmethod
    def standardize(cls, windows: Doubles) -> WindowScale:
        """To mean 0 and deviation 1: (..., T, C). A constant column is divided by its value."""
        mean, spread = mean_and_std(windows)
        return cls(shift=mean, size=_nonzero(np.where(spread == 0, np.abs(mean), spread)))

    @classmethod
    def unit_mean(cls, windows: Doubles) -> WindowScale:
        """To a mean absolute value of 1, not shifted: (..., T, C)."""
        size = mean_abs(windows)
        return cls(shift=np.zeros_like(size), size=_nonzero(size))

    def transform(self, values: Doubles) -> Floats:
        """(..., T, C) -> (..., T, C)."""
        return ((values - self.shift) / self.size).astype(np.float32)

    def inverse(self, values: Floats) -> Doubles:
        """Predictions (..., N, C) for scaled values, in the series' own units."""
        return values.astype(np.float64) * self.size + self.shift


def _nonzero(size: Doubles) -> Doubles:
    return np.where(size == 0, 1.0, size)


def scale_of(bundle: Bundle, windows: Doubles) -> Scaler | WindowScale:
    """What these windows (..., T, C) are scaled by: the scale of the training data, else their own.

    Not scaled: windows for a model that does not normalize, and counts, which have no units.
    """
    job = bundle.job
    if job.mean is not None and job.std is not None:
        return Scaler(tuple(map(float, job.mean)), tuple(map(float, job.std)))
    read, head = (getattr(bundle.spec, name, None) for name in ("input", "head"))
    counts = isinstance(head, specs.Forecast) and head.distribution == "negative_binomial"
    if isinstance(read, specs.SeriesPatches) and not counts:
        if read.scaling == "std":
            return WindowScale.standardize(windows)
        if read.scaling == "mean":
            return WindowScale.unit_mean(windows)
    count = windows.shape[-1]
    return Scaler((0.0,) * count, (1.0,) * count)


def check_columns(bundle: Bundle, names: Sequence[str]) -> None:
    """Raise unless there are as many columns as the model reads or was trained on."""
    read, trained = getattr(bundle.spec, "input", None), bundle.job.mean
    expected = read.channels if isinstance(read, specs.SeriesPatches) else len(trained) if trained else None
    if expected is not None and len(names) != expected:
        listed = ", ".join(names[:8])
        raise ShapeError(
            f"the table ({listed})", (len(names),), f"{expected} columns", hint="select with columns"
        )

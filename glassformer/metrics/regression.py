"""Errors and correlations of predicted numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class RegressionScores(NamedTuple):
    """Mean squared and absolute error, and Pearson and Spearman correlation (0 if one side is constant)."""

    mse: float
    mae: float
    pearson: float
    spearman: float


def regression_scores(predicted: Any, true: Any) -> RegressionScores:
    """Compare predicted with true numbers, two arrays (N,).

    >>> regression_scores([1, 2, 4], [1, 3, 9]).spearman
    1.0
    """
    predicted, true = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
    error = predicted - true
    return RegressionScores(
        mse=float((error**2).mean()),
        mae=float(np.abs(error).mean()),
        pearson=_correlation(predicted, true),
        spearman=_correlation(_ranks(predicted), _ranks(true)),
    )


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return min(1.0, max(-1.0, float(a @ b) / norm)) if norm > 0 else 0.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value; equal values share their mean rank."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    means: NDArray[np.float64] = (last - (counts - 1) / 2)[index]
    return means

"""Metrics of embeddings: retrieval of the right text. Correlations with scores are in `regression`."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

QUERIES_TOGETHER = 1024


def recall_at_1(queries: NDArray[Any], keys: NDArray[Any]) -> float:
    """Return the fraction of queries (N, D) whose most similar key, of all N, is that of their own row.

    Equal keys count as the same.

    >>> import numpy as np
    >>> recall_at_1(np.eye(3)[[0, 1, 1]], np.eye(3))
    0.6666666666666666
    """
    hits = 0
    for start in range(0, len(queries), QUERIES_TOGETHER):
        block = queries[start : start + QUERIES_TOGETHER]
        similarities = block @ keys.T
        own = (block * keys[start : start + QUERIES_TOGETHER]).sum(-1)
        hits += int((similarities.max(-1) <= own + 1e-6).sum())
    return hits / len(queries)

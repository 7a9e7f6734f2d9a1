"""Metrics of embeddings: retrieval of the right text. Correlations with scores are in `regression`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
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


def retrieval_recall(
    queries: NDArray[Any],
    keys: NDArray[Any],
    query_groups: NDArray[np.int64],
    key_groups: NDArray[np.int64],
    ranks: Sequence[int] = (1, 5, 10),
) -> dict[int, float]:
    """Return recall@k: the fraction of queries (Q, D) with a key of their group among the k most similar.

    keys: (N, D). query_groups, key_groups: e.g. the number of the image that a caption describes.

    >>> found = retrieval_recall(np.eye(3)[[0, 1, 1]], np.eye(3), np.arange(3), np.arange(3), (1, 2))
    >>> found[1] < 1 and sorted(found) == [1, 2]
    True
    """
    most = min(max(ranks), len(keys))
    hits = dict.fromkeys(ranks, 0)
    for start in range(0, len(queries), QUERIES_TOGETHER):
        block = slice(start, start + QUERIES_TOGETHER)
        order = np.argsort(-(queries[block] @ keys.T), axis=-1, kind="stable")[:, :most]
        right = key_groups[order] == query_groups[block, None]
        for k in ranks:
            hits[k] += int(right[:, :k].any(-1).sum())
    return {k: count / len(queries) for k, count in hits.items()}

"""Which examples are written together: those of like length, as many as a budget of tokens holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

LOOK_AHEAD: Final = 16  # batches' worth of examples that are read before they are sorted by length
AT_MOST: Final = 8192  # examples read ahead, however short


def ahead(
    examples: Iterator[Sequence[int]], limit: Callable[[int], int], tokens: int
) -> Iterator[list[tuple[Sequence[int], int]]]:
    """Examples with their limits, a bounded number of tokens at a time."""
    near: list[tuple[Sequence[int], int]] = []
    cost = 0
    for example in examples:
        most = limit(len(example))
        near.append((example, most))
        cost += len(example) + most
        if cost >= LOOK_AHEAD * tokens or len(near) == AT_MOST:
            yield near
            near, cost = [], 0
    if near:
        yield near


def batches(lengths: Sequence[int], limits: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Rows by falling cost, so that the batch that needs most memory comes first."""
    batch: list[int] = []
    longest = most = 0
    by_cost = sorted(range(len(lengths)), key=lambda n: (lengths[n] + limits[n], lengths[n]), reverse=True)
    for n in by_cost:
        longest, most = max(longest, lengths[n]), max(most, limits[n])
        if batch and (longest + most) * (len(batch) + 1) > tokens:
            yield batch
            batch, longest, most = [], lengths[n], limits[n]
        batch.append(n)
    if batch:
        yield batch

"""Random numbers of sampling: from one generator for a batch, or from one for each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class RowGenerators:
    """One generator per row, on the CPU.

    A seed therefore gives a row the same numbers alone, in a batch and on every device.

    >>> both, one = RowGenerators([1, 2]), RowGenerators([2])
    >>> torch.equal(both.exponential(torch.zeros(2, 3))[1:], one.exponential(torch.zeros(1, 3)))
    True
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def exponential(self, scores: Tensor) -> Tensor:
        """Return exponential noise in the shape of the scores (B, V)."""
        noise = torch.empty(scores.shape, dtype=torch.float32)
        for row, generator in zip(noise, self.generators, strict=True):
            row.exponential_(1, generator=generator)
        return noise.to(scores)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self.generators = [self.generators[row] for row in rows.tolist()]


RandomGenerator = torch.Generator | RowGenerators | None  # None: torch's global generator


def exponential(scores: Tensor, generator: RandomGenerator) -> Tensor:
    """Return exponential noise in the shape of the scores (B, V)."""
    if isinstance(generator, RowGenerators):
        return generator.exponential(scores)
    return torch.empty_like(scores).exponential_(1, generator=generator)

"""Exact match of whole rows, and token accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.errors import ConflictError


@dataclass
class Exact:
    """Counts over rows of tokens (or of characters, if rows are texts).

    >>> found = Exact()
    >>> found.add([[1, 2, 3], [4]], [[1, 2, 3], [4, 5]])
    >>> found.match, found.token_accuracy
    (0.5, 0.8)
    """

    rows: int = 0
    same: int = 0
    positions: int = 0
    hits: int = 0

    def add(self, outputs: Iterable[Sequence[Any]], expected: Iterable[Sequence[Any]]) -> None:
        """Compare rows one by one."""
        ours, theirs = list(outputs), list(expected)
        if len(ours) != len(theirs):
            reason = f"there are {len(ours)} outputs and {len(theirs)} expected rows"
            raise ConflictError(("outputs", "expected"), reason)
        for mine, other in zip(ours, theirs, strict=True):
            hits = sum(a == b for a, b in zip(mine, other, strict=False))
            longer = max(len(mine), len(other))
            self.rows += 1
            self.same += hits == longer
            self.positions += longer
            self.hits += hits

    @property
    def match(self) -> float:
        """The fraction of rows that are identical."""
        return self.same / self.rows if self.rows else 0.0

    @property
    def token_accuracy(self) -> float:
        """The fraction of positions with the same token; positions that only one row has count as wrong."""
        return self.hits / self.positions if self.positions else 0.0

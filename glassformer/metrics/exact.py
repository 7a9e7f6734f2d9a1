"""How often what was written is exactly what was expected: whole rows, and token by token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.errors import GlassformerError


@dataclass
class Exact:
    """Counts over rows of tokens (or of characters, where rows are texts).

    >>> found = Exact()
    >>> found.add([[1, 2, 3], [4]], [[1, 2, 3], [4, 5]])
    >>> found.match, found.token_accuracy
    (0.5, 0.8)
    """

    rows: int = 0
    same: int = 0
    places: int = 0
    hits: int = 0

    def add(self, written: Iterable[Sequence[Any]], expected: Iterable[Sequence[Any]]) -> None:
        """Count rows one against one."""
        ours, theirs = list(written), list(expected)
        if len(ours) != len(theirs):
            raise GlassformerError(
                f"{len(ours)} rows were written and {len(theirs)} are expected; give one for one"
            )
        for mine, other in zip(ours, theirs, strict=True):
            hits = sum(a == b for a, b in zip(mine, other, strict=False))
            longer = max(len(mine), len(other))
            self.rows += 1
            self.same += hits == longer
            self.places += longer
            self.hits += hits

    @property
    def match(self) -> float:
        """The share of rows that are the same from first to last."""
        return self.same / self.rows if self.rows else 0.0

    @property
    def token_accuracy(self) -> float:
        """The share of places with the same token; places that only one of the two has count as wrong."""
        return self.hits / self.places if self.places else 0.0

"""Accuracy, F1 and the confusion of classes, from counts added up batch by batch.

C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassformer.errors import GlassformerError


class ClassFigures(NamedTuple):
    """How one class fared; a figure whose denominator is 0 is 0."""

    name: str
    precision: float  # of those said to be of the class, how many are
    recall: float  # of those that are, how many were said to be
    f1: float
    support: int  # how many are


class Labels:
    """Counts of (true class, class said): everything about a classifier that does not need scores.

    >>> found = Labels(["cat", "dog"])
    >>> found.add(said=[0, 1, 1], true=[0, 1, 0])
    >>> found.confusion.tolist(), round(found.accuracy, 4), round(found.macro_f1, 4)
    ([[1, 1], [0, 1]], 0.6667, 0.6667)
    """

    def __init__(self, classes: Sequence[str]) -> None:
        if not classes:
            raise GlassformerError("there are no classes to tell apart; name at least one")
        self.classes = list(classes)
        self.confusion: NDArray[np.int64] = np.zeros((len(classes), len(classes)), np.int64)  # true, said

    def add(self, said: Any, true: Any) -> None:
        """Count class numbers, arrays of one shape."""
        told, right = np.asarray(said), np.asarray(true)
        if told.shape != right.shape:
            raise GlassformerError(
                f"{told.size} labels were said and {right.size} are true; give one for one, in one shape"
            )
        if not told.size:
            return
        many = len(self.classes)
        low, high = int(min(told.min(), right.min())), int(max(told.max(), right.max()))
        if low < 0 or high >= many:
            wrong = low if low < 0 else high
            raise GlassformerError(
                f"class number {wrong} is out of range: there are {many} classes, 0 to {many - 1}"
            )
        pairs = right.astype(np.int64) * many + told
        self.confusion += np.bincount(pairs, minlength=many * many).reshape(many, many)

    @property
    def count(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return int(np.trace(self.confusion)) / self.count if self.count else 0.0

    @property
    def macro_f1(self) -> float:
        """The mean F1 over classes that are true or said at least once, rare ones counting as much."""
        seen = (self.confusion.sum(0) + self.confusion.sum(1)) > 0
        scores = [row.f1 for row, counts in zip(self.table(), seen, strict=True) if counts]
        return sum(scores) / len(scores) if scores else 0.0

    def table(self) -> list[ClassFigures]:
        """A row for every class."""
        rows = []
        for n, name in enumerate(self.classes):
            hits = int(self.confusion[n, n])
            said, true = int(self.confusion[:, n].sum()), int(self.confusion[n].sum())
            precision = hits / said if said else 0.0
            recall = hits / true if true else 0.0
            f1 = 2 * hits / (said + true) if said + true else 0.0
            rows.append(ClassFigures(name, precision, recall, f1, true))
        return rows

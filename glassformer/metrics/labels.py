"""Accuracy, F1 and the confusion matrix, for one or several labels per example.

C classes, N examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class ClassMetrics(NamedTuple):
    """The metrics of one class; a metric whose denominator is 0 is set to 0."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int  # number of examples


class ConfusionMatrix:
    """Confusion matrix (true class, predicted class), and the metrics computed from it.

    >>> matrix = ConfusionMatrix(["cat", "dog"])
    >>> matrix.add(predicted=[0, 1, 1], true=[0, 1, 0])
    >>> matrix.confusion.tolist(), round(matrix.accuracy, 4), round(matrix.macro_f1, 4)
    ([[1, 1], [0, 1]], 0.6667, 0.6667)
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = list(classes)
        self.confusion: NDArray[np.int64] = np.zeros(
            (len(classes), len(classes)), np.int64
        )  # (true, predicted)

    def add(self, predicted: Any, true: Any) -> None:
        """Add predicted and true class numbers, arrays of the same shape."""
        count = len(self.classes)
        pairs = np.asarray(true, np.int64) * count + np.asarray(predicted, np.int64)
        self.confusion += np.bincount(pairs.ravel(), minlength=count * count).reshape(count, count)

    @property
    def count(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The fraction of correct predictions."""
        return int(np.trace(self.confusion)) / self.count if self.count else 0.0

    @property
    def macro_f1(self) -> float:
        """The unweighted mean F1 over classes that occur or are predicted."""
        occurs = (self.confusion.sum(0) + self.confusion.sum(1)) > 0
        scores = [row.f1 for row, counts in zip(self.table(), occurs, strict=True) if counts]
        return sum(scores) / len(scores) if scores else 0.0

    def table(self) -> list[ClassMetrics]:
        """Return the metrics of each class."""
        rows = []
        for n, name in enumerate(self.classes):
            hits = int(self.confusion[n, n])
            predicted, true = int(self.confusion[:, n].sum()), int(self.confusion[n].sum())
            rows.append(ClassMetrics(name, *precision_recall_f1(hits, predicted, true), true))
        return rows


@dataclass(frozen=True, kw_only=True)
class MultiLabelScores:
    """Metrics of predicted sets of labels.

    accuracy: fraction of examples whose predicted labels are all correct. micro_f1: F1 over all labels of all
    examples. macro_f1: unweighted mean F1 over the classes. table: metrics of each class.
    """

    accuracy: float
    micro_f1: float
    macro_f1: float
    table: list[ClassMetrics]


def multi_label_scores(classes: Sequence[str], predicted: Any, true: Any) -> MultiLabelScores:
    """Compute the metrics of predicted labels, given two arrays (N, C) that are true for labels that apply.

    >>> scores = multi_label_scores(["warm", "funny"], [[1, 0], [1, 1]], [[1, 0], [1, 0]])
    >>> scores.accuracy, round(scores.micro_f1, 4), scores.macro_f1
    (0.5, 0.8, 0.5)
    """
    predicted, true = np.asarray(predicted, bool), np.asarray(true, bool)
    hits, guesses, support = (predicted & true).sum(0), predicted.sum(0), true.sum(0)  # (C,)
    rows = [
        ClassMetrics(name, *precision_recall_f1(*counts), counts[2])
        for name, *counts in zip(classes, *(c.tolist() for c in (hits, guesses, support)), strict=True)
    ]
    return MultiLabelScores(
        accuracy=float((predicted == true).all(-1).mean()) if len(true) else 0.0,
        micro_f1=precision_recall_f1(int(hits.sum()), int(guesses.sum()), int(support.sum()))[2],
        macro_f1=sum(row.f1 for row in rows) / len(rows),
        table=rows,
    )


def precision_recall_f1(hits: int, predicted: int, true: int) -> tuple[float, float, float]:
    """Return precision, recall and F1 from counts; 0 if a denominator is 0."""
    f1 = 2 * hits / (predicted + true) if predicted + true else 0.0
    return hits / predicted if predicted else 0.0, hits / true if true else 0.0, f1

"""Classify time series from a file or from arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.data.labeled_series import Values
from glassformer.processors.series import SERIES_BATCH_SIZE, SeriesProcessor
from glassformer.tasks.base import BatchTask, check_finite, encoder_model
from glassformer.tasks.classification import LabelScorer
from glassformer.tasks.declarations.classify import Classification


class SeriesClassifier(BatchTask[Any, Classification]):
    """Classify time series, arrays (T, C) or (T,), of any length.

    top: number of labels; None: all. min_score: of a label.
    """

    budget = read_ahead = SERIES_BATCH_SIZE

    def __init__(self, bundle: Bundle, *, top: int | None = None, min_score: float | None = None) -> None:
        self.labels = LabelScorer.of(bundle, top, min_score)
        self.bundle, self.processor = bundle, SeriesProcessor(bundle)

    def forward(self, items: Sequence[Values]) -> Sequence[Tensor]:
        """Return the logits of each series."""
        logits = encoder_model(self.bundle)(**self.processor.collate(items))
        return list(check_finite(self.bundle, logits.float().cpu()))

    def postprocess(self, input: Any, item: Values | None, raw: Tensor | None) -> Classification:
        """Convert the logits of a series to labels."""
        return Classification(labels=self.labels(raw))

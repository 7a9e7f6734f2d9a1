"""The interface between a job and the trainer: examples, loss, validation, saving; and validation metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.data import Batches
from glassformer.data.examples import Arrays, Examples
from glassformer.data.windows import Windows
from glassformer.metrics.forecast import ForecastErrors, ForecastScores
from glassformer.metrics.labels import ConfusionMatrix
from glassformer.training.learner import LabelLearner, Learner, SeriesLearner, count_labels, point_forecast
from glassformer.training.losses import cross_entropy

LOWER_IS_BETTER = ("loss", "perplexity", "bits", "mse", "mae")  # in names of metrics


def lower_is_better(metric: str) -> bool:
    return any(name in metric for name in LOWER_IS_BETTER)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One example of a validation: input, expected output, actual output."""

    source: str
    expected: str
    got: str


@dataclass(frozen=True, kw_only=True)
class ValidationResult:
    """Metrics and sample outputs.

    signatures: how a metric was computed, e.g. sacreBLEU's signature.
    tables: metrics in rows, e.g. one per class, by the table's name; a row has named columns.
    """

    metrics: dict[str, float]
    samples: Sequence[Sample] = ()
    signatures: dict[str, str] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """A job ready for training.

    learner: a module whose forward takes a batch and returns the summed loss; its `model` is saved.
    unit: what the loss is summed over and speed is measured in; count: the number of units in a batch.
    metric: the default metric that defines the best model.
    validate: computes metrics on a device; the model is in evaluation mode.
    save: writes the current weights as a model folder.
    row_width: if examples are pairs that may be packed into rows, the width of a row.
    """

    learner: Learner
    train: Examples
    unit: str
    count: Callable[[Arrays], int]
    metric: str
    validate: Callable[[torch.device], ValidationResult]
    save: Callable[[Path], object]
    row_width: int | None = None


def evaluation_batches(
    examples: Examples, device: torch.device, batch: int
) -> Iterator[tuple[NDArray[np.int64], Arrays, dict[str, Tensor]]]:
    """Every example once, in batches: row numbers, arrays, and the same as tensors."""
    for planned in Batches(data=examples, tokens=batch).epoch():
        arrays = examples.batch(planned.rows, epoch=0)
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        yield planned.rows, arrays, tensors


def mean_loss(learner: Learner, examples: Examples, device: torch.device, *, batch: int) -> float:
    """The loss per label over all examples, without smoothing or dropout.

    `forward` is called uncompiled: evaluation shapes vary too much.
    """
    total, count = 0.0, 0
    for _, arrays, tensors in evaluation_batches(examples, device, batch):
        total += float(learner.forward(**tensors))
        count += count_labels(arrays)
    return total / count if count else math.nan


def classification_metrics(
    learner: LabelLearner, examples: Examples, device: torch.device, *, classes: Sequence[str], batch: int
) -> tuple[float, ConfusionMatrix, NDArray[np.int64]]:
    """The loss per example, the confusion counts, and the predicted class of each row."""
    total, counts, predicted = 0.0, ConfusionMatrix(classes), np.zeros(len(examples), np.int64)
    for rows, arrays, tensors in evaluation_batches(examples, device, batch):
        logits = learner.logits(tensors["inputs"])
        total += float(cross_entropy(logits, tensors["labels"]))
        predicted[rows] = logits.argmax(-1).cpu().numpy()
        counts.add(predicted=predicted[rows], true=arrays["labels"])
    return total / len(examples), counts, predicted


def forecast_metrics(
    learner: SeriesLearner, windows: Windows, device: torch.device, *, batch: int
) -> tuple[float, ForecastScores]:
    """The loss per value, and the errors over all windows, in scaled units."""
    total, values, errors = 0.0, 0, ForecastErrors()
    for _, arrays, tensors in evaluation_batches(windows, device, batch):
        forecast = learner.model(tensors["past"])
        total += float(learner.loss(forecast, tensors["future"]))
        values += arrays["future"].size
        errors.add(point_forecast(forecast), tensors["future"])
    return total / values, errors.scores()

"""The interface between a job and the trainer, and functions that compute validation metrics."""

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
    """A sample of a validation: input, expected output and actual output."""

    source: str
    expected: str
    got: str


@dataclass(frozen=True, kw_only=True)
class ValidationResult:
    """Metrics and samples of a validation.

    signatures: how a metric was computed, e.g. sacreBLEU's signature.
    tables: tables of metrics by name, e.g. one row per class; a row maps columns to values.
    """

    metrics: dict[str, float]
    samples: Sequence[Sample] = ()
    signatures: dict[str, str] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """Everything that the trainer needs to train a job.

    learner: a module whose forward takes a batch and returns the summed loss; its `model` is saved.
    unit: what the loss is summed over, e.g. tokens. count: returns the number of units in a batch.
    metric: default metric that selects the best model.
    validate: computes metrics on a device, with the model in evaluation mode.
    save: writes the current weights as a model folder.
    row_width: width of a packed row, if the examples are pairs that can be packed.
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
    """Yield batches that cover each example once: row numbers, arrays, and the arrays as tensors.

    batch: maximum number of tokens, images or windows in a batch.
    """
    for planned in Batches(data=examples, tokens=batch).epoch():
        arrays = examples.batch(planned.rows, epoch=0)
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        yield planned.rows, arrays, tensors


def mean_loss(learner: Learner, examples: Examples, device: torch.device, *, batch: int) -> float:
    """Return the mean loss per label over all examples. The learner must be in evaluation mode.

    `forward` is called uncompiled, since the shapes of evaluation batches vary too much.
    """
    total, count = 0.0, 0
    for _, arrays, tensors in evaluation_batches(examples, device, batch):
        total += float(learner.forward(**tensors))
        count += count_labels(arrays)
    return total / count if count else math.nan


def classification_metrics(
    learner: LabelLearner, examples: Examples, device: torch.device, *, classes: Sequence[str], batch: int
) -> tuple[float, ConfusionMatrix, NDArray[np.int64]]:
    """Return the mean loss per example, the confusion matrix, and the predicted class of each row."""
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
    """Return the mean loss per value, and the errors over all windows, in standardized units."""
    total, values, errors = 0.0, 0, ForecastErrors()
    for _, arrays, tensors in evaluation_batches(windows, device, batch):
        forecast = learner.model(tensors["past"])
        total += float(learner.loss(forecast, tensors["future"]))
        values += arrays["future"].size
        errors.add(point_forecast(forecast), tensors["future"])
    return total / values, errors.scores()

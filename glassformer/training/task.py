"""What the loop knows of a job: what to learn from, how wrong and how good the model is, how to save it."""

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
from glassformer.metrics.labels import Labels
from glassformer.training.learner import LabelLearner, Learner, SeriesLearner, point, tokens_learned
from glassformer.training.logging.run_log import Sample
from glassformer.training.losses import cross_entropy

LOWER = ("loss", "perplexity", "bits", "mse", "mae")  # how measures begin that are better when lower


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How good the model is, in numbers and examples; `signatures` say how a number was reckoned.

    tables: figures that stand in rows, as one for each class, by the table's name; a row has named columns.
    """

    metrics: dict[str, float]
    samples: Sequence[Sample] = ()
    signatures: dict[str, str] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job made ready.

    learner: a module whose forward takes a batch and gives the summed loss; its `model` is what is saved.
    units: what the loss is summed over and speed counted in; count: how many a batch has.
    metric: what is best; better: whether it is so when "higher" or "lower".
    validate: on a device, the model being in evaluation mode.
    save: writes the model folder of the weights as they are.
    row_width: where examples are pairs that may be packed into rows, the width of a row.
    """

    learner: Learner
    train: Examples
    units: str
    count: Callable[[Arrays], int]
    metric: str
    better: str
    validate: Callable[[torch.device], Validation]
    save: Callable[[Path], object]
    row_width: int | None = None


def each_once(
    examples: Examples, device: torch.device, batch: int
) -> Iterator[tuple[NDArray[np.int64], Arrays, dict[str, Tensor]]]:
    """All examples in batches: their rows, their arrays, and the same as tensors."""
    for portion in Batches(data=examples, tokens=batch).epoch():
        arrays = examples.batch(portion.rows, epoch=0)
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        yield portion.rows, arrays, tensors


def mean_loss(learner: Learner, examples: Examples, device: torch.device, *, batch: int) -> float:
    """The loss per label over all examples, each seen once, without smoothing or dropout.

    `forward` is called as written: evaluation shapes are too various to compile for.
    """
    total, count = 0.0, 0
    for _, arrays, tensors in each_once(examples, device, batch):
        total += float(learner.forward(**tensors))
        count += tokens_learned(arrays)
    return total / count if count else math.nan


def label_figures(
    learner: LabelLearner, examples: Examples, device: torch.device, *, classes: Sequence[str], batch: int
) -> tuple[float, Labels, NDArray[np.int64]]:
    """The loss per example, the counts of right and wrong, and the class said of each row."""
    total, found, said = 0.0, Labels(classes), np.zeros(len(examples), np.int64)
    for rows, arrays, tensors in each_once(examples, device, batch):
        scores = learner.scores(tensors["inputs"])
        total += float(cross_entropy(scores, tensors["labels"]))
        said[rows] = scores.argmax(-1).cpu().numpy()
        found.add(said=said[rows], true=arrays["labels"])
    return total / len(examples), found, said


def forecast_figures(
    learner: SeriesLearner, windows: Windows, device: torch.device, *, batch: int
) -> tuple[float, ForecastScores]:
    """The loss per value, and the errors over all windows, of scaled values."""
    total, values, errors = 0.0, 0, ForecastErrors(std=windows.scaler.std)
    for _, arrays, tensors in each_once(windows, device, batch):
        told = learner.model(tensors["past"])
        total += float(learner.wrong(told, tensors["future"]))
        values += arrays["future"].size
        errors.add(point(told), tensors["future"])
    return total / values, errors.scores()

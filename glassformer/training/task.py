"""Training tasks: what the trainer needs to know, and functions that compute validation metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from glassformer.data import Batches
from glassformer.data.examples import Arrays, Examples
from glassformer.data.windows import Windows
from glassformer.errors import InvalidValueError
from glassformer.metrics.forecast import ForecastErrors, ForecastScores
from glassformer.training.datasets import DatasetOptions, EvaluationBatches
from glassformer.training.learner import Learner, SeriesLearner, count_labels, point_forecast
from glassformer.training.optimizer import build_optimizer
from glassformer.training.recipe import BatchLimits, TrainingOptions

LossFunction = Callable[[Any, Any], "Tensor | tuple[Tensor, float | Tensor]"]
MetricsFunction = Callable[[Any, EvaluationBatches], Mapping[str, float]]
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
class SampleImage:
    """A picture of a validation, e.g. a grid of images that the model draws.

    name: a short word for its file name. caption: what it shows. pixels: (H, W) or (H, W, 3).
    """

    name: str
    caption: str
    pixels: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class ValidationResult:
    """Metrics and samples of a validation.

    images: pictures for the folder `samples` of the run and for its report.
    signatures: how a metric was computed, e.g. sacreBLEU's signature.
    tables: tables of metrics by name, e.g. one row per class; a row maps columns to values.
    constant: the model still gives the same answer for every example; early stopping waits for it to change.
    """

    metrics: dict[str, float]
    samples: Sequence[Sample] = ()
    images: Sequence[SampleImage] = ()
    constant: bool = False
    signatures: dict[str, str] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class TrainingTask:
    """What to train a module for: the loss of a batch, and the metrics of a validation.

    Subclass it and override `loss`, and for other metrics than the mean loss also `evaluate`; then pass it to
    `Trainer`. `model` is always your module itself, also under DDP, FSDP and torch.compile.

    unit: what the loss is averaged over, for the log.
    metric: name of the metric that selects the best model; by default `loss`, else the first one.

    >>> class Regression(TrainingTask):
    ...     def loss(self, model, batch):
    ...         inputs, targets = batch
    ...         return torch.nn.functional.mse_loss(model(inputs), targets)
    """

    unit: str = "examples"
    metric: str | None = None

    def loss(self, model: Any, batch: Any) -> Tensor | tuple[Tensor, float | Tensor]:
        """Return the mean loss of a batch, or its summed loss and the count to divide it by.

        A mean loss is weighted by the number of examples. Return (sum, count) if the loss is a mean over
        something else, e.g. over tokens without padding: then accumulated micro-batches and several devices
        give exactly the gradient of one big batch.

        model: the module that is trained.
        batch: what `collate_fn` returned, with its tensors on the device.
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss(model, batch)")

    def evaluate(self, model: Any, batches: EvaluationBatches) -> Mapping[str, float]:
        """Return the metrics of a validation, by name; by default the mean loss.

        model: the module in evaluation mode, without gradients, with the EMA weights if there are any.
        batches: the batches of the evaluation dataset, each example once; `batches.examples` is the number
            of examples of the current batch. They can be iterated several times.
        """
        total = count = 0.0
        for batch in batches:
            loss, units = summed_loss(self.loss(model, batch), batches.examples)
            total += float(loss)
            count += float(units)
        return {"loss": total / count if count else math.nan}

    def optimizer(self, parameters: Mapping[str, nn.Parameter], options: TrainingOptions) -> Optimizer:
        """Return the optimizer; by default the AdamW or Adam that the options describe.

        The learning rate of each parameter group is multiplied by the schedule.

        parameters: the trainable parameters by name.
        options: the options of the training.
        """
        return build_optimizer(parameters, options)


class FunctionTask(TrainingTask):
    """A task from functions: `loss(model, batch)`, and `compute_metrics(model, batches)` for more metrics."""

    def __init__(self, loss: LossFunction, compute_metrics: MetricsFunction | None = None) -> None:
        self._loss, self._compute_metrics = loss, compute_metrics

    def loss(self, model: Any, batch: Any) -> Tensor | tuple[Tensor, float | Tensor]:
        return self._loss(model, batch)

    def evaluate(self, model: Any, batches: EvaluationBatches) -> Mapping[str, float]:
        metrics = super().evaluate(model, batches)
        return {**metrics, **self._compute_metrics(model, batches)} if self._compute_metrics else metrics


def summed_loss(loss: Tensor | tuple[Tensor, float | Tensor], examples: int) -> tuple[Tensor, float | Tensor]:
    """Return the summed loss and its count for the result of `TrainingTask.loss`."""
    is_sum = isinstance(loss, tuple) and len(loss) == 2
    total = loss[0] if is_sum else loss
    expected = "the mean loss as a scalar tensor, or its sum and the count"
    if not isinstance(total, Tensor):
        raise InvalidValueError("the loss", f"a {type(total).__name__}", expected)
    if total.dim():
        raise InvalidValueError("the loss", f"a tensor of shape {tuple(total.shape)}", expected)
    if torch.is_grad_enabled() and not total.requires_grad:
        raise InvalidValueError("the loss", "a tensor without gradient", "a function of the parameters")
    return (total, loss[1]) if is_sum else (total * examples, examples)


class TaskLearner(Learner):
    """The learner of a `TrainingTask`: `forward` returns the summed loss of a batch and its count."""

    def __init__(self, model: nn.Module, task: TrainingTask) -> None:
        super().__init__(model)
        self.task = task

    def forward(self, batch: Any, examples: int) -> tuple[Tensor, float | Tensor]:
        return summed_loss(self.task.loss(self.model, batch), examples)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Everything that the training loop needs, from a job or from a `TrainingTask`.

    learner: a module whose forward takes a batch and returns the summed loss; its `model` is saved.
    train: the training examples, or a dataset with its batch settings.
    unit: what the loss is summed over, e.g. tokens. count: returns the number of units in a batch; None if
    the learner returns it with the loss.
    metric: default metric that selects the best model; None is the loss, else the first metric.
    validate: computes metrics on a device, with the model in evaluation mode; None if there is nothing to
    validate on.
    save: writes the current weights as a model folder.
    load: reads the weights of a model folder by their names in the module, to put the final ones into it.
    row_width: width of a packed row, if the examples are pairs that can be packed.
    optimizer: builds the optimizer from the parameters and the options.
    """

    learner: Learner
    train: Examples | DatasetOptions
    unit: str
    count: Callable[[Arrays], int] | None
    metric: str | None
    validate: Callable[[torch.device], ValidationResult] | None
    save: Callable[[Path], object]
    load: Callable[[Path], Mapping[str, Tensor]] | None = None
    row_width: int | None = None
    optimizer: Callable[[Mapping[str, nn.Parameter], TrainingOptions], Optimizer] = build_optimizer


def evaluation_batches(
    examples: Examples, device: torch.device, batch: BatchLimits
) -> Iterator[tuple[NDArray[np.int64], Arrays, dict[str, Tensor]]]:
    """Yield batches that cover each example once: row numbers, arrays, and the arrays as tensors."""
    for planned in Batches(data=examples, rows=batch.batch_size, tokens=batch.batch_tokens).epoch():
        arrays = examples.batch(planned.rows, epoch=0)
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        yield planned.rows, arrays, tensors


def mean_loss(learner: Learner, examples: Examples, device: torch.device, *, batch: BatchLimits) -> float:
    """Return the mean loss per label over all examples. The learner must be in evaluation mode.

    `forward` is called uncompiled, since the shapes of evaluation batches vary too much.
    """
    total, count = 0.0, 0
    for _, arrays, tensors in evaluation_batches(examples, device, batch):
        total += float(learner.forward(**tensors))
        count += count_labels(arrays)
    return total / count if count else math.nan


def forecast_metrics(
    learner: SeriesLearner, windows: Windows, device: torch.device, *, batch: BatchLimits
) -> tuple[float, ForecastScores]:
    """Return the mean loss per value, and the errors over all windows, in standardized units."""
    total, values, errors = 0.0, 0, ForecastErrors()
    for _, arrays, tensors in evaluation_batches(windows, device, batch):
        forecast = learner.forecast(tensors["past"], tensors.get("covariates"))
        total += float(learner.loss(forecast, tensors["future"]))
        values += arrays["future"].size
        errors.add(point_forecast(forecast), tensors["future"])
    return total / values, errors.scores()

"""What classifiers of texts, images and series share: head, loss, metrics and validation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glassformer.data.sources import ProblemType
from glassformer.errors import InvalidValueError, UnknownNameError
from glassformer.metrics.labels import ConfusionMatrix, multi_label_scores
from glassformer.metrics.regression import regression_scores
from glassformer.training.job import Data, Job
from glassformer.training.learner import LabelLearner, count_examples
from glassformer.training.task import Sample, ValidationResult, evaluation_batches

SKEWED_RATIO = 4  # of the counts of the most and the least frequent class


class ClassifyJob(Job[Data]):
    """Train a classifier or regressor.

    classes: names of the classes; of a regressor, the name of its target.
    """

    classes: Sequence[str] = ()
    problem_type: ProblemType = "single_label_classification"
    count = staticmethod(count_examples)

    @property
    def multi_label(self) -> bool:
        return self.problem_type == "multi_label_classification"

    @property
    def regression(self) -> bool:
        return self.problem_type == "regression"

    @property
    @abstractmethod
    def label_counts(self) -> list[int]:
        """The number of training examples of each class."""

    @property
    def skewed(self) -> bool:
        """Whether one class is several times as frequent as another, which makes accuracy misleading."""
        return False

    @property
    def metric(self) -> str:
        return "mse" if self.regression else "f1" if self.multi_label or self.skewed else "accuracy"

    @property
    def learner_options(self) -> dict[str, Any]:
        """Options of every learner of a classifier."""
        training = self.recipe.training
        return {
            "label_smoothing": training.label_smoothing or 0.0,
            "r_drop": training.r_drop,
            "class_weights": self.class_weights(),
        }

    def class_weights(self) -> list[float] | None:
        """Return the weight of each class; the mean weight of the training examples is 1."""
        option = self.recipe.training.class_weights
        if option is None or option == "none":
            return None
        counts, total = self.label_counts, len(self.train_examples())
        if option == "balanced":
            if self.multi_label:
                return [(total - count) / max(1, count) for count in counts]
            return [total / (len(counts) * max(1, count)) for count in counts]
        if isinstance(option, Mapping):
            named = {str(name): float(weight) for name, weight in option.items()}
            for name in named:
                if name not in self.classes:
                    raise UnknownNameError("class", name, self.classes, where="training.class_weights")
            weights = [named.get(name, 1.0) for name in self.classes]
        else:
            assert isinstance(option, tuple)
            weights = list(option)
        if len(weights) != len(self.classes):
            expected = f"{len(self.classes)} weights, one per class"
            raise InvalidValueError("training.class_weights", weights, expected)
        if self.multi_label:
            return weights
        mean = sum(weight * count for weight, count in zip(weights, counts, strict=True)) / max(1, total)
        return [weight / mean for weight in weights]

    @abstractmethod
    def valid_samples(self, valid: Any) -> list[tuple[str, str]]:
        """Return the input and the label of the first validation examples as text, to log predictions."""

    def validate(self, learner: LabelLearner, valid: Any, device: torch.device) -> ValidationResult:
        """Compute the metrics of the problem type."""
        logits, total = np.zeros((len(valid), len(self.classes)), np.float32), 0.0
        labels: Any = np.zeros(len(valid), np.float32 if self.regression else np.int64)
        if self.multi_label:
            labels = np.zeros_like(logits)
        for rows, arrays, tensors in evaluation_batches(valid, device, self.recipe.training.batch_limits()):
            output = learner.logits(tensors["inputs"], tensors.get("types"))
            total += float(learner.loss(output, tensors["labels"]))
            logits[rows], labels[rows] = output.float().cpu().numpy(), arrays["labels"]
        metrics, tables, constant = {"loss": total / len(valid)}, dict[str, Any](), False
        known = self.valid_samples(valid)
        if self.regression:
            metrics |= regression_scores(logits[:, 0], labels)._asdict()
            outputs = [f"{value:.4f}" for value in logits[: len(known), 0]]
        elif self.multi_label:
            scores = multi_label_scores(self.classes, logits > 0, labels)
            metrics |= {"accuracy": scores.accuracy, "f1": scores.macro_f1, "micro_f1": scores.micro_f1}
            tables["classes"] = [row._asdict() for row in scores.table]
            names = [[self.classes[int(n)] for n in np.flatnonzero(row > 0)] for row in logits[: len(known)]]
            outputs = [" | ".join(row) for row in names]
        else:
            matrix, predicted = ConfusionMatrix(self.classes), logits.argmax(-1)
            matrix.add(predicted=predicted, true=labels)
            constant = self.skewed and len(set(predicted.tolist())) == 1
            metrics |= {"accuracy": matrix.accuracy, "f1": matrix.macro_f1}
            tables["classes"] = [row._asdict() for row in matrix.table()]
            outputs = [self.classes[n] for n in predicted[: len(known)]]
        samples = [
            Sample(source=source, expected=label, got=output)
            for (source, label), output in zip(known, outputs, strict=True)
        ]
        return ValidationResult(metrics=metrics, samples=samples, tables=tables, constant=constant)

"""What classification jobs are composed of: the class names in the model, and the training task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from glassformer.bundle import Bundle, save
from glassformer.data.examples import Examples, class_names
from glassformer.families.family import named_labels
from glassformer.families.registry import families, family_for
from glassformer.families.sidecars import JobInfo
from glassformer.training.learner import LabelLearner, count_labels
from glassformer.training.recipe import TrainingOptions
from glassformer.training.task import Sample, Task, Validation, classification_metrics


def sort_labels(labels: Sequence[str]) -> list[str]:
    """Labels in order: numbers by value, words alphabetically.

    >>> sort_labels(["10", "9"]), sort_labels(["sad", "10", "9"])
    (['9', '10'], ['10', '9', 'sad'])
    """
    if all(label.lstrip("-").isdecimal() for label in labels):
        return sorted(labels, key=int)
    return sorted(labels)


def classes_of(bundle: Bundle) -> list[str] | None:
    """The class names of a saved classifier; None if it has none."""
    return class_names(bundle.job.classes, bundle.config)


def with_classes(bundle: Bundle, job: str, classes: Sequence[str], **info: Any) -> Bundle:
    """The bundle with its class names in the config and in `job.json`."""
    family = families()[bundle.family] if bundle.family else family_for(bundle.spec)
    config: dict[str, Any] = {}
    if family is not None:
        config = {**(bundle.config or family.to_config(bundle.spec)), **named_labels(classes)}
    job_info = JobInfo.from_dict({"job": job, "classes": list(classes), **info})
    return replace(bundle, family=family.name if family else None, config=config, job=job_info)


def classification_task(
    bundle: Bundle,
    learner: LabelLearner,
    *,
    train: Examples,
    valid: Examples,
    sample_inputs: Sequence[str],
    sample_labels: Sequence[int],
    classes: Sequence[str],
    unit: str,
    training: TrainingOptions,
) -> Task:
    """The training task of a classifier. The samples describe the first validation examples."""

    def validate(device: torch.device) -> Validation:
        loss, found, predicted = classification_metrics(
            learner, valid, device, classes=classes, batch=training.batch or 4096
        )
        return Validation(
            metrics={"loss": loss, "accuracy": found.accuracy, "f1": found.macro_f1},
            samples=[
                Sample(source=text, expected=classes[label], got=classes[predicted[n]])
                for n, (text, label) in enumerate(zip(sample_inputs, sample_labels, strict=True))
            ],
            tables={"classes": [row._asdict() for row in found.table()]},
        )

    return Task(
        learner=learner,
        train=train,
        unit=unit,
        count=count_labels,
        metric="accuracy",
        validate=validate,
        save=lambda path: save(bundle, path),
    )

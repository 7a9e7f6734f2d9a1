"""What the jobs that tell classes apart share: the classes' names in the model, and how it is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from glassformer.bundle import Bundle, save
from glassformer.data.class_names import class_names
from glassformer.data.examples import Examples
from glassformer.errors import GlassformerError
from glassformer.families.family import named_labels
from glassformer.families.registry import families, family_for
from glassformer.families.sidecars import JobInfo
from glassformer.training.learner import LabelLearner, tokens_learned
from glassformer.training.logging.run_log import Sample
from glassformer.training.recipe import Training
from glassformer.training.task import Task, Validation, label_figures


def in_order(labels: Sequence[str]) -> list[str]:
    """Labels as people list them: numbers by size, words by letters.

    >>> in_order(["10", "9"]), in_order(["sad", "10", "9"])
    (['9', '10'], ['10', '9', 'sad'])
    """
    if all(label.lstrip("-").isdecimal() for label in labels):
        return sorted(labels, key=int)
    return sorted(labels)


def classes_of(bundle: Bundle) -> list[str] | None:
    """The names of a saved classifier's classes; None where it has none."""
    return class_names(bundle.job.classes, bundle.config)


def named(bundle: Bundle, job: str, classes: Sequence[str], **about: Any) -> Bundle:
    """The bundle with its classes' names where whoever loads it looks for them."""
    family = families()[bundle.family] if bundle.family else family_for(bundle.spec)
    config: dict[str, Any] = {}
    if family is not None:
        config = {**(bundle.config or family.to_config(bundle.spec)), **named_labels(classes)}
    info = JobInfo.from_dict({"job": job, "classes": list(classes), **about})
    return replace(bundle, family=family.name if family else None, config=config, job=info)


def refuse_one_class(classes: Sequence[str], where: str) -> None:
    """A sentence where there is nothing to tell apart."""
    if len(classes) < 2:
        raise GlassformerError(f"{where} has only the label '{classes[0]}'; telling apart takes two")


def label_task(
    bundle: Bundle,
    learner: LabelLearner,
    *,
    train: Examples,
    valid: Examples,
    true: Sequence[int],
    shown: Sequence[str],
    classes: Sequence[str],
    units: str,
    words: Training,
) -> Task:
    """The task of a classifier. `shown` and `true` tell the first examples of `valid` to people."""

    def validate(device: torch.device) -> Validation:
        batch = words.batch or 4096
        loss, found, said = label_figures(learner, valid, device, classes=classes, batch=batch)
        return Validation(
            metrics={"loss": loss, "accuracy": found.accuracy, "f1": found.macro_f1},
            samples=[
                Sample(source=text, expected=classes[label], got=classes[said[n]])
                for n, (text, label) in enumerate(zip(shown, true, strict=True))
            ],
            tables={"classes": [row._asdict() for row in found.table()]},
        )

    return Task(
        learner=learner,
        train=train,
        units=units,
        count=tokens_learned,
        metric="accuracy",
        better="higher",
        validate=validate,
        save=lambda path: save(bundle, path),
    )

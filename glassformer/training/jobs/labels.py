"""The class names of a model: their order, and where a saved model keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glassformer.bundle import Bundle
from glassformer.data.examples import class_names
from glassformer.families.family import named_label_config
from glassformer.families.registry import families, family_of_spec
from glassformer.families.sidecars import JobInfo


def sort_labels(labels: Sequence[str]) -> list[str]:
    """Sort labels: numbers by value, other text alphabetically.

    >>> sort_labels(["10", "9"]), sort_labels(["sad", "10", "9"])
    (['9', '10'], ['10', '9', 'sad'])
    """
    if all(label.lstrip("-").isdecimal() for label in labels):
        return sorted(labels, key=int)
    return sorted(labels)


def classes_of(bundle: Bundle) -> list[str] | None:
    """Return the class names of a saved classifier; None if it has none."""
    return class_names(bundle.job.classes, bundle.config)


def with_classes(
    bundle: Bundle,
    job: str,
    classes: Sequence[str] = (),
    *,
    config: Mapping[str, Any] | None = None,
    **info: Any,
) -> Bundle:
    """Return the bundle with class names in its config and `job.json`.

    config: more keys of the config. info: more entries of `job.json`.
    """
    family = families()[bundle.family] if bundle.family else family_of_spec(bundle.spec)
    full: dict[str, Any] = {}
    if family is not None:
        names = named_label_config(classes) if classes else {}
        full = {**(bundle.config or family.to_config(bundle.spec)), **names, **(config or {})}
    job_info = JobInfo(name=job, classes=tuple(classes) or None, **info)
    return replace(bundle, family=family.name if family else None, config=full, job=job_info)

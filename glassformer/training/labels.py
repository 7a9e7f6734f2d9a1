"""The class names of a model: their order, and where a saved model keeps them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from glassformer.bundle import Bundle
from glassformer.data.examples import class_names
from glassformer.errors import InvalidValueError
from glassformer.families.keys import named_label_config
from glassformer.families.registry import families, family_of_spec
from glassformer.families.sidecars import JobInfo
from glassformer.messages import quantity


def sort_labels(labels: Sequence[str]) -> list[str]:
    """Sort labels: numbers by value, other text alphabetically.

    >>> sort_labels(["10", "9"]), sort_labels(["sad", "10", "9"])
    (['9', '10'], ['10', '9', 'sad'])
    """
    if all(label.lstrip("-").isdecimal() for label in labels):
        return sorted(labels, key=int)
    return sorted(labels)


def classes_of(bundle: Bundle | None) -> list[str] | None:
    """Return the class names of a saved classifier; None if it has none."""
    return None if bundle is None else class_names(bundle.job.classes, bundle.config)


def order_classes(
    labels: Collection[str],
    base: Bundle | None,
    *,
    minimum: int = 2,
    sort: Callable[[Sequence[str]], list[str]] = sort_labels,
) -> list[str]:
    """Return the labels in the order of the base model if it has the same, else sorted.

    minimum: number of labels; fewer raise an error.
    """
    known = classes_of(base)
    classes = sort(list(labels)) if known is None or set(known) != set(labels) else known
    if len(classes) < minimum:
        raise InvalidValueError("the set of labels", classes, f"at least {quantity(minimum, 'label')}")
    return classes


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

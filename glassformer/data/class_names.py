"""The class names of a model, from job.json or config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.errors import InvalidValueError


def class_names(classes: Sequence[str] | None, config: Mapping[str, Any], count: int = 0) -> list[str] | None:
    """By class number: those of job.json, else of config.json; None if neither has any.

    count: how many classes there are, if known. A class without a name gets one from its number.

    >>> class_names(None, {"id2label": {"1": "glad", "0": "sad"}}, 3)
    ['sad', 'glad', 'LABEL_2']
    """
    if classes is not None:
        return list(classes)
    try:
        names = {int(number): str(name) for number, name in (config.get("id2label") or {}).items()}
    except (AttributeError, ValueError):
        raise InvalidValueError("id2label", config["id2label"], "a name for each class number") from None
    if not names:
        return None
    return [names.get(n, f"LABEL_{n}") for n in range(max(count, max(names) + 1))]

"""The names of the classes that a model tells apart, as the files beside it give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.errors import GlassformerError


def class_names(classes: Sequence[str] | None, config: Mapping[str, Any], count: int = 0) -> list[str] | None:
    """By class number: what job.json says, else what config.json does; None where neither names any.

    count: how many there are, where that is known. A number without a name is called by it.

    >>> class_names(None, {"id2label": {"1": "glad", "0": "sad"}}, 3)
    ['sad', 'glad', 'LABEL_2']
    """
    if classes is not None:
        return list(classes)
    try:
        named = {int(number): str(name) for number, name in (config.get("id2label") or {}).items()}
    except (AttributeError, ValueError):
        raise GlassformerError(
            f"the config's id2label is {config['id2label']!r:.60}; it must give a name to each label's number"
        ) from None
    if not named:
        return None
    return [named.get(n, f"LABEL_{n}") for n in range(max(count, max(named) + 1))]

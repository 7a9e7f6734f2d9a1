"""Parse JSON text of unknown origin."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse JSON like `json.loads`, but raise ValueError also for text that is nested too deeply.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None

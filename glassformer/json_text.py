"""JSON text of unknown origin, and plain values: JSON values, and one item or several."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from glassformer.errors import FileProblemError


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


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileProblemError(path, f"is not valid JSON ({error})") from None


def read_object(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """Read a JSON object from a file. missing_ok: return {} if the file does not exist."""
    content = {} if missing_ok and not path.is_file() else read_json(path)
    if not isinstance(content, dict):
        raise FileProblemError(path, f"is a JSON {type(content).__name__}, not an object")
    return content


def convert_json(content: Any, convert: Callable[[Any], Any]) -> Any:
    """Apply `convert` to a value, then to the values in it.

    >>> convert_json({"a": (1, math.nan)}, lambda value: None if is_not_finite(value) else value)
    {'a': [1, None]}
    """
    content = convert(content)
    if isinstance(content, Mapping):
        return {str(key): convert_json(value, convert) for key, value in content.items()}
    return (
        [convert_json(value, convert) for value in content] if isinstance(content, list | tuple) else content
    )


def is_not_finite(value: Any) -> bool:
    """Whether a value is infinity or NaN, which JSON lacks."""
    return isinstance(value, float) and not math.isfinite(value)


def as_list(value: Any) -> list[Any]:
    """Return the items of an iterable, a single value as a list, or [] for None.

    >>> as_list("one"), as_list(("one", "two")), as_list(None)
    (['one'], ['one', 'two'], [])
    """
    single = isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)
    return [] if value is None else [value] if single else list(value)

"""Settings as closed schemas: a frozen dataclass read from plain data, where every slip is one sentence."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from glassformer.core.schema import choices, fits, named, nearest
from glassformer.errors import GlassformerError

Settings = TypeVar("Settings")


def read_settings(kind: type[Settings], data: Any, where: str) -> Settings:
    """The settings a mapping holds; an unknown key names the nearest known one.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Tea:
    ...     cups: int = 1
    >>> read_settings(Tea, {"cups": 2}, "tea")
    Tea(cups=2)
    """
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise GlassformerError(f"{where} must be a section of keys and values; got {data!r:.60}")
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            raise GlassformerError(f"{where} has no setting '{key}'{nearest(str(key), hints)}")
        values[key] = fitted(value, hints[key], f"{where}.{key}")
    try:
        return kind(**values)
    except TypeError as error:
        missing = str(error).split(":")[-1].strip()
        raise GlassformerError(f"{where} lacks {missing}") from None


def fitted(value: Any, hint: Any, where: str) -> Any:
    """A value as its field declares it: lists become tuples, whole numbers pass for real ones."""
    given = tuple(value) if isinstance(value, list) else value
    many = [choice for choice in choices(hint) if typing.get_origin(choice) is tuple]
    one = [choice for choice in choices(hint) if typing.get_origin(choice) is not tuple]
    if many and not isinstance(given, tuple) and given is not None and not _any_fits(given, one):
        given = (given,)  # one file is a list of one
    if isinstance(given, bool):
        given = _word(given, one)
    if isinstance(given, str) and float in one and not _any_fits(given, one):
        given = _number(given)
    if isinstance(given, tuple) and many:
        inner = typing.get_args(many[0])[0]
        given = tuple(fitted(item, inner, where) for item in given)
    if not _any_fits(given, (*one, *many)):
        raise GlassformerError(f"{where} cannot be {value!r:.60}; it takes {named(hint)}")
    if isinstance(given, int) and not isinstance(given, bool) and float in one and int not in one:
        return float(given)
    return given


def _any_fits(value: Any, hints: typing.Iterable[Any]) -> bool:
    return any(fits(value, hint) for hint in hints)


def _word(given: bool, hints: list[Any]) -> Any:
    """`off` and `on`, which YAML 1.1 takes for no and yes, where a field has these words."""
    word = "on" if given else "off"
    return word if not _any_fits(given, hints) and _any_fits(word, hints) else given


def _number(text: str) -> Any:
    """1e-3, which YAML 1.1 takes for text because it has no dot."""
    try:
        return float(text)
    except ValueError:
        return text

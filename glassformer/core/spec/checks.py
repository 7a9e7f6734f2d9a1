"""What every kind of spec checks of itself: a typing mistake is a sentence here, not a puzzle later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from math import isfinite
from typing import Any, Literal, get_args, get_origin, get_type_hints

from glassformer.errors import InvalidValueError

# fields that count something: where they are given, there is at least one
SIZES = frozenset(
    """
    vocab_size types max_len original_max_len d_model num_heads num_kv_heads head_dim value_dim window width
    d_ff channels patch_length context_length image_size patch_size stride num_labels pooler_dim
    prediction_length num_targets
    """.split()
)
# roots are taken of these, or quotients by them
POSITIVE = frozenset("eps base factor low_freq_factor high_freq_factor".split())
NOT_NEGATIVE = frozenset("prefix offset std".split())

MOST = 2**31 - 1  # more of anything is a slip of the pen, and would only fail later and less clearly
MOST_CHANNELS = 2**16  # no weight need have their number, so nothing else would bound it


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return _whole(value) or (isinstance(value, float) and isfinite(value))


class Part:
    """A part of a model as data. When it is made, its words and numbers are looked at.

    A number is of the declared kind and finite; a size or what is divided by is above 0.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            wanted = self._wanted(name, value)
            if wanted is not None:
                raise InvalidValueError(f"{type(self).__name__}.{name}", value, wanted)

    def _wanted(self, name: str, value: Any) -> str | None:
        """What a field must be, where it is not."""
        if value is None:
            return None
        given = value if isinstance(value, tuple) else (value,)
        if name in SIZES:
            return wanted_size(given, MOST_CHANNELS if name == "channels" else MOST)
        words, kind = _declared(type(self), name)  # type: ignore[arg-type]
        if kind is not None:
            return _wanted_number(name, given, kind)
        if words and not all(word in words for word in given):
            return f"one of {', '.join(map(str, words))}"
        return None


def wanted_size(given: Iterable[Any], most: int = MOST) -> str | None:
    """What sizes must be, where they are not."""
    sound = all(_whole(size) and 0 < size <= most for size in given)
    return None if sound else f"a whole number from 1 to {most}"


def _wanted_number(name: str, given: tuple[Any, ...], kind: type) -> str | None:
    """What numbers under a name must be, where they are not."""
    told = "a whole number" if kind is int else "a finite number"
    if not all(
        _whole(number) and abs(number) <= MOST if kind is int else _finite(number) for number in given
    ):
        return told
    if name == "dropout" and not all(0 <= number < 1 for number in given):
        return "at least 0 and less than 1"
    if name in POSITIVE and not all(number > 0 for number in given):
        return f"{told} above 0"
    if name in NOT_NEGATIVE and not all(number >= 0 for number in given):
        return f"{told}, 0 or more"
    return None


@cache
def _declared(kind: type[Part], name: str) -> tuple[tuple[Any, ...], type | None]:
    """The words that a field may hold, where its type lists them, and the kind of number that it holds."""

    def inner(hint: Any) -> Iterator[Any]:
        if get_origin(hint) is Literal or not get_args(hint):
            yield hint
        for part in get_args(hint) if get_origin(hint) is not Literal else ():
            yield from inner(part)

    hints = list(inner(get_type_hints(kind)[name]))
    words = tuple(word for hint in hints if get_origin(hint) is Literal for word in get_args(hint))
    return words, float if float in hints else int if int in hints else None

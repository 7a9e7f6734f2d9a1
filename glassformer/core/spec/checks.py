"""What every kind of spec checks of itself: a typing mistake is a sentence here, not a puzzle later."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from glassformer.core.errors import GlassformerError

# fields that count something: where they are given, there is at least one
SIZES = frozenset(
    """
    vocab_size types max_len d_model num_heads num_kv_heads head_dim value_dim window d_ff channels
    patch_length context_length image_size patch_size stride num_labels pooler_dim prediction_length
    num_targets
    """.split()
)


MOST = 2**31 - 1  # more of anything is a slip of the pen, and would only fail later and less clearly


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Part:
    """A part of a model as data. When it is made, its words, sizes and dropout are looked at."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            wanted = self._wanted(name, value)
            if wanted is not None:
                raise GlassformerError(f"{type(self).__name__}.{name} is {value!r}; it must be {wanted}")

    def _wanted(self, name: str, value: Any) -> str | None:
        """What a field must be, where it is not."""
        if value is None:
            return None
        if name == "dropout" and not 0 <= value < 1:
            return "at least 0 and less than 1"
        given = value if isinstance(value, tuple) else (value,)
        if name in SIZES and not all(_whole(size) and 0 < size <= MOST for size in given):
            return f"a whole number from 1 to {MOST}"
        words = _words(type(self)).get(name)  # type: ignore[arg-type]
        if words is not None and not all(word in words for word in given):
            return f"one of {', '.join(words)}"
        return None


@cache
def _words(kind: type[Part]) -> dict[str, tuple[str, ...]]:
    """The words a kind's fields may hold, for those whose type lists them."""

    def listed(hint: Any) -> Iterator[str]:
        for inner in get_args(hint):
            if get_origin(hint) is Literal:
                yield inner
            else:
                yield from listed(inner)

    found = {name: tuple(listed(hint)) for name, hint in get_type_hints(kind).items()}
    return {name: words for name, words in found.items() if words}

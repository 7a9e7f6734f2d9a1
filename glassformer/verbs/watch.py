"""Who is told of many inputs on the way: how many are answered, and which cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glassformer.core.errors import GlassformerError

Refuse = Callable[[int, str], None]


class UnreadableError(GlassformerError):
    """One input cannot be answered, where others can."""


def _unheard(_: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What is told while many inputs are answered.

    answered: how many more are, in whatever order; batches are of inputs of like length.
    refuse: the number of one, from 1, that cannot be, and why; nothing stands in its place then. Where nobody
    hears of it, it ends all.
    """

    answered: Callable[[int], None] = _unheard
    refuse: Refuse | None = None


UNWATCHED = Watch()


def refused(refuse: Refuse | None, what: str, number: int, why: str) -> None:
    """Tell that an input cannot be answered, or end all with a sentence that names it.

    why: what is to be read after its name, as "has 9 tokens".
    """
    if refuse is None:
        raise UnreadableError(f"{what} {number:,} {why}")
    refuse(number, f"it {why}")

"""Who is told of many inputs on the way: how many are answered, and which cannot or need not be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from glassformer.errors import GlassformerError

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
    blank: whether an input of nothing but spaces is asked like any other, or left without an answer.
    """

    answered: Callable[[int], None] = _unheard
    refuse: Refuse | None = None
    blank: Literal["asked", "left"] = "asked"

    def leaves(self, one: object) -> bool:
        """Whether an input is left without an answer, and not asked.

        >>> Watch(blank="left").leaves(" "), Watch(blank="left").leaves("a"), Watch().leaves("")
        (True, False, False)
        """
        return self.blank == "left" and isinstance(one, str) and not one.strip()


UNWATCHED = Watch()


def refused(refuse: Refuse | None, what: str, number: int, why: str) -> None:
    """Tell that an input cannot be answered, or end all with a sentence that names it.

    why: what is to be read after its name, as "has 9 tokens".
    """
    if refuse is None:
        raise UnreadableError(f"{what} {number:,} {why}")
    refuse(number, f"it {why}")

"""The requests under way: those whose source or prompt is being read, and those being written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from glassformer.errors import NonFiniteError
from glassformer.generation.continuous.batch import Seat
from glassformer.generation.continuous.choosing import Lines, Search
from glassformer.generation.continuous.job import Request
from glassformer.generation.request import GenerationOutput
from glassformer.inference.attention import GrowingCache

PIECE: Final = 256  # tokens of one prompt that are read at once

Next = Callable[[int, int], Request | None]  # rows and tokens that are free -> a request that fits


@dataclass
class Counts:
    """What was done so far."""

    read: int = 0
    written: int = 0
    steps: int = 0
    jobs: int = 0


@dataclass(eq=False)
class Newcomer:
    """A request whose source or prompt is being read."""

    job: Request
    chooser: Lines | Search
    done: int = 0
    past: GrowingCache = field(default_factory=GrowingCache)

    def piece(self) -> Sequence[int]:
        """What is read of it next: a source whole, a prompt by pieces that do not depend on the others."""
        ids = self.job.asked.ids
        return ids if self.job.asked.starts else ids[self.done : self.done + PIECE]


@dataclass(eq=False)
class Member:
    """A request that is being written."""

    job: Request
    chooser: Lines | Search
    seats: list[Seat]
    ids: list[int]  # what its rows read next
    starts: list[int]  # what they read after that, before anything is chosen


def results(chooser: Lines | Search) -> list[GenerationOutput] | NonFiniteError:
    """What was written, where its scores are numbers."""
    found = chooser.written()
    try:
        for text in found:
            text.check_finite()
    except NonFiniteError as error:
        return error
    return found

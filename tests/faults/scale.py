"""How much of the long sweeps runs: a sample with the ordinary tests, the whole with `make test-slow`.

A fault test tries many faults, keeps a sentence for each that did harm, and hands both to the table that
stands at the end of the run. Zero failures in N trials bound the true rate below 3/N at 95 %.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Protocol, TypeVar

WHOLE = os.environ.get("GLASSFORMER_FAULTS") == "whole"
PART = 20
T = TypeVar("T")


def sample(cases: Sequence[T], count: int) -> Sequence[T]:
    """The first cases of a sweep, or all of them with `make test-slow`."""
    return cases if WHOLE else cases[:count]


def trials(full: int) -> int:
    """How many of the `whole` trials to make in this run."""
    return full if WHOLE else math.ceil(full / PART)


class Report(Protocol):
    """The fixture `report`: notes a row of the table, and fails the test where a trial did harm."""

    def __call__(self, what: str, tried: int, failures: Sequence[str]) -> None: ...

"""How the learning rate goes over the steps: a warm-up, then one of four ways on.

A schedule is a frozen value; `at(step)` is what the peak rate is multiplied by at step 1, 2, 3, ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassformer.errors import GlassformerError


@dataclass(frozen=True, kw_only=True)
class _Warm:
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise GlassformerError(f"warmup is {self.warmup}; it must be 0 or more steps")

    def _rising(self, step: int) -> float | None:
        """From 1/warmup up to 1, in a straight line; None once it is over."""
        if step < 1:
            raise GlassformerError(f"step {step} is before the first; steps count from 1")
        return step / self.warmup if step < self.warmup else None


@dataclass(frozen=True, kw_only=True)
class Constant(_Warm):
    """Level after the warm-up.

    >>> [Constant(warmup=4).at(step) for step in (1, 2, 4, 100)]
    [0.25, 0.5, 1.0, 1.0]
    """

    def at(self, step: int) -> float:
        rising = self._rising(step)
        return 1.0 if rising is None else rising


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(_Warm):
    """sqrt(warmup / step) after the warm-up: the paper's schedule, its peak scaled to 1.

    The paper's own rate, d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), is this times
    (d_model * warmup)^-0.5 (`paper_peak`).

    >>> InverseSqrt(warmup=4000).at(16000)
    0.5
    """

    def at(self, step: int) -> float:
        rising = self._rising(step)
        return math.sqrt(max(self.warmup, 1) / step) if rising is None else rising


def paper_peak(d_model: int, warmup: int) -> float:
    """The highest rate of the paper's schedule, reached at the end of its warm-up."""
    return (d_model * warmup) ** -0.5


@dataclass(frozen=True, kw_only=True)
class Linear(_Warm):
    """In a straight line from 1 after the warm-up to `floor` at `steps`, and level from there.

    >>> [Linear(steps=10).at(step) for step in (1, 5, 10, 99)]
    [0.9, 0.5, 0.0, 0.0]
    """

    steps: int
    floor: float = 0.0

    def at(self, step: int) -> float:
        rising = self._rising(step)
        return self.floor + (1 - self.floor) * (1 - self._done(step)) if rising is None else rising

    def _done(self, step: int) -> float:
        return min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))


@dataclass(frozen=True, kw_only=True)
class Cosine(Linear):
    """Along half a cosine from 1 after the warm-up to `floor` at `steps`, and level from there.

    >>> [round(Cosine(steps=10, floor=0.1).at(step), 3) for step in (5, 10)]
    [0.55, 0.1]
    """

    def at(self, step: int) -> float:
        rising = self._rising(step)
        if rising is not None:
            return rising
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * self._done(step))) / 2


Schedule = Constant | InverseSqrt | Linear | Cosine

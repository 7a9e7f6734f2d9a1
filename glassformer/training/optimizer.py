"""Learning-rate schedules, the optimizer, and an exponential moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from glassformer.errors import GlassformerError
from glassformer.training.recipe import Training


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


def optimiser_for(parameters: Mapping[str, nn.Parameter], words: Training) -> Optimizer:
    """Adam as in the paper, or AdamW whose decay falls on matrices and not on biases and norms."""
    lr, betas = words.lr or 0.0, (words.betas[0], words.betas[1])
    if words.optimiser == "adam":  # as a group, which may be empty: a model may have nothing to learn
        return Adam([{"params": list(parameters.values())}], lr=lr, betas=betas, eps=words.eps, fused=True)
    groups = [
        {
            "params": [p for p in parameters.values() if p.dim() >= 2],
            "weight_decay": words.weight_decay,
        },
        {"params": [p for p in parameters.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW(
        [g for g in groups if g["params"]] or groups[:1], lr=lr, betas=betas, eps=words.eps, fused=True
    )


def schedule_for(words: Training) -> Schedule:
    """How the learning rate goes, with all that a recipe leaves open filled in."""
    warmup, steps = words.warmup or 0, words.steps or 1
    match words.schedule:
        case "cosine":
            return Cosine(warmup=warmup, steps=steps, floor=words.floor)
        case "linear":
            return Linear(warmup=warmup, steps=steps, floor=words.floor)
        case "constant":
            return Constant(warmup=warmup)
        case _:
            return InverseSqrt(warmup=warmup)


class RunningAverage:
    """The weights averaged over the steps, the latest counting most: w <- decay w + (1 - decay) new.

    Early on the decay is smaller, (1 + step) / (10 + step), so that the first draw is soon forgotten.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = parameters, decay
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in parameters.items()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        share = 1.0 - min(self.decay, (1 + step) / (10 + step))
        new = [parameter.detach() for parameter in self.parameters.values()]
        torch._foreach_lerp_(list(self.tensors.values()), new, share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While it lasts the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self.parameters.items():
            kept = parameter.detach().clone()
            parameter.copy_(self.tensors[name])
            self.tensors[name].copy_(kept)

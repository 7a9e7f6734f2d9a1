"""Learning-rate schedules, the optimizer, and an exponential moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from glassformer.training.recipe import TrainingOptions


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Constant after a linear warm-up. `at(step)`, for steps 1, 2, ..., multiplies the peak learning rate.

    >>> [Constant(warmup=4).at(step) for step in (1, 2, 4, 100)]
    [0.25, 0.5, 1.0, 1.0]
    """

    warmup: int = 0

    def at(self, step: int) -> float:
        return step / self.warmup if step < self.warmup else self._after_warmup(step)

    def _after_warmup(self, step: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Constant):
    """sqrt(warmup / step) after the warm-up: as in "Attention is all you need", scaled to a peak of 1.

    The paper's own rate, d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), has its peak at `paper_peak`.

    >>> InverseSqrt(warmup=4000).at(16000)
    0.5
    """

    def _after_warmup(self, step: int) -> float:
        return math.sqrt(max(self.warmup, 1) / step)


def paper_peak(d_model: int, warmup: int) -> float:
    """The peak learning rate of the paper's schedule, reached at the end of its warm-up."""
    return (d_model * warmup) ** -0.5


@dataclass(frozen=True, kw_only=True)
class Linear(Constant):
    """Linear decay from 1 after the warm-up to `floor` at `steps`.

    >>> [Linear(steps=10).at(step) for step in (1, 5, 10, 99)]
    [0.9, 0.5, 0.0, 0.0]
    """

    steps: int
    floor: float = 0.0

    def _after_warmup(self, step: int) -> float:
        return self.floor + (1 - self.floor) * (1 - self._done(step))

    def _done(self, step: int) -> float:
        return min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))


@dataclass(frozen=True, kw_only=True)
class Cosine(Linear):
    """Cosine decay from 1 after the warm-up to `floor` at `steps`.

    >>> [round(Cosine(steps=10, floor=0.1).at(step), 3) for step in (5, 10)]
    [0.55, 0.1]
    """

    def _after_warmup(self, step: int) -> float:
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * self._done(step))) / 2


Schedule = Constant | InverseSqrt | Linear | Cosine


def build_schedule(options: TrainingOptions) -> Schedule:
    """The learning-rate schedule of a complete recipe."""
    warmup, steps = options.warmup or 0, options.steps or 1
    match options.schedule:
        case "cosine":
            return Cosine(warmup=warmup, steps=steps, floor=options.floor)
        case "linear":
            return Linear(warmup=warmup, steps=steps, floor=options.floor)
        case "constant":
            return Constant(warmup=warmup)
        case _:
            return InverseSqrt(warmup=warmup)


def build_optimizer(parameters: Mapping[str, nn.Parameter], options: TrainingOptions) -> Optimizer:
    """Adam, or AdamW with weight decay on matrices but not on biases and norms."""
    lr, betas, eps = options.lr or 0.0, (options.betas[0], options.betas[1]), options.eps
    if options.optimizer == "adam":  # as a group, since a model may have no parameters
        return Adam([{"params": list(parameters.values())}], lr=lr, betas=betas, eps=eps, fused=True)
    groups = [
        {"params": [p for p in parameters.values() if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW([g for g in groups if g["params"]] or groups[:1], lr=lr, betas=betas, eps=eps, fused=True)


class ExponentialMovingAverage:
    """EMA of the weights: w <- decay w + (1 - decay) new.

    Early on the decay is smaller, (1 + step) / (10 + step), so that the initialization is soon forgotten.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = parameters, decay
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in parameters.items()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
        new = [parameter.detach() for parameter in self.parameters.values()]
        torch._foreach_lerp_(list(self.tensors.values()), new, weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the block the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self.parameters.items():
            current = parameter.detach().clone()
            parameter.copy_(self.tensors[name])
            self.tensors[name].copy_(current)

"""The optimiser, and a running average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from glassformer.training.recipe import Training
from glassformer.training.schedule import Constant, Cosine, InverseSqrt, Linear, Schedule


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

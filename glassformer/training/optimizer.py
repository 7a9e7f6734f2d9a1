"""Learning-rate schedules, the optimizer, and an exponential moving average of the weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from glassformer.errors import UnknownNameError
from glassformer.training.recipe import TrainingOptions

_BLOCK = re.compile(r"(.*?)(?:stages\.(\d+)\.)?blocks\.(\d+)\.")
_MERGING = re.compile(r"(.*?)merging\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class LRSchedule:
    """Learning-rate schedule: linear warmup, then decay.

    `at(step)` returns the learning rate of step 1, 2, ... relative to the peak.
    kind: "constant"; "inverse_sqrt", sqrt(warmup_steps / step), as in "Attention is all you need"; "linear"
        or "cosine", which reach `min_lr_ratio` at `max_steps`.

    >>> [LRSchedule(kind="constant", warmup_steps=4).at(step) for step in (1, 2, 4, 100)]
    [0.25, 0.5, 1.0, 1.0]
    >>> LRSchedule(kind="inverse_sqrt", warmup_steps=4000).at(16000)
    0.5
    >>> [LRSchedule(kind="linear", max_steps=10).at(step) for step in (1, 5, 10, 99)]
    [0.9, 0.5, 0.0, 0.0]
    >>> [round(LRSchedule(kind="cosine", max_steps=10, min_lr_ratio=0.1).at(step), 3) for step in (5, 10)]
    [0.55, 0.1]
    """

    kind: Literal["inverse_sqrt", "cosine", "linear", "constant"]
    warmup_steps: int = 0
    max_steps: int = 1
    min_lr_ratio: float = 0.0

    def at(self, step: int) -> float:
        if step < self.warmup_steps:
            return step / self.warmup_steps
        if self.kind == "constant":
            return 1.0
        if self.kind == "inverse_sqrt":
            return math.sqrt(max(self.warmup_steps, 1) / step)
        done = min(1.0, (step - self.warmup_steps) / max(1, self.max_steps - self.warmup_steps))
        left = 1 - done if self.kind == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * left


def build_optimizer(parameters: Mapping[str, nn.Parameter], options: TrainingOptions) -> Optimizer:
    """Build Adam, or AdamW with weight decay on matrices but not on biases and norms.

    Each layer's parameters have a group, if their learning rates differ.
    """
    lr, betas, eps = options.lr or 0.0, (options.betas[0], options.betas[1]), options.eps
    scales = layer_lr_scales(parameters, options.layer_lr_decay)
    factors: dict[str, float] = {}
    for prefix, factor in sorted((options.lr_factors or {}).items()):  # of two, the longer one counts
        matching = [name for name in parameters if f"{name}.".startswith(f"{prefix}.")]
        if not matching:
            known = {".".join(name.split(".")[:depth]) for name in parameters for depth in (1, 2, 3)}
            raise UnknownNameError("parameter", prefix, known, where="training.lr_factors")
        factors |= dict.fromkeys(matching, factor)
    scales = {name: scale * factors.get(name, 1.0) for name, scale in scales.items()}
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for name, parameter in parameters.items():
        decays = parameter.dim() >= 2 and options.optimizer == "adamw"
        group: dict[str, Any] = {"params": [], "lr": lr * scales[name]}
        if options.optimizer == "adamw":
            group["weight_decay"] = options.weight_decay if decays else 0.0
        groups.setdefault((not decays, -scales[name]), group)["params"].append(parameter)
    # a parameter group, since a plain list must not be empty
    listed = [groups[key] for key in sorted(groups)] or [{"params": []}]
    build = Adam if options.optimizer == "adam" else AdamW
    return build(listed, lr=lr, betas=betas, eps=eps, fused=True)


def layer_lr_scales(names: Iterable[str], decay: float) -> dict[str, float]:
    """Return the factor of each parameter's learning rate: decay ** (number of layers above it).

    Heads and final norms have the factor 1; embeddings count as the layer below the first block.

    >>> names = ["embed.token.weight", "encoder.blocks.0.ffn.up.weight", "encoder.blocks.1.ffn.up.weight"]
    >>> list(layer_lr_scales([*names, "head.out.weight"], 0.5).values())
    [0.125, 0.25, 0.5, 1.0]
    >>> names = ["encoder.stages.0.blocks.0.ffn.up.weight", "encoder.merging.0.project.weight"]
    >>> list(layer_lr_scales([*names, "encoder.stages.1.blocks.0.ffn.up.weight"], 0.5).values())
    [0.25, 0.5, 0.5]
    """
    names = list(names)
    blocks = {name: _BLOCK.match(name) for name in names}
    counts: dict[str, dict[int, int]] = {}  # of each stack, the number of layers of its stages
    for match in filter(None, blocks.values()):
        stages = counts.setdefault(match[1], {})
        stage = int(match[2] or 0)
        stages[stage] = max(stages.get(stage, 0), int(match[3]) + 1)
    deepest = max((sum(stages.values()) for stages in counts.values()), default=0)

    def layers_above(name: str) -> int:
        if match := blocks[name]:
            stages, stage = counts[match[1]], int(match[2] or 0)
            return sum(n for s, n in stages.items() if s >= stage) - int(match[3])
        if match := _MERGING.match(name):  # counts as part of the next layer
            return sum(n for s, n in counts.get(match[1], {}).items() if s > int(match[2]))
        return deepest + 1 if "embed" in name.split(".")[0] else 0

    return {name: decay ** layers_above(name) for name in names}


def scales_gradients(optimizer: Optimizer) -> bool:
    """Return whether the optimizer divides gradients by `grad_scale` and skips a step with `found_inf`."""
    return isinstance(optimizer, Adam | AdamW) and bool(optimizer.defaults.get("fused"))


class LossScale:
    """Dynamic loss scaling for float16, whose smallest gradients would round to zero.

    The scale is halved after an overflow and doubled after 2,000 steps without one.
    """

    INITIAL, INTERVAL = 2.0**16, 2000

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.tensor(self.INITIAL, device=device)
        self.steps = torch.zeros((), device=device)  # since the last change

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The state, for checkpoints."""
        return {"loss_scale": self.scale, "loss_scale_steps": self.steps}

    @torch.no_grad()
    def update(self, overflow: Tensor) -> Tensor:
        """Update the scale after a step; return whether the step overflowed and a smaller scale is left."""
        reducible = overflow & (self.scale > 1)
        self.steps.copy_(torch.where(overflow, 0.0, self.steps + 1))
        grow = self.steps >= self.INTERVAL
        factor = torch.where(reducible, 0.5, torch.where(grow, 2.0, 1.0))
        self.scale.mul_(factor)
        self.steps.masked_fill_(grow, 0.0)
        return reducible


class ExponentialMovingAverage:
    """EMA of the weights: w <- decay w + (1 - decay) new.

    In early steps the decay is limited to (1 + step) / (10 + step), so that the initial weights fade quickly.
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
        """Context in which the model has the averaged weights."""
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

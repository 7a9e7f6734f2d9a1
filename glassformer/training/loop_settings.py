"""The section `training` of a recipe: how the loop runs, with every number checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from glassformer.errors import GlassformerError

MOST = 10**12  # of steps and what counts them: more is a slip of the pen


@dataclass(frozen=True, kw_only=True)
class Training:
    """The loop.

    steps, epochs: when to end; steps wins
    batch: the most one batch may hold on one device, padding counted: tokens, or images, or windows
    batching: "lengths" puts examples of like length together; "rows" packs several pairs into each row of one
        fixed width, which suits a compiled step on a GPU
    accumulate: batches to a step, on all devices together; the result is that of one big batch
    lr: the highest learning rate; schedule, warmup (steps), floor (share of lr at the end) say how it goes
    optimiser: adamw (decoupled decay on matrices), or adam as in the paper
    clip: gradients longer than this are shortened to it; 0 is off
    label_smoothing: how much of the target is spread over the vocabulary
    r_drop: above 0 every example is read twice, and the two readings, apart by dropout, are drawn together
        with this weight (5 is usual where data is scarce); for pairs and labels
    ema: decay of a running average of the weights, used for validation and the final model; 0 is off
    average: how many of the `last` or `best` validated weights are averaged into the final model; 0 is off
    final: which weights become the model where nothing is averaged: the `best` validated or the `last`
    metric: what is best; null is the job's own. patience: validations without a better one until the end
    validate_every, save_every, log_every: steps between; keep: checkpoints kept, at least 2
    film: how many times the weights are kept on the way, to be looked at later; 0 is off
    samples: how many outputs a validation shows; max_valid: most examples a validation decodes
    device: auto, cpu, cuda, cuda:1; precision: auto is bfloat16 on a GPU, float32 on a CPU
    compile: auto compiles on a GPU; default, reduce-overhead and max-autotune are torch's own modes
    parallel: ddp copies the model to each process, fsdp divides it; auto is ddp under torchrun
    checkpoint_activations: recompute blocks on the way back, for memory
    max_bad_steps: steps in a row with a loss that is not finite, or ten times the usual, until the run stops
    deterministic: bit-equal reruns on one GPU, somewhat slower
    """

    steps: int | None = None
    epochs: float | None = None
    batch: int | None = None
    batching: Literal["lengths", "rows"] | None = None
    accumulate: int = 1
    lr: float | None = None
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] | None = None
    warmup: int | None = None
    floor: float = 0.0
    optimiser: Literal["adamw", "adam"] = "adamw"
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.01
    clip: float = 1.0
    label_smoothing: float | None = None
    r_drop: float = 0.0
    ema: float = 0.0
    average: int = 0
    average_of: Literal["last", "best"] = "last"
    final: Literal["best", "last"] = "best"
    metric: str | None = None
    patience: int | None = None
    validate_every: int | None = None
    save_every: int | None = None
    log_every: int | None = None
    keep: int = 2
    film: int = 0
    samples: int = 5
    max_valid: int = 1000
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "off", "default", "reduce-overhead", "max-autotune"] = "auto"
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    checkpoint_activations: bool = False
    max_bad_steps: int = 10
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name in (
            *("steps", "batch", "accumulate", "validate_every", "save_every", "log_every", "patience"),
            *("max_valid", "max_bad_steps"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise GlassformerError(f"training.{name} is {value}; it must be at least 1")
            if value is not None and value > MOST and name != "max_valid":
                raise GlassformerError(f"training.{name} is {value:,}; it must be at most {MOST:,}")
        for name in ("warmup", "average", "film", "samples"):
            if not 0 <= (getattr(self, name) or 0) <= MOST:
                raise GlassformerError(
                    f"training.{name} is {getattr(self, name):,}; it must be at least 0, and {MOST:,} at most"
                )
        if self.epochs is not None and not 0 < self.epochs <= 1e6:
            raise GlassformerError(f"training.epochs is {self.epochs}; it must be above 0, a million at most")
        if self.lr is not None and not 0 < self.lr < 100:
            raise GlassformerError(f"training.lr is {self.lr}; it must be above 0 and below 100, as 0.0003")
        for name in ("clip", "weight_decay", "r_drop"):
            if not 0 <= getattr(self, name) < math.inf:
                raise GlassformerError(f"training.{name} is {getattr(self, name)}; it must be at least 0")
        if not 0 < self.eps < 1:
            raise GlassformerError(f"training.eps is {self.eps}; it must be above 0 and below 1, as 1e-9")
        if not 0 <= self.floor <= 1:
            raise GlassformerError(f"training.floor is {self.floor}; it must be a share from 0 to 1")
        if not 0 <= (self.label_smoothing or 0) < 1:
            raise GlassformerError(
                f"training.label_smoothing is {self.label_smoothing}; it must be at least 0 and below 1"
            )
        if self.keep < 2:
            raise GlassformerError(f"training.keep is {self.keep}; at least 2 checkpoints are kept")
        if not 0 <= self.ema < 1:
            raise GlassformerError(f"training.ema is {self.ema}; it must be at least 0 and below 1")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise GlassformerError(f"training.betas is {list(self.betas)}; it takes two numbers below 1")

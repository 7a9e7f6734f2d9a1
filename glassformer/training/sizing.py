"""How large a model and how long a training suit the data and the machine, and why.

A ladder of sizes is gone down until the wanted passes over the data fit the time a person would wait. What a
size costs is reckoned, not timed: six operations a weight and unit, against what the machine was seen to do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from glassformer.training.machine import best_speed

PATIENCE = 45 * 60.0  # seconds a person would wait for a first model
USED = 0.35  # the share of a machine's best that training reaches


@dataclass(frozen=True, kw_only=True)
class Size:
    """One rung: words of a model family, its weights about, and the fewest units it is worth training on."""

    name: str
    d_model: int
    num_heads: int
    d_ff: int
    num_layers: int
    worth: int
    dropout: float

    def weights(self, *, stacks: int = 1, cross: bool = False) -> float:
        """Weights of the layers: four squares for attention, two sheets for the feed-forward."""
        attention = 4 * self.d_model**2
        one = attention + 2 * self.d_model * self.d_ff
        return self.num_layers * (one * stacks + (attention if cross else 0))

    def words(self) -> dict[str, int | float]:
        names = ("d_model", "num_heads", "d_ff", "num_layers", "dropout")
        return {name: getattr(self, name) for name in names}


# The least data first. `worth` is in tokens to be learned.
LADDER: tuple[Size, ...] = (
    Size(name="nano", d_model=64, num_heads=4, d_ff=256, num_layers=2, worth=0, dropout=0.1),
    Size(name="tiny", d_model=128, num_heads=4, d_ff=512, num_layers=3, worth=50_000, dropout=0.2),
    Size(name="small", d_model=256, num_heads=4, d_ff=1024, num_layers=4, worth=300_000, dropout=0.2),
    Size(name="middle", d_model=384, num_heads=6, d_ff=1536, num_layers=6, worth=3_000_000, dropout=0.15),
    Size(name="base", d_model=512, num_heads=8, d_ff=2048, num_layers=6, worth=15_000_000, dropout=0.1),
    Size(name="big", d_model=768, num_heads=12, d_ff=3072, num_layers=12, worth=300_000_000, dropout=0.1),
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What training runs on, and the operations a second it may be counted on for."""

    device: torch.device
    speed: float

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


def look_at_machine(device: torch.device) -> Machine:
    """On a CPU a few products are timed; a GPU is known by its name, or taken for a modest one."""
    if device.type == "cuda":
        return Machine(device=device, speed=USED * (best_speed(device, torch.bfloat16) or 100e12))
    one = torch.randn(512, 512)
    best = math.inf
    for _ in range(6):
        began = time.perf_counter()
        one @ one
        best = min(best, time.perf_counter() - began)
    return Machine(device=device, speed=USED * 2 * 512**3 / best)


def passes_wanted(units: int) -> float:
    """How often data of this size is worth going through: little data often, much of it once.

    >>> [passes_wanted(n) for n in (5_000, 500_000, 50_000_000)]
    [200.0, 40.0, 1.0]
    """
    return min(200.0, max(1.0, 20_000_000 / max(units, 1)))


def fitting(
    machine: Machine,
    *,
    units: int,
    vocab_size: int,
    stacks: int = 1,
    passes: float | None = None,
    given: bool = False,
    ladder: Sequence[Size] = LADDER,
) -> tuple[Size, float, str]:
    """A size, how many passes over the data, and a sentence that says why.

    `units` are learned in a pass; `stacks` is 2 where an encoder reads about as much beside; `passes` are
    those wanted, where they do not follow from the units; where a recipe has `given` how long to train, the
    sentence says nothing of passes. A size is too large when the time a person waits
    gives it neither ten passes nor three units a weight.
    """
    wanted = passes_wanted(units) if passes is None else passes
    worthy = [size for size in ladder if units >= size.worth] or [ladder[0]]

    def weights(size: Size) -> float:
        return size.weights(stacks=stacks, cross=stacks > 1) + size.d_model * vocab_size

    def learned(size: Size) -> float:
        """Units that can be learned while a person waits."""
        return PATIENCE * machine.speed / (6 * weights(size))

    def enough(size: Size) -> bool:
        return learned(size) >= min(units * min(wanted, 10), 3 * weights(size))

    chosen = next((size for size in reversed(worthy) if enough(size)), worthy[0])
    done = min(float(f"{wanted:.2g}"), float(f"{learned(chosen) / units:.2g}"))
    why = f"the size '{chosen.name}' suits {units:,} units to learn"
    if chosen is not worthy[-1]:
        why += f" in the time this {machine.device.type} takes ('{worthy[-1].name}' would suit the data)"
    if given:
        return chosen, done, why
    about = done * units / learned(chosen) * PATIENCE
    return chosen, done, f"{why}; {done:g} passes over the data are reckoned at {told_time(about)}"


def told_time(seconds: float) -> str:
    """A time as one says it.

    >>> told_time(50), told_time(4000)
    ('under a minute', '67 minutes')
    """
    if seconds < 60:
        return "under a minute"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"

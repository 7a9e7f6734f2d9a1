"""What was written, and how a row can end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch

from glassformer.generation.tree import Tree

Ended = Literal["end", "length", "stop"]
ENDINGS: Final[tuple[Ended, ...]] = ("end", "length", "stop")
BY_END, BY_LENGTH, BY_STOP = range(3)

LOOK_EVERY: Final = 8  # steps between two looks at who has finished on a GPU, each of which waits for it
SPARE: Final = 2  # steps that are tried when one is captured, and then taken back: they need room as well
WORTHWHILE: Final = 0.75  # rows are moved together once at most this share of them is unfinished
WORTHWHILE_ON_GPU: Final = 0.5  # where that also means to capture a step of another shape


@dataclass(frozen=True, kw_only=True)
class Written:
    """One text, as tokens."""

    ids: list[int]  # without the prompt and the end token
    score: float  # a beam's sum of log-probs over its length term; the sum itself otherwise
    logprobs: list[float]  # of each id, and one more for the end token where there is one
    ended: Ended
    tree: Tree | None = None


def worthwhile(left: int, rows: int, device: torch.device) -> bool:
    """Whether to move the rows that are left together."""
    return left <= (WORTHWHILE if device.type == "cpu" else WORTHWHILE_ON_GPU) * rows


def look_every(device: torch.device) -> int:
    """How many steps lie between two looks at who has finished."""
    return 1 if device.type == "cpu" else LOOK_EVERY

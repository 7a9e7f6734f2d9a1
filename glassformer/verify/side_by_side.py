"""How an export is held against the model: every difference, and how many choices are the same."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError

ROWS = 8  # enough that a share of choices says something

# a bundle -> every difference found, and what was compared
Measure = Callable[[Bundle], tuple[list[float], str]]


def same_choices(ours: Tensor, theirs: Tensor) -> str:
    """How often two rows of scores (N, V) have the same highest one, in words.

    >>> import torch
    >>> same_choices(torch.eye(3), torch.eye(3)[[0, 1, 1]])
    'same choice at 2 of 3'
    """
    if ours.shape != theirs.shape:
        return "other shapes"
    same = (ours.cpu().argmax(-1) == theirs.cpu().argmax(-1)).sum()
    return f"same choice at {int(same)} of {len(ours)}"


def another_model(what: str) -> GlassformerError:
    """The sentence for an export that cannot be this model's."""
    return GlassformerError(f"the exported folder {what}, so it is not this model's; export the model again")

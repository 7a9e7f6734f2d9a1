"""What the loop knows of a job: what to learn from, how wrong and how good the model is, how to save it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from glassformer.data.examples import Arrays, Examples
from glassformer.training.learner import Learner
from glassformer.training.notes.log import Sample

LOWER = ("loss", "perplexity", "bits", "mse", "mae")  # how measures begin that are better when lower


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How good the model is, in numbers and examples; `signatures` say how a number was reckoned.

    tables: figures that stand in rows, as one for each class, by the table's name; a row has named columns.
    """

    metrics: dict[str, float]
    samples: Sequence[Sample] = ()
    signatures: dict[str, str] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job made ready.

    learner: a module whose forward takes a batch and gives the summed loss; its `model` is what is saved.
    units: what the loss is summed over and speed counted in; count: how many a batch has.
    metric: what is best; better: whether it is so when "higher" or "lower".
    validate: on a device, the model being in evaluation mode.
    save: writes the model folder of the weights as they are.
    row_width: where examples are pairs that may be packed into rows, the width of a row.
    """

    learner: Learner
    train: Examples
    units: str
    count: Callable[[Arrays], int]
    metric: str
    better: str
    validate: Callable[[torch.device], Validation]
    save: Callable[[Path], object]
    row_width: int | None = None

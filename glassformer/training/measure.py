"""How wrong a model is on examples it does not learn from, counted exactly."""

from __future__ import annotations

import math

import torch

from glassformer.data import Batches
from glassformer.data.examples import Examples
from glassformer.training.learner import Learner, tokens_learned


def mean_loss(learner: Learner, examples: Examples, device: torch.device, *, batch: int) -> float:
    """The loss per label over all examples, each seen once, without smoothing or dropout.

    `forward` is called as written: evaluation shapes are too various to compile for.
    """
    total, count = 0.0, 0
    for portion in Batches(data=examples, tokens=batch).epoch():
        arrays = examples.batch(portion.rows, epoch=0)
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        total += float(learner.forward(**tensors))
        count += tokens_learned(arrays)
    return total / count if count else math.nan


def perplexity(loss: float) -> float:
    """e to the loss, as far as a number goes.

    >>> round(perplexity(math.log(8)))
    8
    """
    return math.exp(loss) if loss < 700 else math.inf

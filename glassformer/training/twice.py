"""R-Drop: every example is read twice in a step, and both readings, each with its own dropout, should agree.

Letters: B examples, T tokens, V vocabulary (or classes).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.data.examples import IGNORED
from glassformer.training.losses import cross_entropy


def doubled(tensor: Tensor | None) -> Tensor | None:
    """The batch (B, ...) twice over, one after the other: (2B, ...)."""
    return None if tensor is None else torch.cat((tensor, tensor))


def agreeing_loss(logits: Tensor, labels: Tensor, *, smoothing: float, weight: float) -> Tensor:
    """The loss of two readings (2B, ..., V) of the labels (B, ...), summed over the units of one.

    It is the mean of both cross-entropies, and `weight` / 4 times the divergences of each from the other:
    half of what the paper writes, so that it is the plain loss where both readings are the same.

    >>> logits, labels = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    >>> same = agreeing_loss(torch.cat((logits, logits)), labels, smoothing=0.1, weight=5.0)
    >>> bool(torch.isclose(same, cross_entropy(logits, labels, smoothing=0.1)))
    True
    """
    wrong = cross_entropy(logits, torch.cat((labels, labels)), smoothing=smoothing) / 2
    one, other = F.log_softmax(logits.float(), -1).chunk(2)  # (B, ..., V) each
    # KL(one, other) + KL(other, one) in one product
    apart = ((one.exp() - other.exp()) * (one - other)).sum(-1)  # (B, ...)
    return wrong + weight / 4 * torch.where(labels != IGNORED, apart, 0.0).sum()

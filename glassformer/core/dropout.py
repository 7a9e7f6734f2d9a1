"""Dropout: zero each number with probability p in training, and scale the rest up to make up for it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """`x` with each number zeroed with probability `p` and the others divided by 1 - p."""
    return F.dropout(x, p, training) if p and training else x


class Dropout(nn.Module):
    """`dropout` as a module; the identity in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"

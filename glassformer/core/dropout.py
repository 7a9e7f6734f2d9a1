"""Dropout: zero each number with probability p in training, and scale the rest up to make up for it.

On a CPU the random numbers cost more than anything else of it, so four are cut from each 64-bit draw:
p is then met to 1/65536, and the scale is the exact inverse of what was met. Elsewhere it is torch's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_STEPS = 1 << 16  # values of one 16-bit cut


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """`x` with each number zeroed with probability `p` and the others divided by 1 - p."""
    if not training or p == 0.0:
        return x
    cut = round(p * _STEPS)
    if not x.is_cpu or torch.compiler.is_compiling() or cut in (0, _STEPS) or x.dtype != torch.float32:
        return F.dropout(x, p)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    cuts = words.view(torch.int16)[: x.numel()].view(x.shape)
    keep = torch.ge(cuts, cut - _STEPS // 2, out=torch.empty(x.shape))  # 1.0 or 0.0
    return x * keep.mul_(_STEPS / (_STEPS - cut))


class Dropout(nn.Module):
    """`dropout` as a module; the identity in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"

"""Dropout: zero each number with probability p in training, and scale the rest up to make up for it.

On a CPU the random numbers cost more than anything else of it, so four are cut from each 64-bit draw:
p is then met to 1/65536, and the scale is the exact inverse of what was met. Elsewhere it is torch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_STEPS = 1 << 16  # values of one 16-bit cut


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """`x` with each number zeroed with probability `p` and the others divided by 1 - p."""
    if not training or p == 0.0:
        return x
    return x * _kept(x, p) if _by_cuts(x, p) else F.dropout(x, p)


def relu_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """dropout(relu(x)), keeping one tensor for the way back instead of two."""
    if training and p and _by_cuts(x, p):
        y: Tensor = _ReluDropout.apply(x, p)  # type: ignore[no-untyped-call]
        return y
    return dropout(F.relu(x), p, training)


def add_dropped(x: Tensor, out: Tensor, p: float, training: bool) -> Tensor:
    """x + dropout(out), in one pass."""
    if training and p and out.dtype == x.dtype and _by_cuts(out, p):
        return torch.addcmul(x, out, _kept(out, p))
    return x + dropout(out, p, training)


class Dropout(nn.Module):
    """`dropout` as a module; the identity in evaluation.

    >>> Dropout(0.5).eval()(torch.ones(2, 3)).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _by_cuts(x: Tensor, p: float) -> bool:
    """Whether the cheap draws serve: they write memory in a way a compiler cannot follow."""
    plain = x.is_cpu and x.dtype == torch.float32 and not torch.compiler.is_compiling()
    return plain and 0 < round(p * _STEPS) < _STEPS


def _kept(x: Tensor, p: float) -> Tensor:
    """0 with probability p, else 1 / (1 - p), in the shape of x."""
    cut = round(p * _STEPS)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    cuts = words.view(torch.int16)[: x.numel()].view(x.shape)
    room = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    keep = torch.ge(cuts, cut - _STEPS // 2, out=room)  # 1.0 or 0.0
    return keep.mul_(_STEPS / (_STEPS - cut))


class _ReluDropout(torch.autograd.Function):
    """Where the result is 0 nothing flows back, whichever of the two made it so: the result says it all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        y = torch.relu(x).mul_(_kept(x, p))
        ctx.save_for_backward(y)
        ctx.scale = _STEPS / (_STEPS - round(p * _STEPS))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grads[0], y, 0).mul_(ctx.scale), None

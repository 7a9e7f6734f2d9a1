"""x W^T + b by the faster of torch's two ways on a CPU.

For large float32 products, torch's oneDNN kernel is quicker than its default and adds the bias in the same
pass. It is reached by an operator that torch keeps for its compiler; where a build of torch has none, or the
product is small, this is torch's own linear.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_ROWS, _WIDTH = 64, 128  # smaller products spend longer choosing than multiplying
_fast: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch._C._has_mkldnn else None


class Linear(nn.Linear):
    """nn.Linear by `linear`: (..., in) -> (..., out).

    >>> Linear(8, 32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 32])
    """

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., in), weight (out, in), bias (out,) -> (..., out).

    >>> linear(torch.ones(2, 3), torch.ones(4, 3)).tolist()
    [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """
    if not _large(x, weight):
        return F.linear(x, weight, bias)
    y: Tensor
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        y = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    else:
        y = _fast(x, weight, bias, "none", [], "")
    return y


def _large(x: Tensor, weight: Tensor) -> bool:
    """Whether the quick product serves: large, float32, lying straight in a CPU's memory."""
    if _fast is None or not x.is_cpu or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    plain = x.dtype == weight.dtype == torch.float32 and x.is_contiguous() and weight.is_contiguous()
    return plain and min(weight.shape) >= _WIDTH and x.numel() >= _ROWS * weight.shape[1]


class _Product(torch.autograd.Function):
    """The quick product there and for x on the way back; for the weight torch's usual one is the quicker."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y: Tensor = _fast(x, weight, bias, "none", [], "")
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        slope = grads[0].reshape(-1, weight.shape[0])  # (rows, out)
        wanted = ctx.needs_input_grad
        return (
            _fast(slope, weight.T, None, "none", [], "").view(x.shape) if wanted[0] else None,
            slope.T @ x.reshape(-1, weight.shape[1]) if wanted[1] else None,
            slope.sum(0) if wanted[2] else None,
        )

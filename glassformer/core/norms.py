"""Norms of (B, T, D): LayerNorm and RMSNorm over the features, BatchNorm over batch and time; layer scale.

Statistics are computed in at least float32 and the result has the dtype of the input, so that under
autocast the residual stream stays in low precision instead of becoming float32 after every norm.
B batch, T positions, D d_model.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.precision import upcast
from glassformer.errors import UnsupportedError


class LayerNorm(nn.LayerNorm):
    """(x - mean) / sqrt(var + eps), over the last dimension, times weight plus bias.

    >>> LayerNorm(8)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(d_model, eps=eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        return super().forward(upcast(x)).to(x.dtype)

    def linear_part(self, v: Tensor, at: Tensor | None = None) -> Tensor:
        """Center and weight v (..., D); with the scale that x = `at` has, if given. Linear in v.

        >>> x, norm = torch.randn(5, 8), LayerNorm(8)
        >>> torch.allclose(norm.linear_part(x, at=x), norm(x), atol=1e-5)
        True
        """
        v = (v - v.mean(-1, keepdim=True)) * self.weight
        return v if at is None else v * (at.var(-1, unbiased=False, keepdim=True) + self.eps).rsqrt()


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps), over the last dimension, times (weight + offset).

    >>> y = RMSNorm(8)(torch.randn(2, 5, 8))
    >>> y.shape, y.square().mean(-1).round().unique().tolist()
    (torch.Size([2, 5, 8]), [1.0])
    """

    def __init__(self, d_model: int, *, eps: float = 1e-6, offset: float = 0.0) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.full((d_model,), 1.0 - offset))

    @property
    def scale(self) -> Tensor:
        """The factor on each feature (D,): the weight, plus the offset in at least float32."""
        return self.weight if self.offset == 0.0 else upcast(self.weight) + self.offset

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale
        if x.dtype == scale.dtype:
            return F.rms_norm(x, scale.shape, scale, self.eps)
        return F.rms_norm(upcast(x), scale.shape, upcast(scale), self.eps).to(x.dtype)

    def linear_part(self, v: Tensor, at: Tensor | None = None) -> Tensor:
        """Weight v (..., D); with the scale that x = `at` has, if given. Linear in v."""
        v = v * self.scale
        return v if at is None else v * (at.square().mean(-1, keepdim=True) + self.eps).rsqrt()


class UnitNorm(nn.Module):
    """x / |x| over the last dimension, times a trained factor for each head, for cosine attention.

    num_heads: number of factors; None: no factor
    max_scale: maximum of the factor, which is stored as its logarithm

    >>> y = UnitNorm()(torch.randn(2, 5, 4, 8))  # (B, T, H, K)
    >>> y.norm(dim=-1).round(decimals=4).unique().tolist()
    [1.0]
    """

    def __init__(self, num_heads: int | None = None, max_scale: float = 100.0) -> None:
        super().__init__()
        self.max_log = math.log(max_scale)
        self.log_scale = None if num_heads is None else nn.Parameter(torch.full((num_heads,), math.log(10.0)))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., H, K) -> (..., H, K)."""
        y = F.normalize(upcast(x), dim=-1)
        if self.log_scale is not None:
            y = y * upcast(self.log_scale).clamp(max=self.max_log).exp()[:, None]
        return y.to(x.dtype)


class BatchNorm(nn.BatchNorm1d):
    """Normalize each feature over batch and time, with running statistics for evaluation.

    >>> BatchNorm(8)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5) -> None:
        super().__init__(d_model, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2:  # rows (N, D) without padding
            return super().forward(x)
        return super().forward(x.transpose(1, 2)).transpose(1, 2)  # (B, D, T) inside

    def linear_part(self, v: Tensor, at: Tensor | None = None) -> Tensor:
        """Weight v (..., D) and, if `at` is given, divide by the running deviation. Linear in v."""
        v = v * self.weight
        running: Any = self.running_var
        return v if at is None else v * (running + self.eps).rsqrt()


class Conditional(nn.Module):
    """Base of norms and factors that read a condition (B, C), such as an embedded time, class or text.

    Their forward takes (x, condition). A block passes them the condition of its context.
    """


class LayerScale(nn.Module):
    """Multiply each feature by a trained factor.

    >>> LayerScale(8, init=0.1)(torch.ones(2, 5, 8)).unique().tolist() == [torch.tensor(0.1).item()]
    True
    """

    def __init__(self, d_model: int, *, init: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((d_model,), init))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.to(x.dtype)


def drop_path(x: Tensor, p: float) -> Tensor:
    """Stochastic depth: zero whole samples of x (B, ...) with probability p, and scale up the others."""
    mask = torch.rand(x.shape[0], *[1] * (x.dim() - 1), device=x.device) >= p
    return x * (mask / (1 - p)).to(x.dtype)


def make_norm(spec: specs.NormSpec, d_model: int) -> nn.Module:
    """Build a norm over d_model features."""
    kinds: dict[type, type[nn.Module]] = {
        specs.LayerNormSpec: LayerNorm,
        specs.RMSNormSpec: RMSNorm,
        specs.BatchNormSpec: BatchNorm,
    }
    if type(spec) not in kinds:
        raise UnsupportedError("a block", f"norms of the kind {spec.kind}")
    return kinds[type(spec)](d_model, **vars(spec))

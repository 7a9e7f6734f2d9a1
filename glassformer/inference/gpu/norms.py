"""A norm over the features, alone or before a product.

N rows, D features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from glassformer.core.norms import LayerNorm, RMSNorm
from glassformer.inference.gpu.launching import follow, overlaps


@dataclass(frozen=True, kw_only=True)
class Norm:
    """How rows are normed: "rms" or "layer"; the weight and bias (D,) where it has them."""

    kind: Literal["rms", "layer"]
    weight: Tensor | None
    bias: Tensor | None = None
    eps: float = 1e-5


def norm_of(module: RMSNorm | LayerNorm) -> Norm:
    """A model's norm as the kernels take it."""
    weight = module.weight.detach()
    if isinstance(module, RMSNorm):
        return Norm(kind="rms", weight=weight, eps=module.eps)
    bias = None if module.bias is None else module.bias.detach()
    return Norm(kind="layer", weight=weight, bias=bias, eps=module.eps)


def normed(x: Tensor, norm: Norm) -> Tensor:
    """The norm of each row of x: (N, D) -> (N, D), the statistics in float32."""
    x = x.contiguous()
    out = torch.empty_like(x)
    rows, width = x.shape
    columns = triton.next_power_of_2(width)
    overlap = overlaps(x)
    if rows:
        _normed[(rows,)](
            x,
            norm.weight,
            norm.bias,
            out,
            norm.eps,
            WIDTH=width,
            COLUMNS=columns,
            KIND=norm.kind,
            OVERLAP=overlap,
            num_warps=min(8, max(1, columns // 512)),
            **({"launch_pdl": True} if overlap else {}),
        )
    return out


@triton.jit
def statistics(x, real, WIDTH: tl.constexpr, KIND: tl.constexpr, eps):
    """Mean (0 for "rms") and 1 / deviation of a row x (float32), whose features outside `real` are 0."""
    mean = 0.0
    if KIND == "layer":
        mean = tl.sum(x, 0) / WIDTH
    apart = tl.where(real, x - mean, 0.0)
    return mean, 1.0 / tl.sqrt(tl.sum(apart * apart, 0) / WIDTH + eps)


@triton.jit
def _normed(
    x,
    weight,
    bias,
    out,
    eps,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    start = tl.program_id(0).to(tl.int64) * WIDTH
    at = tl.arange(0, COLUMNS)
    real = at < WIDTH
    row = tl.load(x + start + at, mask=real, other=0.0).to(tl.float32)
    mean, inverse = statistics(row, real, WIDTH, KIND, eps)
    y = (row - mean) * inverse
    if weight is not None:
        y *= tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + start + at, y.to(out.dtype.element_ty), mask=real)

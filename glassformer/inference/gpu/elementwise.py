"""Activations as parts of a kernel, and a norm over the features, alone or before a product.

N rows, D features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.core.norms import LayerNorm, RMSNorm
from glassformer.errors import UnknownNameError
from glassformer.inference.gpu.launch import follow, overlaps

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"]


def check_activation(name: str | None) -> None:
    known = get_args(Activation)
    if name is not None and name not in known:
        raise UnknownNameError("activation", name, known)


@triton.jit
def activate(x, NAME: tl.constexpr):
    """The activation of x (float32); None is the identity."""
    if NAME == "relu":
        x = tl.maximum(x, 0.0)
    elif NAME == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif NAME == "gelu_tanh":
        # (1 + tanh u) / 2 = sigmoid(2u)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif NAME == "silu":
        x = x * tl.sigmoid(x)
    elif NAME == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    elif NAME == "tanh":
        x = 2.0 * tl.sigmoid(2.0 * x) - 1.0
    return x


@dataclass(frozen=True, kw_only=True)
class NormWeights:
    """The parameters of a norm; weight and bias are (D,)."""

    kind: Literal["rms", "layer"]
    weight: Tensor | None
    bias: Tensor | None = None
    eps: float = 1e-5


def norm_weights(module: RMSNorm | LayerNorm) -> NormWeights:
    """A model's norm as the kernels take it."""
    weight = module.weight.detach()
    if isinstance(module, RMSNorm):
        return NormWeights(kind="rms", weight=weight, eps=module.eps)
    bias = None if module.bias is None else module.bias.detach()
    return NormWeights(kind="layer", weight=weight, bias=bias, eps=module.eps)


def normalize(x: Tensor, norm: NormWeights) -> Tensor:
    """The norm of each row of x: (N, D) -> (N, D), the statistics in float32."""
    x = x.contiguous()
    out = torch.empty_like(x)
    rows, width = x.shape
    columns = triton.next_power_of_2(width)
    overlap = overlaps(x)
    if rows:
        _normalize[(rows,)](
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
def _normalize(
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

"""One product with a matrix of weights, and everything that stands around it in a block.

N rows, D features in, O features out.

    x (N, D) -> norm -> weight (O, D) -> times scale, plus bias -> activation -> plus (N, O)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.feedforward import ACTIVATIONS
from glassformer.errors import GlassformerError
from glassformer.inference.gpu import activations
from glassformer.inference.gpu.norms import Norm, normed
from glassformer.inference.gpu.tiles import MOST, MOST_INT8, tiled_product
from glassformer.inference.gpu.vector import vector_product


def product(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    norm: Norm | None = None,
    plus: Tensor | None = None,
    activation: activations.Activation | None = None,
    gated: bool = False,
) -> Tensor:
    """x (N, D), weight (O, D) -> activation(norm(x) weight^T * scale + bias) + plus: (N, O).

    bias, scale (O,): with a scale the weight is int8, and row o stands for scale[o] * weight[o].
    gated: weight is (2 * O, D), the gate's rows and then the others', which the activated gate multiplies.
    One row goes through at nearly the speed of the memory, up to 32 (of int8, 128) through the tensor
    cores; more, and several float32 rows, through torch's own product. The weight, scale and bias must not
    be what the kernel just before this one writes: they are read ahead of its end.
    """
    _check(x, weight, scale=scale, activation=activation, gated=gated)
    x = x.contiguous()
    if plus is not None:
        plus = plus.contiguous()
    rows = x.shape[0]
    if rows == 1:
        return vector_product(
            x, weight, bias=bias, scale=scale, norm=norm, plus=plus, activation=activation, gated=gated
        )
    if norm is not None:
        x = normed(x, norm)
    most = MOST if scale is None else MOST_INT8
    if 1 < rows <= most and x.dtype != torch.float32:
        return tiled_product(x, weight, bias=bias, scale=scale, plus=plus, activation=activation, gated=gated)
    return _plain(x, weight, bias=bias, scale=scale, plus=plus, activation=activation, gated=gated)


def _plain(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None,
    scale: Tensor | None,
    plus: Tensor | None,
    activation: activations.Activation | None,
    gated: bool,
) -> Tensor:
    if scale is not None:
        y = F.linear(x, weight.to(x.dtype)) * scale
        y = y.to(x.dtype) if bias is None else (y + bias).to(x.dtype)
    elif plus is not None and bias is None and activation is None and not gated:
        return torch.addmm(plus, x, weight.t())
    elif bias is not None and activation == "relu" and not gated:
        y = torch._addmm_activation(bias, x, weight.t())  # in the same kernel
        return y if plus is None else y + plus
    else:
        y = F.linear(x, weight, bias)
    if gated:
        gate, up = y.chunk(2, -1)
        y = (gate if activation is None else ACTIVATIONS[activation](gate)) * up
    elif activation is not None:
        y = ACTIVATIONS[activation](y)
    return y if plus is None else y + plus


def _check(x: Tensor, weight: Tensor, *, scale: Tensor | None, activation: str | None, gated: bool) -> None:
    activations.check(activation)
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise GlassformerError(
            f"a product needs x (N, D) and weight (O, D); got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if not weight.is_contiguous():
        raise GlassformerError("the weight of a product must lie row by row; make it contiguous once")
    if gated and weight.shape[0] % 2:
        raise GlassformerError(
            f"a gated product needs the gate's rows and as many others; the weight has {weight.shape[0]} rows"
        )
    whole = weight.dtype == torch.int8
    if whole != (scale is not None):
        raise GlassformerError("a product takes int8 weights with a scale for each row, others without")

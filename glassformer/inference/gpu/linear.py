"""Linear layers on a GPU: one product with a weight matrix, with everything that surrounds it in a block.

    x (N, D) -> norm -> weight (O, D) -> times scale, plus bias -> activation -> plus residual (N, O)

N rows, D features in, O features out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.backend import ACTIVATIONS, Norm
from glassformer.core.norms import LayerNorm, RMSNorm
from glassformer.core.spec import Activation
from glassformer.errors import InvalidValueError, ShapeError
from glassformer.inference.gpu import elementwise
from glassformer.inference.gpu.elementwise import NormWeights, norm_weights, normalize
from glassformer.inference.gpu.matrix_kernel import MAX_ROWS, MAX_ROWS_INT8, matrix_product
from glassformer.inference.gpu.vector_kernel import vector_product
from glassformer.inference.linear import concatenate, finish
from glassformer.inference.prepare import Part, hooked


class TritonLinear:
    """The weights as they are; see `FusedLinear`."""

    captures = True  # steps on these layers can be captured in a CUDA graph

    def __init__(self, parts: Sequence[Part]) -> None:
        weight, bias = concatenate(parts)
        self.weight, self.bias = weight.detach().contiguous(), None if bias is None else bias.detach()
        self.scale: Tensor | None = None

    def __call__(
        self,
        x: Tensor,
        *,
        norm: Norm | None = None,
        activation: Activation | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        fused = norm_weights(norm) if isinstance(norm, RMSNorm | LayerNorm) and not hooked(norm) else None
        if norm is not None and fused is None:
            x = norm(x)
        known = activation is None or activation in get_args(elementwise.Activation)
        y = product(
            x,
            self.weight,
            bias=self.bias,
            scale=self.scale,
            norm=fused,
            residual=residual if known else None,
            activation=cast(elementwise.Activation, activation) if known else None,
            gated=gated and known,
        )
        return y if known else finish(y, activation, gated, residual)


class TritonInt8Linear(TritonLinear):
    """int8 weights with a scale for each output row: half the memory traffic."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(parts)
        weight = self.weight.float()
        scale = (weight.abs().amax(1) / 127).clamp(min=1e-12)  # (O,)
        self.weight = (weight / scale[:, None]).round().to(torch.int8)
        self.scale = scale


def product(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    norm: NormWeights | None = None,
    residual: Tensor | None = None,
    activation: elementwise.Activation | None = None,
    gated: bool = False,
) -> Tensor:
    """x (N, D), weight (O, D) -> activation(norm(x) weight^T * scale + bias) + residual: (N, O).

    bias, scale (O,): with a scale the weight is int8, and row o stands for scale[o] * weight[o].
    gated: weight is (2 * O, D), the gate's rows and then the others', which the activated gate multiplies.
    One row goes through at nearly the speed of the memory, up to 32 (of int8, 128) through the tensor
    cores; more, and several float32 rows, through torch's own product. The weight, scale and bias must not
    be what the kernel just before this one writes: they are read ahead of its end.
    """
    _check(x, weight, scale=scale, activation=activation, gated=gated)
    x = x.contiguous()
    if residual is not None:
        residual = residual.contiguous()
    rows = x.shape[0]
    if rows == 1:
        return vector_product(
            x,
            weight,
            bias=bias,
            scale=scale,
            norm=norm,
            residual=residual,
            activation=activation,
            gated=gated,
        )
    if norm is not None:
        x = normalize(x, norm)
    most = MAX_ROWS if scale is None else MAX_ROWS_INT8
    if 1 < rows <= most and x.dtype != torch.float32:
        return matrix_product(
            x, weight, bias=bias, scale=scale, residual=residual, activation=activation, gated=gated
        )
    return _plain(x, weight, bias=bias, scale=scale, residual=residual, activation=activation, gated=gated)


def _plain(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    activation: elementwise.Activation | None,
    gated: bool,
) -> Tensor:
    if scale is not None:
        y = F.linear(x, weight.to(x.dtype)) * scale
        y = y.to(x.dtype) if bias is None else (y + bias).to(x.dtype)
    elif residual is not None and bias is None and activation is None and not gated:
        return torch.addmm(residual, x, weight.t())
    elif bias is not None and activation == "relu" and not gated:
        y = torch._addmm_activation(bias, x, weight.t())  # in the same kernel
        return y if residual is None else y + residual
    else:
        y = F.linear(x, weight, bias)
    if gated:
        gate, up = y.chunk(2, -1)
        y = (gate if activation is None else ACTIVATIONS[activation](gate)) * up
    elif activation is not None:
        y = ACTIVATIONS[activation](y)
    return y if residual is None else y + residual


def _check(x: Tensor, weight: Tensor, *, scale: Tensor | None, activation: str | None, gated: bool) -> None:
    elementwise.check_activation(activation)
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ShapeError("weight", weight.shape, f"(O, D) for x (N, D) of shape {tuple(x.shape)}")
    if not weight.is_contiguous():
        raise InvalidValueError("weight", "a strided tensor", "a contiguous one")
    if gated and weight.shape[0] % 2:
        raise ShapeError("weight", weight.shape, "an even number of rows, for the gate and the up projection")
    if (weight.dtype == torch.int8) != (scale is not None):
        raise InvalidValueError("scale", scale, "one for each row of int8 weights, None for others")

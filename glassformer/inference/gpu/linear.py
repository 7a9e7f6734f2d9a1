"""Linear layers on a GPU, fused with the norm before them and the activation and residual after them.

    x (N, D) -> norm -> weight (O, D) -> * scale + bias -> activation -> + residual (N, O)

N rows, D features in, O features out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.backend import Norm
from glassformer.core.norms import LayerNorm, RMSNorm
from glassformer.core.spec import Activation
from glassformer.inference.gpu.linear_kernels import (
    FUSED_ACTIVATIONS,
    MAX_ROWS,
    MAX_ROWS_INT8,
    NormWeights,
    matrix_product,
    norm_weights,
    normalize,
    vector_product,
)
from glassformer.inference.linear import apply_epilogue, concatenate
from glassformer.inference.prepare import WeightAndBias, hooked


class TritonLinear:
    """Fused linear layer with unquantized weights; see `FusedLinear`."""

    supports_cuda_graphs = True

    def __init__(self, parts: Sequence[WeightAndBias]) -> None:
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
        if torch.compiler.is_compiling() and self.scale is None:  # the compiler fuses these steps
            y = F.linear(x if norm is None else norm(x), self.weight, self.bias)
            return apply_epilogue(y, activation, gated, residual)
        fused = norm_weights(norm) if isinstance(norm, RMSNorm | LayerNorm) and not hooked(norm) else None
        if norm is not None and fused is None:
            x = norm(x)
        if activation is not None and activation not in FUSED_ACTIVATIONS:
            y = fused_linear(x, self.weight, bias=self.bias, scale=self.scale, norm=fused)
            return apply_epilogue(y, activation, gated, residual)
        return fused_linear(
            x,
            self.weight,
            bias=self.bias,
            scale=self.scale,
            norm=fused,
            residual=residual,
            activation=activation,
            gated=gated,
        )


class TritonInt8Linear(TritonLinear):
    """Fused linear layer with int8 weights, one scale per output row: half the memory traffic of 16 bits."""

    def __init__(self, parts: Sequence[WeightAndBias]) -> None:
        super().__init__(parts)
        weight = self.weight.float()
        scale = (weight.abs().amax(1) / 127).clamp(min=1e-12)  # (O,)
        self.weight = (weight / scale[:, None]).round().to(torch.int8)
        self.scale = scale


def fused_linear(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    norm: NormWeights | None = None,
    residual: Tensor | None = None,
    activation: Activation | None = None,
    gated: bool = False,
) -> Tensor:
    """Compute activation(norm(x) weight^T * scale + bias) + residual: x (N, D), weight (O, D) -> (N, O).

    bias, scale (O,): with a scale, the weight is int8, and its row o stands for scale[o] * weight[o].
    gated: weight is (2 * O, D), the rows of the gate and then those of the up projection.
    One row runs at nearly memory bandwidth. Up to 32 rows (128 for int8) run on the tensor cores. More rows,
    and several float32 rows, use torch's matrix multiplication. The kernel launched just
    before must not write weight, scale or bias: they are read before it has finished.
    """
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    rows, max_rows = x.shape[0], MAX_ROWS if scale is None else MAX_ROWS_INT8
    if rows == 1:
        return vector_product(x, weight, bias, scale, norm, residual, activation, gated)
    if norm is not None:
        x = normalize(x, norm)
    if 1 < rows <= max_rows and x.dtype != torch.float32:
        return matrix_product(x, weight, bias, scale, residual, activation, gated)
    if scale is not None:
        y = F.linear(x, weight.to(x.dtype)) * scale
        return apply_epilogue((y if bias is None else y + bias).to(x.dtype), activation, gated, residual)
    if residual is not None and bias is None and activation is None and not gated:
        return torch.addmm(residual, x, weight.t())
    if bias is not None and activation == "relu" and not gated:
        y = torch._addmm_activation(bias, x, weight.t())  # in the same kernel
        return y if residual is None else y + residual
    return apply_epilogue(F.linear(x, weight, bias), activation, gated, residual)

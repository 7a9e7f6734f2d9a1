"""Optimized implementations of simple operations; the rest of the core follows the definitions directly.

Each function computes the formula in its docstring. The optimizations:

- `linear`: large float32 matrix multiplications on a CPU use torch's oneDNN kernel, which is faster than the
  default one and adds the bias in the same pass. The operator is internal to torch. If a build of torch
  lacks it, or the matrices are small, `F.linear` is used.
- `dropout`: on a CPU, generating random numbers dominates the cost, so each 64-bit draw is used as four
  16-bit numbers. p is rounded to a multiple of 1/65536, and the scale is exact for the rounded p.
- `project`: on a GPU, projections of the same input are computed as one matrix multiplication with their
  concatenated weights.
- `activate`, `add_residual`: the result overwrites the input if nothing else can read it.
- `residual_stream`: under bfloat16 autocast the residual stream is bfloat16 as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.spec import Activation
from glassformer.errors import InvalidValueError

Norm = Callable[[Tensor], Tensor]


def normal_table(rows: int, width: int, std: float = 0.02) -> nn.Parameter:
    """Create a parameter (rows, width) with normally distributed values; uninitialized on the meta device.

    Initializing on the meta device would make torch import its compiler, which adds two seconds to every
    load.
    """
    table = nn.Parameter(torch.empty(rows, width))
    if not table.is_meta:
        nn.init.normal_(table, std=std)
    return table


# ---- linear -------------------------------------------------------------------------------------------

_MIN_ROWS, _MIN_WIDTH = 64, 128  # for smaller matrices the dispatch costs more than it saves
_onednn_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch._C._has_mkldnn else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x W^T + b: x (..., in), weight (out, in), bias (out,) -> (..., out).

    >>> linear(torch.ones(2, 3), torch.ones(4, 3)).tolist()
    [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """
    if not _use_onednn(x, weight):
        return F.linear(x, weight, bias)
    y: Tensor
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        y = _OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    else:
        y = _onednn_linear(x, weight, bias, "none", [], "")
    return y


def _use_onednn(x: Tensor, weight: Tensor) -> bool:
    if _onednn_linear is None or not x.is_cpu or torch.compiler.is_compiling():
        return False
    plain = x.dtype == weight.dtype == torch.float32 and x.is_contiguous() and weight.is_contiguous()
    large = min(weight.shape) >= _MIN_WIDTH and x.numel() >= _MIN_ROWS * weight.shape[1]
    return plain and large and not torch.is_autocast_enabled("cpu")


class _OneDnnLinear(torch.autograd.Function):
    """oneDNN for the output and the gradient of x; for the weight's gradient, torch's kernel is faster."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y: Tensor = _onednn_linear(x, weight, bias, "none", [], "")
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grads[0].reshape(-1, weight.shape[0])  # (rows, out)
        needed = ctx.needs_input_grad
        return (
            _onednn_linear(grad, weight.T, None, "none", [], "").view(x.shape) if needed[0] else None,
            grad.T @ x.reshape(-1, weight.shape[1]) if needed[1] else None,
            grad.sum(0) if needed[2] else None,
        )


class Linear(nn.Linear):
    """nn.Linear computed with `linear`: (..., in) -> (..., out).

    >>> import torch
    >>> Linear(8, 32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 32])
    """

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class FusedLinear(Protocol):
    """Protocol: linear layers of the same input, fused with the norm, activation and residual around them."""

    def __call__(
        self,
        x: Tensor,
        *,
        norm: Norm | None = None,
        activation: Activation | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        """x (N, D) -> activation(norm(x) W^T + b) + residual, (N, O).

        gated: W stacks a gate and an up projection; the result is activation(gate) * up.
        """
        ...


def project(x: Tensor, *projections: nn.Linear) -> tuple[Tensor, ...]:
    """Return each projection of x (B, T, D), or of rows (N, D)."""
    biases: list[Tensor] = [p.bias for p in projections if p.bias is not None]
    one_token = x.dim() == 2 or x.shape[1] == 1  # not worth concatenating weights
    adapted = any(p._modules for p in projections)  # more than a weight and a bias
    if not x.is_cuda or one_token or adapted or len(biases) not in (0, len(projections)):
        return tuple(projection(x) for projection in projections)
    weight = torch.cat([p.weight for p in projections])
    bias = torch.cat(biases) if biases else None
    return F.linear(x, weight, bias).split_with_sizes([p.out_features for p in projections], -1)


# ---- dropout ------------------------------------------------------------------------------------------

_STEPS = 1 << 16  # values of a 16-bit random number


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero each element of `x` with probability `p` and divide the others by 1 - p."""
    if not training or p == 0.0:
        return x
    return x * _dropout_mask(x, p) if _use_16_bits(x, p) else F.dropout(x, p)


def relu_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Compute dropout(relu(x)), saving one tensor for the backward pass instead of two."""
    if training and p and _use_16_bits(x, p):
        y: Tensor = _ReluDropout.apply(x, p)  # type: ignore[no-untyped-call]
        return y
    return dropout(F.relu(x), p, training)


class Dropout(nn.Module):
    """`dropout` as a module; the identity in evaluation mode.

    >>> Dropout(0.5).eval()(torch.ones(2, 3)).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise InvalidValueError("dropout", p, "a rate from 0 to 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def _use_16_bits(x: Tensor, p: float) -> bool:
    """Whether to use 16-bit random numbers; torch.compile cannot trace the view of 64-bit draws as 16-bit."""
    plain = x.is_cpu and x.dtype == torch.float32 and not torch.compiler.is_compiling()
    return plain and 0 < round(p * _STEPS) < _STEPS


def _dropout_mask(x: Tensor, p: float) -> Tensor:
    """Return a tensor shaped like x: 0 with probability p, else 1 / (1 - p)."""
    threshold = round(p * _STEPS)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    numbers = draws.view(torch.int16)[: x.numel()].view(x.shape)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mask = torch.ge(numbers, threshold - _STEPS // 2, out=out)  # 1.0 or 0.0
    return mask.mul_(_STEPS / (_STEPS - threshold))


class _ReluDropout(torch.autograd.Function):
    """dropout(relu(x)). The gradient is 0 wherever the output is 0, so only the output is saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        y = torch.relu(x).mul_(_dropout_mask(x, p))
        ctx.save_for_backward(y)
        ctx.scale = _STEPS / (_STEPS - round(p * _STEPS))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grads[0], y, 0).mul_(ctx.scale), None


# ---- activations --------------------------------------------------------------------------------------


def _gelu_tanh(x: Tensor) -> Tensor:
    if torch.compiler.is_compiling() and x.is_cuda:
        # (1 + tanh u) / 2 = sigmoid(2u), which a compiled kernel computes faster than tanh
        y = x.float()
        return (y * torch.sigmoid(math.sqrt(8 / math.pi) * (y + 0.044715 * y * y * y))).to(x.dtype)
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "quick_gelu": _quick_gelu,
    "tanh": torch.tanh,
}

_IN_PLACE: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "silu": partial(F.silu, inplace=True),
    "tanh": torch.tanh_,
}


def activate(name: Activation, x: Tensor, *, producers: Sequence[nn.Module] | None = None) -> Tensor:
    """Apply an activation to x. producers: the modules that just computed x, if x may be overwritten."""
    if producers is not None and name in _IN_PLACE and can_overwrite(*producers):
        return _IN_PLACE[name](x)
    return ACTIVATIONS[name](x)


def apply_softcap(x: Tensor, softcap: float | None) -> Tensor:
    """Bound x smoothly: softcap * tanh(x / softcap); None: return x."""
    return x if softcap is None else softcap * torch.tanh(x / softcap)


# ---- the residual stream --------------------------------------------------------------------------------


def can_overwrite(*producers: nn.Module) -> bool:
    """Whether the output of these modules may be overwritten: no gradient or forward hook needs it."""
    return not torch.is_grad_enabled() and not any(module._forward_hooks for module in producers)


def add_residual(
    x: Tensor, out: Tensor, p: float, training: bool, *, producers: Sequence[nn.Module] | None = None
) -> Tensor:
    """Return x + dropout(out). producers: the modules that just computed `out`, if it may be overwritten.

    `out` is overwritten only if the sum has the same memory layout: the rounding of the next matrix
    multiplication depends on the layout.
    """
    alike = out.dtype == x.dtype and out.stride() == x.stride()
    if not training and producers is not None and alike and can_overwrite(*producers):
        return out.add_(x)
    if training and p and out.dtype == x.dtype and _use_16_bits(out, p):
        return torch.addcmul(x, out, _dropout_mask(out, p))
    return x + dropout(out, p, training)


def residual_stream(x: Tensor) -> Tensor:
    """Cast x to the residual dtype: bfloat16 under bfloat16 autocast, which halves memory traffic.

    Under float16 autocast it stays float32, because the growing residual stream may exceed the range of
    float16.
    """
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return x
    if torch.get_autocast_dtype(kind) == torch.bfloat16:
        return x.to(torch.bfloat16)
    return x

"""Linear layers with weights packed for the device; see `core.backend.FusedLinear`.

`PackedLinear` has float32 weights in oneDNN's blocked layout. `Int8Linear` has int8 weights with one scale
per output row, and quantizes each row of its input by the range of that row. `int4.Int4Linear` has 4-bit
weights; layers whose shape its kernels do not support have int8 weights instead. `ModuleLinear` calls the
model's own modules. All work on rows (N, D).

N rows, D features in, O features out.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.backend import ACTIVATIONS, FusedLinear, Norm
from glassformer.core.spec import Activation
from glassformer.errors import ConflictError, UnsupportedError
from glassformer.inference.prepare import LinearFactory, WeightAndBias, has_triton

WeightFormat = Literal["own", "int8", "int4"]
_GPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # the kernels accumulate in float32


def choose_linear(weights: WeightFormat, like: Tensor) -> LinearFactory | None:
    """Return the fastest linear layer for the device and dtype of `like`; None: the model's modules."""
    device, dtype = like.device, like.dtype
    if torch.is_autocast_enabled(device.type):
        if weights != "own":
            raise ConflictError(
                (f"{weights} weights", "autocast"), "its matrix multiplication ignores autocast"
            )
        return None
    if weights == "int4" and device.type in ("cpu", "cuda"):
        from glassformer.inference.int4 import Int4Linear, fits_int4

        other = choose_linear("int8", like)

        def make(parts: Sequence[WeightAndBias]) -> FusedLinear:
            fits = all(fits_int4(weight) for weight, _ in parts)
            return Int4Linear(parts) if fits or other is None else other(parts)

        make.supports_cuda_graphs = device.type == "cuda"  # type: ignore[attr-defined]
        return make
    if device.type == "cuda" and dtype in _GPU_DTYPES and has_triton():
        from glassformer.inference.gpu.linear import TritonInt8Linear, TritonLinear

        return TritonInt8Linear if weights == "int8" else TritonLinear
    if weights != "own":
        if device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines:
            return Int8Linear
        raise UnsupportedError(f"this {device.type} device", f"{weights} weights", hint="use float32")
    if device.type == "cpu" and dtype == torch.float32 and _onednn() is not None:
        return PackedLinear
    return None


def apply_epilogue(y: Tensor, activation: Activation | None, gated: bool, residual: Tensor | None) -> Tensor:
    """Apply gate, activation and residual to the linear output y (N, O), or (N, 2 * O) if gated."""
    if gated:
        y, up = y.chunk(2, -1)
    y = y if activation is None else ACTIVATIONS[activation](y)
    y = y * up if gated else y
    return y if residual is None else y + residual


class UnfusedLinear(ABC):
    """Base of linear layers that compute norm, activation and residual in separate steps."""

    @abstractmethod
    def product(self, x: Tensor) -> Tensor:
        """Return x W^T + b for x (N, D): (N, O)."""

    def __call__(
        self,
        x: Tensor,
        *,
        norm: Norm | None = None,
        activation: Activation | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        x = x if norm is None else norm(x)
        return apply_epilogue(self.product(x), activation, gated, residual)


class ModuleLinear(UnfusedLinear):
    """Call the original linear modules; used if a projection was replaced or has hooks."""

    def __init__(self, projections: Sequence[nn.Module]) -> None:
        self.projections = projections

    def product(self, x: Tensor) -> Tensor:
        outputs = [projection(x[None])[0] for projection in self.projections]  # a batch of one
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)


# activations that oneDNN fuses into a linear layer
_FUSED: dict[Activation, tuple[str, str]] = {
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}


@cache
def _onednn() -> Any:
    """Return torch's internal oneDNN operators; None if this build of torch lacks them."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    available = torch._C._has_mkldnn and all(hasattr(torch.ops.mkldnn, name) for name in names)
    return torch.ops.mkldnn if available else None


class PackedLinear:
    """Linear layer with float32 weights in oneDNN's blocked layout: up to twice as fast for few rows."""

    def __init__(self, parts: Sequence[WeightAndBias]) -> None:
        weight, self.bias = concatenate(parts)
        self.parts, self.tall = parts, weight.shape[0] >= weight.shape[1]
        self.transposed: Tensor | None = None  # (D, O)
        with torch.inference_mode(False):
            self.weight = _onednn()._reorder_linear_weight(weight.detach().clone())

    def __call__(
        self,
        x: Tensor,
        *,
        norm: Norm | None = None,
        activation: Activation | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        x = x if norm is None else norm(x)
        if torch.compiler.is_compiling():  # which does not know oneDNN's layout
            return apply_epilogue(F.linear(x, *concatenate(self.parts)), activation, gated, residual)
        if len(x) == 1 and torch.get_num_threads() == 1 and self.tall:
            return apply_epilogue(self._one_row(x), activation, gated, residual)
        run: Any = _onednn()._linear_pointwise
        y: Tensor
        if activation is None and residual is not None:
            y = run.binary(x, residual, self.weight, self.bias, "add")
            return y
        if activation in _FUSED and not gated:
            name, algorithm = _FUSED[activation]
            y = run(x, self.weight, self.bias, name, [], algorithm)
            return y if residual is None else y + residual
        return apply_epilogue(run(x, self.weight, self.bias, "none", [], ""), activation, gated, residual)

    def _one_row(self, x: Tensor) -> Tensor:
        """Multiply one row on one thread; transposed weights are faster, because memory is read in order."""
        if self.transposed is None:
            self.transposed = concatenate(self.parts)[0].detach().t().contiguous()
        return x @ self.transposed if self.bias is None else torch.addmm(self.bias, x, self.transposed)


class Int8Linear(UnfusedLinear):
    """Linear layer with int8 weights and inputs, and int32 sums: a quarter of the memory traffic."""

    def __init__(self, parts: Sequence[WeightAndBias]) -> None:
        weight, bias = concatenate(parts)
        weight = weight.detach().float()
        scale = (weight.abs().amax(1) / 127).clamp(min=1e-12)
        with torch.inference_mode(False), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation of torch's quantized tensors
            quantized = torch.quantize_per_channel(
                weight.clone(), scale.clone(), torch.zeros(len(scale), dtype=torch.long), 0, torch.qint8
            )
            self.packed = torch.ops.quantized.linear_prepack(quantized, None)
        self.bias = None if bias is None else bias.detach().float()

    def product(self, x: Tensor) -> Tensor:
        # The operator uses one range for all rows. So each row is scaled to the same largest value, and two
        # extra rows make the range -1 to 1: no row's result depends on the others.
        values = x.float()
        size = values.abs().amax(-1, keepdim=True).clamp_(min=1e-12)  # (N, 1)
        rows = values.new_empty(len(values) + 2, values.shape[1])
        torch.div(values, size, out=rows[:-2])
        rows[-2].fill_(1.0)
        rows[-1].fill_(-1.0)
        y: Tensor = torch.ops.quantized.linear_dynamic(rows, self.packed, _reduce_range())[:-2]
        y = y.mul_(size) if self.bias is None else torch.addcmul(self.bias, y, size)
        return y.to(x.dtype)


@cache
def _reduce_range() -> bool:
    """Whether inputs must fit in seven bits: without VNNI, pairs of products are summed in 16 bits."""
    check = getattr(torch.cpu, "_is_vnni_supported", None) or getattr(
        torch.cpu, "_is_avx512_vnni_supported", None
    )
    return check is None or not check()


def concatenate(parts: Sequence[WeightAndBias]) -> tuple[Tensor, Tensor | None]:
    """Concatenate weights of the same input (O, D), and their biases (O,); missing biases are zero."""
    weight = parts[0][0] if len(parts) == 1 else torch.cat([weight for weight, _ in parts])
    if all(bias is None for _, bias in parts):
        return weight, None
    biases = [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in parts]
    return weight, biases[0] if len(biases) == 1 else torch.cat(biases)

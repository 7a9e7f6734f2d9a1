"""x W^T + b, with the weights laid out as the machine multiplies them fastest.

`Plain` is torch's own product on the model's own weights, and the definition of the others. `Packed` holds
float32 weights in oneDNN's blocks. `Int8` holds them in eight bits, one scale an output row, and rounds what
comes in to eight bits as well, each row by its own range. All take and give flat rows (N, D).

N rows, D features in, O features out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from glassformer.core.feedforward import ACTIVATIONS
from glassformer.core.linear import linear
from glassformer.core.spec import Activation
from glassformer.errors import GlassformerError
from glassformer.inference.triton import has_triton

Weights = Literal["own", "int8"]
Norm = Callable[[Tensor], Tensor]  # of rows (N, D)
Part = tuple[Tensor, Tensor | None]  # a matrix (O, D), and its bias (O,) if any


class Product(Protocol):
    """Matrices side by side that read the same rows: one product gives what each of them gives."""

    def __call__(
        self,
        x: Tensor,
        *,
        norm: Norm | None = None,
        activation: Activation | None = None,
        gated: bool = False,
        plus: Tensor | None = None,
    ) -> Tensor:
        """x (N, D) -> activation(norm(x) W^T + b) + plus, (N, O).

        gated: the first of the two matrices is the gate, whose activation multiplies what the other gives.
        """
        ...


Lay = Callable[[Sequence[Part]], Product]


def finished(y: Tensor, activation: Activation | None, gated: bool, plus: Tensor | None) -> Tensor:
    """What follows a product, on its fresh result y (N, O or 2 * O)."""
    if gated:
        y, up = y.chunk(2, -1)
    y = y if activation is None else ACTIVATIONS[activation](y)
    y = y * up if gated else y
    return y if plus is None else y + plus


_ON_GPU = (torch.float32, torch.bfloat16, torch.float16)  # kernels there sum in float32


def laying(asked: Weights | Lay, like: Tensor) -> Lay:
    """The layout asked for, or the one for weights like this one: of its precision, on its device."""
    if not isinstance(asked, str):
        return asked
    device, dtype = like.device, like.dtype
    if torch.is_autocast_enabled(device.type):
        if asked == "int8":
            raise GlassformerError("autocast has no say in int8 products; leave one of the two out")
        return Plain
    if device.type == "cuda" and dtype in _ON_GPU and has_triton():
        from glassformer.inference.gpu.products import OnGpu, RoundedOnGpu

        return RoundedOnGpu if asked == "int8" else OnGpu
    if asked == "int8":
        if device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines:
            return Int8
        raise GlassformerError(
            f"no int8 products for such weights on {device.type} here; use float32, or another device"
        )
    if device.type == "cpu" and dtype == torch.float32 and _onednn() is not None:
        return Packed
    return Plain


class InTurn:
    """A product with what stands around it done one after the other, on what `multiplied` gives."""

    def multiplied(self, x: Tensor) -> Tensor:
        """x (N, D) -> x W^T + b, (N, O)."""
        raise NotImplementedError

    def __call__(
        self,
        x: Tensor,
        *,
        norm: Norm | None = None,
        activation: Activation | None = None,
        gated: bool = False,
        plus: Tensor | None = None,
    ) -> Tensor:
        x = x if norm is None else norm(x)
        return finished(self.multiplied(x), activation, gated, plus)


class Plain(InTurn):
    """The weights as they are."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def multiplied(self, x: Tensor) -> Tensor:
        return _joined([linear(x, weight, bias) for weight, bias in self.parts])


class Called(InTurn):
    """Projections that are more than a matrix, or are looked at: each is called."""

    def __init__(self, projections: Sequence[nn.Module]) -> None:
        self.projections = projections

    def multiplied(self, x: Tensor) -> Tensor:
        return _joined([projection(x[None])[0] for projection in self.projections])  # a batch of one


def _joined(found: Sequence[Tensor]) -> Tensor:
    return found[0] if len(found) == 1 else torch.cat(list(found), -1)


# oneDNN's words for what it can do on its way out of a product
_FUSED: dict[Activation, tuple[str, str]] = {
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}


@cache
def _onednn() -> Any:
    """The operators that torch keeps for its compiler; None where a build has none."""
    wanted = ("_linear_pointwise", "_reorder_linear_weight")
    there = torch._C._has_mkldnn and all(hasattr(torch.ops.mkldnn, name) for name in wanted)
    return torch.ops.mkldnn if there else None


class Packed:
    """float32 in oneDNN's blocks: the same sums, at up to twice the speed for few rows."""

    def __init__(self, parts: Sequence[Part]) -> None:
        weight, self.bias = side_by_side(parts)
        self.parts, self.tall = parts, weight.shape[0] >= weight.shape[1]
        self.upright: Tensor | None = None  # (D, O)
        with torch.inference_mode(False):
            self.weight = _onednn()._reorder_linear_weight(weight.detach().clone())

    def __call__(
        self,
        x: Tensor,
        *,
        norm: Norm | None = None,
        activation: Activation | None = None,
        gated: bool = False,
        plus: Tensor | None = None,
    ) -> Tensor:
        x = x if norm is None else norm(x)
        if len(x) == 1 and torch.get_num_threads() == 1 and self.tall:
            return finished(self._one_row(x), activation, gated, plus)
        run: Any = _onednn()._linear_pointwise
        found: Tensor
        if activation is None and plus is not None:
            found = run.binary(x, plus, self.weight, self.bias, "add")
            return found
        if activation in _FUSED and not gated:
            name, algorithm = _FUSED[activation]
            found = run(x, self.weight, self.bias, name, [], algorithm)
            return found if plus is None else found + plus
        return finished(run(x, self.weight, self.bias, "none", [], ""), activation, gated, plus)

    def _one_row(self, x: Tensor) -> Tensor:
        """One row by one thread reads memory in order, and faster, where the weights stand upright."""
        if self.upright is None:
            self.upright = side_by_side(self.parts)[0].detach().t().contiguous()
        return x @ self.upright if self.bias is None else torch.addmm(self.bias, x, self.upright)


class Int8(InTurn):
    """Eight bits a weight and a value, summed in 32: a quarter of the memory to read."""

    def __init__(self, parts: Sequence[Part]) -> None:
        weight, bias = side_by_side(parts)
        weight = weight.detach().float()
        scale = (weight.abs().amax(1) / 127).clamp(min=1e-12)
        with torch.inference_mode(False), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's quantised tensors will move elsewhere one day
            rounded = torch.quantize_per_channel(
                weight.clone(), scale.clone(), torch.zeros(len(scale), dtype=torch.long), 0, torch.qint8
            )
            self.packed = torch.ops.quantized.linear_prepack(rounded, None)
        self.bias = None if bias is None else bias.detach().float()

    def multiplied(self, x: Tensor) -> Tensor:
        # One range is taken for all rows of a call. So each row is brought to the same largest value, and two
        # rows more make the range -1 to 1: then no row's result depends on the others.
        wide = x.float()
        size = wide.abs().amax(-1, keepdim=True).clamp_(min=1e-12)  # (N, 1)
        rows = wide.new_empty(len(wide) + 2, wide.shape[1])
        torch.div(wide, size, out=rows[:-2])
        rows[-2].fill_(1.0)
        rows[-1].fill_(-1.0)
        y: Tensor = torch.ops.quantized.linear_dynamic(rows, self.packed, _narrow())[:-2]
        y = y.mul_(size) if self.bias is None else torch.addcmul(self.bias, y, size)
        return y.to(x.dtype)


@cache
def _narrow() -> bool:
    """Whether values must keep to seven bits: without VNNI, pairs of products are summed in 16."""
    known = getattr(torch.cpu, "_is_vnni_supported", None) or getattr(
        torch.cpu, "_is_avx512_vnni_supported", None
    )
    return known is None or not known()


def side_by_side(parts: Sequence[Part]) -> tuple[Tensor, Tensor | None]:
    """Matrices that read the same rows as one (O, D); their biases as one (O,), zero where one has none."""
    weight = parts[0][0] if len(parts) == 1 else torch.cat([weight for weight, _ in parts])
    if all(bias is None for _, bias in parts):
        return weight, None
    biases = [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in parts]
    return weight, biases[0] if len(biases) == 1 else torch.cat(biases)

"""Int8 weight storage: integers from -127 to 127 with one scale per row.

A tensor X of two or more dimensions is stored as X in I8 with X.scale in F32, one number for each index of
X's first dimension; dequantization multiplies each row by its scale, in float32. Vectors stay float32.

A scale has 16 significant bits, so that its product with an int8 value is exact in float32, and the largest
absolute value of a row always becomes 127: quantizing dequantized weights again gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from glassformer.errors import FileProblemError, NonFiniteError

MAX_VALUE = 127
SCALE_BITS = 16
MIN_SCALE = 2.0**-100  # far above float32's subnormals; a row of smaller numbers is stored as zeros
SCALE = ".scale"


def quantize_state(state: Mapping[str, Tensor], exact: Collection[str] = ()) -> dict[str, Tensor]:
    """Return the tensors to store: matrices as int8 with their scales, the rest in float32.

    exact: names of matrices that are not quantized.
    """
    quantized: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            quantized[name] = tensor
        elif tensor.ndim < 2 or name in exact or not tensor.numel():
            quantized[name] = tensor.float()
        else:
            if not tensor.isfinite().all():
                raise NonFiniteError(f"tensor {name}", hint="save it in float32")
            quantized[name], quantized[name + SCALE] = quantize_rows(tensor)
    return quantized


def quantize_rows(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize (R, ...) to int8 (R, ...), rounded to nearest, with one float32 scale per row (R,).

    >>> numbers, scale = quantize_rows(torch.tensor([[1.0, -0.5, 0.0], [0.0, 0.0, 0.0]]))
    >>> numbers.tolist(), [round(step, 4) for step in scale.tolist()]
    ([[127, -64, 0], [0, 0, 0]], [0.0079, 0.0])
    """
    rows = tensor.detach().reshape(len(tensor), -1)
    mantissa, exponent = torch.frexp(rows.abs().amax(1).double() / MAX_VALUE)
    scale = torch.ldexp((mantissa * 2**SCALE_BITS).floor() / 2**SCALE_BITS, exponent)  # rounded down
    scale[scale < MIN_SCALE] = 0.0
    steps = torch.where(scale > 0, scale, torch.inf)
    numbers = (rows.double() / steps[:, None]).round_().clamp_(-MAX_VALUE, MAX_VALUE)
    return numbers.to(torch.int8).reshape(tensor.shape), scale.float()


class StoredWeights(Mapping[str, Tensor]):
    """The tensors of a folder as they are stored, without the scales of int8 tensors.

    The scales are validated immediately: each must exist, match the rows of its tensor, and be finite.
    """

    def __init__(self, weights: Mapping[str, Tensor], where: str | Path) -> None:
        self._weights = weights
        quantized = [name for name in weights if weights[name].dtype == torch.int8]
        self._scales = {name: _scale(weights, name, where) for name in quantized}
        scales = {name + SCALE for name in quantized}
        self._names = [name for name in weights if name not in scales]

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def dequantize(self, name: str) -> Tensor:
        """Return the tensor, dequantized to float32 if it is stored as int8."""
        tensor = self[name]
        if name not in self._scales:
            return tensor
        rows = tensor.reshape(len(tensor), -1).float()
        return rows.mul_(self._scales[name][:, None]).reshape(tensor.shape)


def _scale(weights: Mapping[str, Tensor], name: str, where: str | Path) -> Tensor:
    tensor, scale = weights[name], weights.get(name + SCALE)
    if scale is None:
        raise FileProblemError(where, f"lacks {name + SCALE}, the scale of an int8 tensor")
    if tensor.ndim < 2 or scale.dtype != torch.float32 or scale.shape != tensor.shape[:1]:
        raise FileProblemError(where, f"{name + SCALE} is not one float32 for each row of {name}")
    if not (scale.isfinite() & (scale >= 0)).all():
        raise FileProblemError(where, f"{name + SCALE} has values that are not finite")
    return scale

"""Weights in eight bits on disk: whole numbers from -127 to 127, and one scale for each row.

A tensor X of two or more dimensions is stored as X in I8, and beside it X.scale in F32 with one number for
each index of X's first dimension; what is read back is X times its row's scale, in float32. Vectors stay
float32.

A scale holds 16 significant bits, so that its product with a whole number is exact in float32, and the
largest number of a row is always 127 steps: what was read back and is stored again gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from glassformer.errors import GlassformerError

LARGEST = 127
SCALE_BITS = 16
SMALLEST_SCALE = 2.0**-100  # far above where float32 loses bits; a row of smaller numbers is stored as zeros
SCALE = ".scale"


def rounded(state: Mapping[str, Tensor], exact: Collection[str] = ()) -> dict[str, Tensor]:
    """The tensors to store: matrices as whole numbers with their scales, all else as it is, in float32.

    exact: names that are not to be rounded.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            found[name] = tensor
        elif tensor.ndim < 2 or name in exact or not tensor.numel():
            found[name] = tensor.float()
        else:
            if not tensor.isfinite().all():
                raise GlassformerError(
                    f"the tensor {name} holds a number that is not finite, which eight bits cannot; "
                    "save it in float32"
                )
            found[name], found[name + SCALE] = round_rows(tensor)
    return found


def round_rows(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """(R, ...) -> the nearest whole numbers of steps, int8 (R, ...), and each row's step, float32 (R,).

    >>> numbers, scale = round_rows(torch.tensor([[1.0, -0.5, 0.0], [0.0, 0.0, 0.0]]))
    >>> numbers.tolist(), [round(step, 4) for step in scale.tolist()]
    ([[127, -64, 0], [0, 0, 0]], [0.0079, 0.0])
    """
    rows = tensor.detach().reshape(len(tensor), -1)
    mantissa, exponent = torch.frexp(rows.abs().amax(1).double() / LARGEST)
    scale = torch.ldexp((mantissa * 2**SCALE_BITS).floor() / 2**SCALE_BITS, exponent)  # never above the row's
    scale[scale < SMALLEST_SCALE] = 0.0
    steps = torch.where(scale > 0, scale, torch.inf)
    numbers = (rows.double() / steps[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return numbers.to(torch.int8).reshape(tensor.shape), scale.float()


class Stored(Mapping[str, Tensor]):
    """The tensors of a folder as they lie there, without the scales of those that are rounded.

    Scales are checked when this is made: each must be there, fit its tensor's rows, and be finite.
    """

    def __init__(self, weights: Mapping[str, Tensor], where: str | Path) -> None:
        self._weights = weights
        rounded = [name for name in weights if weights[name].dtype == torch.int8]
        self._scales = {name: _scale(weights, name, where) for name in rounded}
        scales = {name + SCALE for name in rounded}
        self._names = [name for name in weights if name not in scales]

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def widened(self, name: str) -> Tensor:
        """The tensor in numbers to compute with: float32 where it is rounded, else as it lies there."""
        tensor = self[name]
        if name not in self._scales:
            return tensor
        rows = tensor.reshape(len(tensor), -1).float()
        return rows.mul_(self._scales[name][:, None]).reshape(tensor.shape)


def _scale(weights: Mapping[str, Tensor], name: str, where: str | Path) -> Tensor:
    """The scale of a rounded tensor; what is wrong with it is a sentence."""
    again = "copy the folder again, or convert the model anew"
    if name + SCALE not in weights:
        raise GlassformerError(
            f"{where} holds {name} in eight bits without its scale, {name + SCALE}; {again}"
        )
    tensor, scale = weights[name], weights[name + SCALE]
    if tensor.ndim < 2 or scale.dtype != torch.float32 or scale.shape != tensor.shape[:1]:
        raise GlassformerError(
            f"{where} holds {name} in eight bits, and {name + SCALE} is not one float32 for each row; {again}"
        )
    if not (scale.isfinite() & (scale >= 0)).all():
        raise GlassformerError(f"{where} holds a scale that is no step size in {name + SCALE}; {again}")
    return scale

"""Products laid out for a GPU: matrices that read the same rows are one, and what stands around is fused in.

N rows, D features in, O features out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

import torch
from torch import Tensor

from glassformer.core.norms import LayerNorm, RMSNorm
from glassformer.core.spec import Activation
from glassformer.inference.gpu import activations
from glassformer.inference.gpu.norms import norm_of
from glassformer.inference.gpu.product import product
from glassformer.inference.layers import hooked
from glassformer.inference.products import Norm, Part, finished, side_by_side


class OnGpu:
    """The weights as they are; see `Product`."""

    captures = True  # steps on these products can be captured

    def __init__(self, parts: Sequence[Part]) -> None:
        weight, bias = side_by_side(parts)
        self.weight, self.bias = weight.detach().contiguous(), None if bias is None else bias.detach()
        self.scale: Tensor | None = None

    def __call__(
        self,
        x: Tensor,
        *,
        norm: Norm | None = None,
        activation: Activation | None = None,
        gated: bool = False,
        plus: Tensor | None = None,
    ) -> Tensor:
        fused = norm_of(norm) if isinstance(norm, RMSNorm | LayerNorm) and not hooked(norm) else None
        if norm is not None and fused is None:
            x = norm(x)
        known = activation is None or activation in get_args(activations.Activation)
        y = product(
            x,
            self.weight,
            bias=self.bias,
            scale=self.scale,
            norm=fused,
            plus=plus if known else None,
            activation=cast(activations.Activation, activation) if known else None,
            gated=gated and known,
        )
        return y if known else finished(y, activation, gated, plus)


class RoundedOnGpu(OnGpu):
    """Weights of eight bits with a scale for each row: half the memory to read."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(parts)
        weight = self.weight.float()
        scale = (weight.abs().amax(1) / 127).clamp(min=1e-12)  # (O,)
        self.weight = (weight / scale[:, None]).round().to(torch.int8)
        self.scale = scale

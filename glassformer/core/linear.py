"""Linear layers, and the interface of those that fuse what surrounds them.

A sub-layer of a block is called with optional `norm` and `residual`. In training each step is computed by
itself. A copy of a model that is prepared for inference has `FusedLinear` layers, which compute norm,
product, activation and residual sum in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor, nn

from glassformer.core import backend
from glassformer.core.spec import Activation

Norm = Callable[[Tensor], Tensor]


class Linear(nn.Linear):
    """nn.Linear by `backend.linear`: (..., in) -> (..., out).

    >>> import torch
    >>> Linear(8, 32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 32])
    """

    def forward(self, x: Tensor) -> Tensor:
        return backend.linear(x, self.weight, self.bias)


class FusedLinear(Protocol):
    """One or several linear layers of the same input, with what surrounds them."""

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

        gated: W is a gate and an up projection; activation(gate) is multiplied by up.
        """
        ...


Fused = Mapping[
    str, FusedLinear
]  # "qkv", "q", "kv" and "out" of an attention; "up" and "down" of a feed-forward

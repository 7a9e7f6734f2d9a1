"""Adaptive layer norm (adaLN-Zero): norms and gates whose shift, scale and factor come from a condition.

Six vectors modulate a layer: shift, scale and gate of attention, then of the feed-forward layer.

            condition --+----------+---------------------+----------+
                        v          v                     v          v
    x --+--> norm (shift, scale) -> attention -> gate -+ ...  (the same with the feed-forward layer)
        +--------------------------------------------> +

B batch, T positions, D d_model, N vectors, C width of the condition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.backend import Linear
from glassformer.core.norms import Conditional
from glassformer.errors import MissingValueError

NUM_SHARED = 6  # vectors of a layer that a shared modulation computes; the condition itself follows them


class Modulation(nn.Module):
    """Vectors (B, 1, D) from a condition.

    shared: None: a dense layer of its own projects the condition (B, D) after SiLU; it starts as zeros, with
    which a block is the identity. Else which vectors of a shared condition (B, 7 * D) a trained table is
    added to: six for the layers, and the condition that they were computed from.

    >>> shift, scale = Modulation(8, 2)(torch.randn(3, 8))
    >>> shift.shape
    torch.Size([3, 1, 8])
    """

    initializes_itself = True

    def __init__(self, d_model: int, count: int, shared: slice | None = None) -> None:
        super().__init__()
        self.count, self.shared = count, shared
        self.project = Linear(d_model, count * d_model) if shared is None else None
        self.table = None if shared is None else nn.Parameter(torch.empty(count, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the dense layer to zeros, or draw the table."""
        if self.project is not None:
            nn.init.zeros_(self.project.weight)
            nn.init.zeros_(self.project.bias)
        if self.table is not None:
            nn.init.normal_(self.table, std=self.table.shape[1] ** -0.5)

    def forward(self, condition: Tensor | None) -> tuple[Tensor, ...]:
        if condition is None:
            raise MissingValueError("a condition", "by adaptive norms", hint="use an input with a time step")
        if self.project is not None:
            vectors = self.project(F.silu(condition)).unflatten(-1, (self.count, -1))  # (B, N, D)
        else:
            vectors = condition.unflatten(-1, (NUM_SHARED + 1, -1))[:, self.shared] + self.table
        return tuple(vectors[:, :, None].unbind(1))


class AdaptiveNorm(Conditional):
    """LayerNorm without weights, times 1 + scale, plus shift."""

    def __init__(self, d_model: int, *, eps: float, shared: slice | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.modulation = Modulation(d_model, 2, shared)

    def forward(self, x: Tensor, condition: Tensor | None) -> Tensor:
        """x (B, T, D), condition (B, C) -> (B, T, D)."""
        shift, scale = self.modulation(condition)
        y: Tensor = F.layer_norm(x, x.shape[-1:], eps=self.eps) * (1 + scale) + shift
        return y.to(x.dtype)


class Gate(Conditional):
    """Multiply the output of a sublayer by a vector from the condition."""

    def __init__(self, d_model: int, *, shared: slice | None = None) -> None:
        super().__init__()
        self.modulation = Modulation(d_model, 1, shared)

    def forward(self, x: Tensor, condition: Tensor | None) -> Tensor:
        """x (B, T, D), condition (B, C) -> (B, T, D)."""
        gate: Tensor = self.modulation(condition)[0]
        return x * gate.to(x.dtype)


def adaptive_parts(
    spec: specs.AdaptiveNormSpec, d_model: int, *, crosses: bool
) -> dict[str, Callable[[], Any]]:
    """Return the arguments of a block that create its norms and gates, in the order of its sublayers."""

    def shared(start: int, stop: int) -> slice | None:
        return slice(start, stop) if spec.modulation == "shared" else None

    ffn_eps = spec.eps if spec.ffn_eps is None else spec.ffn_eps
    norms: list[Any] = [
        AdaptiveNorm(d_model, eps=spec.eps, shared=shared(0, 2)),
        AdaptiveNorm(d_model, eps=ffn_eps, shared=shared(3, 5)),
    ]
    gates: list[Any] = [Gate(d_model, shared=shared(2, 3)), Gate(d_model, shared=shared(5, 6))]
    if crosses:
        norms.insert(1, None)
        gates.insert(1, None)
    return {"norm": partial(next, iter(norms)), "layer_scale": partial(next, iter(gates))}

"""Feed-forward: each position on its own, widened, bent, narrowed again.

B batch, T positions, D d_model, F d_ff.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.dropout import Dropout, relu_dropout
from glassformer.core.linear import Linear
from glassformer.core.observe import Observer, seen, unwatched
from glassformer.core.spec import Activation


def _gelu_tanh(x: Tensor) -> Tensor:
    if torch.compiler.is_compiling() and x.is_cuda:
        # (1 + tanh u) / 2 = sigmoid(2u), which a compiled kernel works out faster than tanh
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


# the same, written over their input
_IN_PLACE: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "silu": partial(F.silu, inplace=True),
    "tanh": torch.tanh_,
}


def activate(name: Activation, fresh: Tensor, maker: nn.Module, obs: Observer | None) -> Tensor:
    """The activation of what `maker` just gave; written over it where no one else looks at it."""
    if name in _IN_PLACE and unwatched(obs, maker):
        return _IN_PLACE[name](fresh)
    return ACTIVATIONS[name](fresh)


class FeedForward(nn.Module):
    """down(dropout(activation(up(x)))): (B, T, D) -> (B, T, F) -> (B, T, D).

    >>> FeedForward(8, d_ff=32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_ff: int,
        activation: Activation = "relu",
        biases: Sequence[str] = ("up", "down"),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.up = Linear(d_model, d_ff, bias="up" in biases)
        self.down = Linear(d_ff, d_model, bias="down" in biases)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, *, obs: Observer | None = None) -> Tensor:
        hidden = seen(obs, "up", self.up(x))  # (B, T, F)
        if self.activation == "relu" and obs is None and self.training:
            hidden = relu_dropout(hidden, self.dropout.p, self.training)
        else:
            hidden = self.dropout(seen(obs, "act", activate(self.activation, hidden, self.up, obs)))
        return seen(obs, "down", self.down(hidden))  # (B, T, D)


class GatedFeedForward(nn.Module):
    """down(dropout(activation(gate(x)) * up(x))): a second projection opens and shuts the first.

    >>> GatedFeedForward(8, d_ff=32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_ff: int,
        activation: Activation = "silu",
        biases: Sequence[str] = (),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.up = Linear(d_model, d_ff, bias="up" in biases)
        self.gate = Linear(d_model, d_ff, bias="gate" in biases)
        self.down = Linear(d_ff, d_model, bias="down" in biases)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, *, obs: Observer | None = None) -> Tensor:
        gate = seen(obs, "gate", self.gate(x))  # (B, T, F)
        hidden = activate(self.activation, gate, self.gate, obs) * seen(obs, "up", self.up(x))
        hidden = seen(obs, "act", hidden)
        return seen(obs, "down", self.down(self.dropout(hidden)))  # (B, T, D)

"""Feed-forward layers: project each position up, activate, project down.

B batch, T positions, D d_model, F d_ff.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from glassformer.core import backend
from glassformer.core.backend import ACTIVATIONS, Dropout, Fused, Linear, Norm
from glassformer.core.observe import Observer, tap
from glassformer.core.spec import Activation

__all__ = ["ACTIVATIONS", "MLP", "FeedForward", "GatedFeedForward"]


class FeedForward(nn.Module):
    """down(dropout(activation(up(x)))): (B, T, D) -> (B, T, F) -> (B, T, D).

    d_ff: width of the hidden layer
    biases: which of the projections up and down have a bias
    dropout: dropout rate of the hidden layer

    >>> import torch
    >>> FeedForward(8, d_ff=32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    fused: Fused | None = None  # set on copies that are prepared for inference
    gated = False

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

    def forward(
        self,
        x: Tensor,
        *,
        norm: Norm | None = None,
        residual: Tensor | None = None,
        obs: Observer | None = None,
    ) -> Tensor:
        """Return feed_forward(norm(x)) + residual; `norm` and `residual` are optional."""
        if self.fused is not None:
            hidden = self.fused["up"](x, norm=norm, activation=self.activation, gated=self.gated)
            return self.fused["down"](hidden, residual=residual)
        hidden = self._hidden(x if norm is None else norm(x), obs)  # (B, T, F)
        out = tap(obs, "down", self.down(hidden))  # (B, T, D)
        return out if residual is None else residual + out

    def _hidden(self, x: Tensor, obs: Observer | None) -> Tensor:
        hidden = tap(obs, "up", self.up(x))
        if self.activation == "relu" and obs is None and self.training:
            return backend.relu_dropout(hidden, self.dropout.p, self.training)
        hidden = backend.activate(self.activation, hidden, producers=(self.up,) if obs is None else None)
        dropped: Tensor = self.dropout(tap(obs, "act", hidden))
        return dropped


class GatedFeedForward(FeedForward):
    """down(dropout(activation(gate(x)) * up(x))): the gate projection scales the up projection.

    d_ff: width of the hidden layer
    biases: which of the projections up, gate and down have a bias
    dropout: dropout rate of the hidden layer

    >>> import torch
    >>> GatedFeedForward(8, d_ff=32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    gated = True

    def __init__(
        self,
        d_model: int,
        *,
        d_ff: int,
        activation: Activation = "silu",
        biases: Sequence[str] = (),
        dropout: float = 0.0,
    ) -> None:
        nn.Module.__init__(self)
        self.up = Linear(d_model, d_ff, bias="up" in biases)
        self.gate = Linear(d_model, d_ff, bias="gate" in biases)
        self.down = Linear(d_ff, d_model, bias="down" in biases)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def _hidden(self, x: Tensor, obs: Observer | None) -> Tensor:
        gate = tap(obs, "gate", self.gate(x))
        gate = backend.activate(self.activation, gate, producers=(self.gate,) if obs is None else None)
        hidden: Tensor = self.dropout(tap(obs, "act", gate * tap(obs, "up", self.up(x))))
        return hidden


class MLP(nn.Module):
    """Multilayer perceptron of a prediction head: linear layers with an activation between them.

    d_in, d_hidden, d_out: widths of the input, of the hidden layers and of the output
    num_layers: number of linear layers

    >>> import torch
    >>> MLP(8, d_hidden=16, d_out=4)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 4])
    """

    def __init__(
        self, d_in: int, *, d_hidden: int, d_out: int, num_layers: int = 3, activation: Activation = "relu"
    ) -> None:
        super().__init__()
        widths = [d_in, *[d_hidden] * (num_layers - 1), d_out]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """x (..., d_in) -> (..., d_out)."""
        for n, layer in enumerate(self.layers):
            x = layer(x if n == 0 else ACTIVATIONS[self.activation](x))
        return x

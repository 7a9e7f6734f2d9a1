"""Feed-forward layers: project each position up, activate, project down.

B batch, T positions, D d_model, F d_ff.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from glassformer.core import backend
from glassformer.core.backend import ACTIVATIONS, Dropout, Linear
from glassformer.core.embeddings import check_vectors
from glassformer.core.observe import Observer, tap
from glassformer.core.spec import Activation
from glassformer.errors import UnknownNameError, explain_torch_names

__all__ = ["ACTIVATIONS", "MLP", "FeedForward"]


class FeedForward(nn.Module):
    """down(dropout(hidden)), where hidden = activation(up(x)): (B, T, D) -> (B, T, F) -> (B, T, D).

    d_ff: width of the hidden layer
    gated: hidden = activation(gate(x)) * up(x), with a third projection
    biases: which of the projections up, gate and down have a bias
    dropout: dropout rate of the hidden layer

    >>> import torch
    >>> FeedForward(8, d_ff=32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    @explain_torch_names
    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "relu",
        gated: bool = False,
        biases: Sequence[str] = ("up", "down"),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UnknownNameError("activation", str(activation), ACTIVATIONS)
        self.gated = gated
        self.up = Linear(d_model, d_ff, bias="up" in biases)
        self.gate = Linear(d_model, d_ff, bias="gate" in biases) if gated else None
        self.down = Linear(d_ff, d_model, bias="down" in biases)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, *, obs: Observer | None = None) -> Tensor:
        try:
            hidden = self._hidden(x, obs)  # (B, T, F)
        except RuntimeError:
            check_vectors("x", x, self.up.in_features)
            raise
        return tap(obs, "down", self.down(hidden))  # (B, T, D)

    @property
    def output_layer(self) -> nn.Module:
        """The module that computes the output."""
        return self.down

    def _hidden(self, x: Tensor, obs: Observer | None) -> Tensor:
        if self.gate is not None:
            gate = self._activate("gate", self.gate, x, obs)
            hidden: Tensor = self.dropout(tap(obs, "act", gate * tap(obs, "up", self.up(x))))
        elif self.activation == "relu" and obs is None and self.training:
            hidden = backend.relu_dropout(self.up(x), self.dropout.p, self.training)
        else:
            hidden = self.dropout(tap(obs, "act", self._activate("up", self.up, x, obs)))
        return hidden

    def _activate(self, name: str, projection: Linear, x: Tensor, obs: Observer | None) -> Tensor:
        """Return activation(projection(x)); the projection is overwritten if nothing else can read it."""
        producers = (projection,) if obs is None else None
        return backend.activate(self.activation, tap(obs, name, projection(x)), producers=producers)


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

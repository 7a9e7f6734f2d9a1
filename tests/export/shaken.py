"""Small models whose every number matters."""

from __future__ import annotations

import torch


def shaken(model, seed=0):
    """The model with every number drawn anew, norms and biases too: one left out or swapped is then seen."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 1.6 / weight.shape[1] ** 0.5 if weight.dim() > 1 else 0.1
            norm = "norm" in name and name.endswith("weight")
            weight.copy_(torch.randn(weight.shape, generator=draw) * (1.0 if norm else spread))
    return model.eval()

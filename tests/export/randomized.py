"""Models with random parameters."""

from __future__ import annotations

import torch


def randomize_parameters(model, seed=0):
    """Redraw every parameter, norms and biases too, so that a missing or swapped one changes the output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            std = 1.6 / weight.shape[1] ** 0.5 if weight.dim() > 1 else 0.1
            is_norm = "norm" in name and name.endswith("weight")
            weight.copy_(torch.randn(weight.shape, generator=generator) * (1.0 if is_norm else std))
    return model.eval()

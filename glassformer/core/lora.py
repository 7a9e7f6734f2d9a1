"""LoRA: low-rank adapters of linear layers, W x + b + (alpha / r) B A x.

A is (r, in) and random, B is (out, r) and starts at zero, so a new adapter does not change the model. Only
the class of an adapted layer changes: its path and the names of its weight and bias stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from glassformer.core.backend import Dropout, Linear
from glassformer.errors import UnknownNameError

ALL_LINEAR = "all-linear"


class LoRALinear(Linear):
    """A linear layer with a trainable low-rank adapter; create it with `add_lora`."""

    lora_A: nn.Linear
    lora_B: nn.Linear
    lora_dropout: Dropout
    scaling: float

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.lora_B(self.lora_A(self.lora_dropout(x)))
        return super().forward(x) + self.scaling * update

    def merged_weight(self) -> Tensor:
        """Return the weight (out, in) with the adapter added; the product is computed in float32."""
        update = self.lora_B.weight.float() @ self.lora_A.weight.float()
        return (self.weight.float() + self.scaling * update).to(self.weight.dtype)


def add_lora(
    model: nn.Module, *, r: int, lora_alpha: float, lora_dropout: float, target_modules: Sequence[str]
) -> list[str]:
    """Freeze a model and add adapters to its linear layers; return the paths of the adapted layers.

    r: rank. lora_alpha: the adapter is scaled by lora_alpha / r. lora_dropout: dropout of its input.
    target_modules: last components of module paths, e.g. q_proj; "all-linear" is every layer of the blocks.
    """
    layers = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, Linear) and ".blocks." in f".{path}"
    }
    names = {path.rpartition(".")[2] for path in layers}
    for target in target_modules:
        if target not in (*names, ALL_LINEAR):
            raise UnknownNameError("module", target, {*names, ALL_LINEAR}, where="the model's linear layers")
    model.requires_grad_(False)
    adapted = []
    for path, layer in layers.items():
        if ALL_LINEAR in target_modules or path.rpartition(".")[2] in target_modules:
            _adapt(layer, r, lora_alpha / r, lora_dropout)
            adapted.append(path)
    return adapted


def _adapt(layer: Linear, r: int, scaling: float, dropout: float) -> None:
    factory: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    layer.__class__ = LoRALinear
    adapted = cast(LoRALinear, layer)
    adapted.scaling = scaling
    adapted.lora_dropout = Dropout(dropout)
    adapted.lora_A = nn.Linear(layer.in_features, r, bias=False, **factory)
    adapted.lora_B = nn.Linear(r, layer.out_features, bias=False, **factory)
    nn.init.kaiming_uniform_(adapted.lora_A.weight, a=math.sqrt(5))
    nn.init.zeros_(adapted.lora_B.weight)


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoRALinear]]:
    """Yield the path and module of each adapted layer."""
    for path, module in model.named_modules():
        if isinstance(module, LoRALinear):
            yield path, module


def has_lora(model: nn.Module) -> bool:
    """Whether a model has adapted layers."""
    return next(lora_layers(model), None) is not None


@torch.no_grad()
def merge_lora(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model with its adapters merged into the weights."""
    merged = {f"{path}.weight": layer.merged_weight() for path, layer in lora_layers(model)}
    return {name: merged.get(name, tensor) for name, tensor in state.items() if ".lora_" not in name}

"""LoRA: low-rank adapters of linear layers, W x + b + (alpha / r) B A x.

A is (r, in) and random, B is (out, r) and starts at zero, so a new adapter does not change the model. A
forward hook adds the update to the output of a layer: its class, its path and the names of its weight and
bias stay the same. With the hook, torch's modules call the layer instead of a fused kernel with its weight.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils.hooks import RemovableHandle

from glassformer.core.backend import Dropout
from glassformer.errors import UnknownNameError, UnsupportedError

ALL_LINEAR = "all-linear"
_ATTRIBUTES = ("lora_A", "lora_B", "lora_dropout", "lora_scaling", "lora_hook")


class LoRALinear(Protocol):
    """A linear layer with the attributes that `add_lora` adds to it."""

    weight: Tensor
    lora_A: nn.Linear
    lora_B: nn.Linear
    lora_dropout: Dropout
    lora_scaling: float
    lora_hook: RemovableHandle


def add_lora(
    model: nn.Module, *, r: int, lora_alpha: float, lora_dropout: float, target_modules: Sequence[str]
) -> list[str]:
    """Freeze a model and add adapters to its linear layers; return the paths of the adapted layers.

    Adapters that the model already has are replaced. Layers that share their weight are not adapted, nor is
    the output projection of `nn.MultiheadAttention`, which reads its weight without calling the layer.

    r: rank. lora_alpha: the adapter is scaled by lora_alpha / r. lora_dropout: dropout of its input.
    target_modules: last components of module paths, e.g. q_proj or mlp.up; "all-linear" is every layer except
    the head. In a model with blocks, the layers of the blocks are adapted, if any matches.
    """
    remove_lora(model)
    uses = Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))
    layers = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not isinstance(module, NonDynamicallyQuantizableLinear)
        and uses[id(module.weight)] == 1
    }
    adapted = {path for target in target_modules for path in _matching(list(layers), target)}
    model.requires_grad_(False)
    for path, layer in layers.items():
        if path in adapted:
            _adapt(layer, r, lora_alpha / r, lora_dropout)
    return [path for path in layers if path in adapted]


def _matching(paths: Sequence[str], target: str) -> list[str]:
    """Return the paths that end with a target: those in blocks, or all if there are none in blocks."""
    if target == ALL_LINEAR:
        matching = [path for path in paths if path.partition(".")[0] != "head"]
    else:
        matching = [path for path in paths if f".{path}".endswith(f".{target}")]
    if not paths or (target == ALL_LINEAR and not matching):
        raise UnsupportedError("a module without linear layers", "LoRA", hint="leave lora_r out")
    if not matching:
        known = {path.rpartition(".")[2] for path in paths} | {ALL_LINEAR}
        raise UnknownNameError("module", target, known, where="the linear layers that LoRA can adapt")
    return [path for path in matching if ".blocks." in f".{path}"] or matching


def _adapt(layer: nn.Linear, r: int, scaling: float, dropout: float) -> None:
    factory: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    adapted = cast(LoRALinear, layer)
    adapted.lora_scaling = scaling
    adapted.lora_dropout = Dropout(dropout)
    adapted.lora_A = nn.Linear(layer.in_features, r, bias=False, **factory)
    adapted.lora_B = nn.Linear(r, layer.out_features, bias=False, **factory)
    nn.init.kaiming_uniform_(adapted.lora_A.weight, a=math.sqrt(5))
    nn.init.zeros_(adapted.lora_B.weight)
    adapted.lora_hook = layer.register_forward_hook(_add_update)


def _add_update(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    update: Tensor = layer.lora_scaling * layer.lora_B(layer.lora_A(layer.lora_dropout(inputs[0])))
    return output + update


def remove_lora(model: nn.Module) -> None:
    """Remove the adapters of a model; merge them first to keep what they learned."""
    for _, layer in list(lora_layers(model)):
        layer.lora_hook.remove()
        for name in _ATTRIBUTES:
            delattr(layer, name)


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoRALinear]]:
    """Yield the path and module of each adapted layer."""
    for path, module in model.named_modules():
        if "lora_hook" in vars(module):
            yield path, cast(LoRALinear, module)


def has_lora(model: nn.Module) -> bool:
    """Whether a model has adapted layers."""
    return next(lora_layers(model), None) is not None


@torch.no_grad()
def merge_lora(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model with its adapters merged into the weights, computed in float32."""
    merged = dict(state)
    for path, layer in lora_layers(model):
        prefix = f"{path}." if path else ""
        b, a = (merged.pop(f"{prefix}lora_{half}.weight").float() for half in "BA")
        weight = merged[f"{prefix}weight"]
        merged[f"{prefix}weight"] = (weight.float() + layer.lora_scaling * (b @ a)).to(weight.dtype)
    return merged

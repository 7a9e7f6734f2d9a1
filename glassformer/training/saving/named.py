"""A run's tensors by name: the weights, and what the optimiser keeps of each.

    model        encoder.blocks.0.ffn.up.weight              the model's own, whatever learns or wraps it
    optimiser    exp_avg.encoder.blocks.0.ffn.up.weight      what is kept, then of which weight

The tensors are the run's own, not copies: filling them restores the run. Under FSDP they are DTensors, of
which each rank holds a slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

Tensors = Mapping[str, Tensor]
_COMPILED = "_orig_mod."  # what torch.compile puts before the names of what it wraps


def named_state(module: nn.Module, optimiser: Optimizer, *, begin: bool = False) -> dict[str, Tensors]:
    """The weights and the optimiser's tensors; one that is tied stands under its first name only.

    An optimiser that has made no step keeps nothing yet; `begin` has it keep something, to be filled.
    """
    learner = module.module if isinstance(module, DistributedDataParallel) else module
    once = dict(learner.named_parameters())
    again = dict(learner.named_parameters(remove_duplicate=False)).keys() - once.keys()
    tied = {name.replace(_COMPILED, "") for name in again}
    weights: Any = get_model_state_dict(learner)
    kept: Any = {}
    if optimiser.state or begin:
        kept = get_optimizer_state_dict(learner, optimiser)["state"]
    return {
        "model": {_own(name): value for name, value in weights.items() if name not in tied},
        "optimiser": {
            f"{what}.{_own(name)}": value
            for name, values in kept.items()
            for what, value in values.items()
            if isinstance(value, Tensor)
        },
    }


def misfit(targets: Tensors, values: Tensors) -> str:
    """What keeps `values` from being copied into `targets`, as a sentence; nothing where they fit."""
    for name in sorted(targets.keys() - values.keys()):
        return f"The checkpoint has no {name}, which this run needs; resume it with the recipe that wrote it."
    for name in sorted(values.keys() - targets.keys()):
        return f"The checkpoint has {name}, which this run does not; resume it with the recipe that wrote it."
    for name, target in targets.items():
        if target.shape != values[name].shape:
            return (
                f"{name} is {tuple(values[name].shape)} in the checkpoint and {tuple(target.shape)} in this "
                "run; resume it with the recipe that wrote it."
            )
    return ""


def _own(name: str) -> str:
    """The model's own name for what the learner that holds it calls `model.…`."""
    return name.removeprefix("model.")

"""Copies of a model's stacks for inference, with linear layers that are fused and packed for the device.

`core.block` defines what a block computes. A copy shares all modules with the model except attention and
feed-forward, whose linear layers are replaced (`fused`). Its blocks work on rows (N, D) without padding; only
the attention backend knows which rows form a sequence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.backend import FusedLinear, Linear
from glassformer.core.block import Block
from glassformer.core.feedforward import FeedForward, GatedFeedForward
from glassformer.core.heads import VocabularyHead
from glassformer.core.norms import LayerScale
from glassformer.core.stack import Stack
from glassformer.errors import GlassformerError

WeightAndBias = tuple[Tensor, Tensor | None]  # a weight (O, D), and its bias (O,) if any
LinearFactory = Callable[[Sequence[WeightAndBias]], FusedLinear]
AnyModule = TypeVar("AnyModule", bound=nn.Module)


@dataclass(eq=False)
class HookedModuleError(GlassformerError):
    """A module that inference does not call has a forward hook. module: its path."""

    module: str
    hint: str = "remove it, put it on a projection, or use glassformer.observe"
    template: ClassVar[str] = "{module} has a forward hook, which generation and fast encoding do not call"


@cache
def has_triton() -> bool:
    """Whether Triton is installed, which the GPU kernels need; torch's CUDA builds include it."""
    return find_spec("triton") is not None


def fused_copy(stack: Stack, make: LinearFactory | None) -> Stack:
    """Copy a stack for rows (N, D). make: creates the linear layers; None: use the model's modules."""
    result = _copy(stack)
    copies = {block: _fused_block(cast(Block, block), make) for block in stack.blocks}  # layers may share one
    result.blocks = nn.ModuleList(copies[block] for block in stack.blocks)
    return result


def _fused_block(block: Block, make: LinearFactory | None) -> Block:
    attention, cross, ffn = _copy(block.self_attn), block.cross_attn, _copy(block.ffn)
    cross = None if cross is None else _copy(cross)
    if make is not None:
        attention.fused = {
            "qkv": _fused(make, attention.q_proj, attention.k_proj, attention.v_proj),
            "out": _fused(make, attention.out_proj, scale=block.scale_self_attn),
        }
        if cross is not None:
            cross.fused = {
                "q": _fused(make, cross.q_proj),
                "kv": _fused(make, cross.k_proj, cross.v_proj),
                "out": _fused(make, cross.out_proj, scale=block.scale_cross_attn),
            }
        gates = [ffn.gate] if isinstance(ffn, GatedFeedForward) else []
        ffn.fused = {
            "up": _fused(make, *gates, ffn.up),
            "down": _fused(make, ffn.down, scale=block.scale_ffn),
        }
    result = _copy(block)
    vars(result).update(self_attn=attention, cross_attn=cross, ffn=ffn)
    return result


def _copy(module: AnyModule) -> AnyModule:
    """Return a copy that shares submodules and parameters, in evaluation mode and without hooks.

    Submodules become plain attributes, which are faster to look up.
    """
    result = object.__new__(type(module))  # `copy` would initialize a module that FSDP has wrapped
    vars(result).update(vars(module) | module._modules)
    result._modules = {}
    result._forward_hooks, result._forward_pre_hooks = OrderedDict(), OrderedDict()
    result.training = False
    return result


def _fused(make: LinearFactory, *projections: nn.Module, scale: LayerScale | None = None) -> FusedLinear:
    """Fuse projections of the same input; if one was replaced or has hooks, call the modules instead.

    scale: layer scale of the output of the only projection, folded into its weights.
    """
    if all(type(p) in (Linear, nn.Linear) and not hooked(p) for p in projections):
        weights: list[WeightAndBias] = [(p.weight, p.bias) for p in projections]  # type: ignore[misc]
        if scale is not None:
            factor = scale.weight.detach()
            weights = [
                (w.detach() * factor[:, None], None if b is None else b.detach() * factor) for w, b in weights
            ]
        return make(weights)
    from glassformer.inference.linear import ModuleLinear

    return ModuleLinear(projections if scale is None else (nn.Sequential(*projections, scale),))


def hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def residual_dtype(parameter: Tensor) -> torch.dtype:
    """Return the residual dtype: the dtype of the weights, or bfloat16 under bfloat16 autocast."""
    kind = parameter.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16:
        return torch.bfloat16
    return parameter.dtype


class WeightFingerprint:
    """Fingerprint of a model's weights and hooks, to detect changes after a copy was prepared.

    Writes through a weight's `data` are not detected.
    """

    def __init__(self, model: nn.Module) -> None:
        # keeps memory alive, so that new weights cannot be allocated at the same addresses
        self._anchor = min(model.parameters(), key=Tensor.numel).detach()
        self._state = _weight_state(model)

    def matches(self, model: nn.Module) -> bool:
        return self._state == _weight_state(model)


def _weight_state(
    model: nn.Module,
) -> tuple[bool, torch.dtype, list[tuple[int, int]], list[tuple[int, bool]]]:
    """Collect what identifies the weights: autocast, residual dtype, addresses, versions, modules, hooks."""
    bypassed = (Stack, Block, MultiHeadAttention, FeedForward, VocabularyHead)
    modules = []
    for name, module in model.named_modules():
        modules.append((id(module), hooked(module)))
        # Hooks of projections, norms and embeddings run; hooks of the modules around them would not. FSDP
        # modules have hooks that unshard them, which training does before it generates.
        if modules[-1][1] and isinstance(module, bypassed) and not hasattr(module, "unshard"):
            raise HookedModuleError(name)
    weights = list(model.parameters())
    versions = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in weights]
    autocast = torch.is_autocast_enabled(weights[0].device.type)
    return autocast, residual_dtype(weights[0]), versions, modules


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Context manager: evaluation mode inside; on exit, the mode of every module is restored.

    >>> model = nn.Dropout()
    >>> with evaluation_mode(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    active = [module for module in model.modules() if module.training]
    for module in active:
        module.training = False
    try:
        yield
    finally:
        for module in active:
            module.training = True

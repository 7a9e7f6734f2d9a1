"""A model's stacks prepared for inference: copies whose linear layers are fused and laid out for the device.

What a block computes is defined by `core.block`. A copy shares every module with the model except the
attention and feed-forward modules, whose linear layers are replaced (`fused`). Its blocks work on rows (N, D)
without padding; only attention knows which rows belong together.
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
from glassformer.core.heads import LanguageModelHead
from glassformer.core.stack import Stack
from glassformer.errors import GlassformerError

Part = tuple[Tensor, Tensor | None]  # a weight (O, D), and its bias (O,) if any
MakeLinear = Callable[[Sequence[Part]], FusedLinear]
AnyModule = TypeVar("AnyModule", bound=nn.Module)


@dataclass(eq=False)
class HookedModuleError(GlassformerError):
    """A forward hook on a module that inference does not call. module: its path."""

    module: str
    hint: str = "remove it, put it on a projection, or use glassformer.observe"
    template: ClassVar[str] = "{module} has a forward hook, which generation and fast encoding do not call"


@cache
def has_triton() -> bool:
    """Whether the GPU kernels can be imported: they need Triton, which torch's CUDA builds bring."""
    return find_spec("triton") is not None


def fused_copy(stack: Stack, make: MakeLinear | None) -> Stack:
    """A copy of the stack for inference on rows (N, D). make: its linear layers; None: the model's own."""
    result = _copy(stack)
    result.blocks = nn.ModuleList(_fused_block(cast(Block, block), make) for block in stack.blocks)
    return result


def _fused_block(block: Block, make: MakeLinear | None) -> Block:
    result = _copy(block)
    own, cross, ffn = (
        None if part is None else _copy(part) for part in (block.self_attn, block.cross_attn, block.ffn)
    )
    result.self_attn, result.cross_attn, result.ffn = (
        cast(MultiHeadAttention, own),
        cast(MultiHeadAttention | None, cross),
        cast(FeedForward, ffn),
    )
    if make is None:
        return result
    own, cross, ffn = result.self_attn, result.cross_attn, result.ffn
    own.fused = {
        "qkv": _fused(make, own.q_proj, own.k_proj, own.v_proj),
        "out": _fused(make, own.out_proj),
    }
    if cross is not None:
        cross.fused = {
            "q": _fused(make, cross.q_proj),
            "kv": _fused(make, cross.k_proj, cross.v_proj),
            "out": _fused(make, cross.out_proj),
        }
    gates = [ffn.gate] if isinstance(ffn, GatedFeedForward) else []
    ffn.fused = {"up": _fused(make, *gates, ffn.up), "down": _fused(make, ffn.down)}
    return result


def _copy(module: AnyModule) -> AnyModule:
    """The module sharing its submodules and parameters, in evaluation mode and without hooks."""
    result = object.__new__(type(module))  # `copy` would initialize a module that FSDP has wrapped
    vars(result).update(vars(module))
    result._modules = dict(module._modules)
    result._forward_hooks, result._forward_pre_hooks = OrderedDict(), OrderedDict()
    result.training = False
    return result


def _fused(make: MakeLinear, *projections: nn.Module) -> FusedLinear:
    """Projections of the same input as one; called one by one if somebody replaced or hooked them."""
    if all(type(one) in (Linear, nn.Linear) and not hooked(one) for one in projections):
        return make([(one.weight, one.bias) for one in projections])  # type: ignore[misc]
    from glassformer.inference.linear import CalledLinear

    return CalledLinear(projections)


def hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def refuse_hooks(model: nn.Module) -> None:
    """Hooks of projections, norms and embeddings run; those of the modules around them would not."""
    bypassed = (Stack, Block, MultiHeadAttention, FeedForward, LanguageModelHead)
    for name, module in model.named_modules():
        # sharded modules have hooks that gather them; training does that before it generates
        if isinstance(module, bypassed) and hooked(module) and not hasattr(module, "unshard"):
            raise HookedModuleError(name)


def stream_dtype(parameter: Tensor) -> torch.dtype:
    """The dtype of the residual stream: the weights', or bfloat16 under bfloat16 autocast."""
    kind = parameter.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16:
        return torch.bfloat16
    return parameter.dtype


class Fingerprint:
    """What a prepared copy was made from, to tell whether it is still valid.

    Writes through a weight's `data` leave no trace and are not noticed.
    """

    def __init__(self, model: nn.Module) -> None:
        # held, so that weights that replace these cannot be allocated at the same addresses
        self.witness = min(model.parameters(), key=Tensor.numel).detach()
        self.marks = _marks(model)

    def matches(self, model: nn.Module) -> bool:
        return self.marks == _marks(model)


def _marks(model: nn.Module) -> tuple[bool, list[tuple[int, int]], list[tuple[int, bool]]]:
    """Whether autocast is on; the address and version of each weight; modules and hooks."""
    refuse_hooks(model)
    modules = [(id(module), hooked(module)) for module in model.modules()]
    weights = list(model.parameters())
    versions = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in weights]
    return torch.is_autocast_enabled(weights[0].device.type), versions, modules


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """No dropout inside; afterwards every module is in the mode it was in.

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

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
from glassformer.core.backend import FusedLinear, Linear, Norm
from glassformer.core.block import Block
from glassformer.core.convolution.layers import ConvNorm
from glassformer.core.feedforward import FeedForward, GatedFeedForward
from glassformer.core.heads import VocabularyHead
from glassformer.core.norms import LayerScale
from glassformer.core.spatial import RelativeBias2d
from glassformer.core.spec import Activation
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
    attention, cross = block.self_attn, block.cross_attn
    if isinstance(attention, MultiHeadAttention):
        attention = _fused_attention(attention, make, block.scale_self_attn)
    result = _copy(block)
    vars(result).update(
        self_attn=attention,
        cross_attn=None if cross is None else _fused_attention(cross, make, block.scale_cross_attn, True),
        ffn=_fused_feed_forward(block.ffn, make, block.scale_ffn),
        local_conv=None if block.local_conv is None else block.local_conv.fold(),
    )
    return result


def _fused_attention(
    attention: MultiHeadAttention, make: LinearFactory | None, scale: LayerScale | None, cross: bool = False
) -> MultiHeadAttention:
    result = _copy(attention)
    if make is not None:
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
        inputs = {"q": _fused(make, q), "kv": _fused(make, k, v)} if cross else {"qkv": _fused(make, q, k, v)}
        result.fused = {**inputs, "out": _fused(make, attention.out_proj, scale=scale)}
        if attention.q_proj.weight.is_cuda and has_triton() and _fits_window_kernel(attention):
            from glassformer.inference.gpu.window_attention import window_attention

            result.window_kernel = window_attention
    return result


def _fits_window_kernel(attention: MultiHeadAttention) -> bool:
    """Whether one kernel can compute this attention: small windows and a bias that does not depend on q."""
    window, bias = attention.spatial_window, attention.position_bias
    plain = attention.q_norm is None and attention.softcap is None
    plain = plain and attention.num_heads == attention.num_kv_heads
    plain = plain and attention.head_dim == attention.value_dim <= 64
    return plain and window is not None and window.size <= 8 and isinstance(bias, RelativeBias2d)


def _fused_feed_forward(
    ffn: FeedForward, make: LinearFactory | None, scale: LayerScale | None
) -> FeedForward:
    result = _copy(ffn)
    if make is not None:
        gates = [ffn.gate] if isinstance(ffn, GatedFeedForward) else []
        result.fused = {"up": _fused(make, *gates, ffn.up), "down": _fused(make, ffn.down, scale=scale)}
    return result


def packed_copy(model: AnyModule, make: LinearFactory | None) -> AnyModule:
    """Copy any model for inference: linear layers of its blocks are packed, batch norms folded.

    Unlike `fused_copy`, the blocks work on padded rows (B, T, D), so every attention backend, mask and
    position works as in the model. Modules without such parts are shared with the model.
    """

    def make_padded(parts: Sequence[WeightAndBias]) -> FusedLinear:
        assert make is not None
        return PaddedLinear(make(parts))

    return _packed(model, None if make is None else make_padded)


def _packed(module: AnyModule, make: LinearFactory | None) -> AnyModule:
    if isinstance(module, Block):
        return cast(AnyModule, _fused_block(module, make))
    if isinstance(module, ConvNorm):
        return cast(AnyModule, module.fold())
    if not any(isinstance(part, Block | ConvNorm) for part in module.modules()):
        return module
    if hooked(module):
        raise HookedModuleError(type(module).__name__)
    children = {name: child for name, child in module._modules.items() if child is not None}
    copies = {child: _packed(child, make) for child in children.values()}  # layers may share one
    result = _copy(module)
    if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        result._modules = {name: copies[child] for name, child in children.items()}
    else:
        vars(result).update({name: copies[child] for name, child in children.items()})
    return result


class PaddedLinear:
    """A packed linear layer for inputs of any shape (..., D)."""

    def __init__(self, linear: FusedLinear) -> None:
        self.linear = linear

    def __call__(
        self,
        x: Tensor,
        *,
        norm: Norm | None = None,
        activation: Activation | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        rows = None if residual is None else residual.reshape(-1, residual.shape[-1])
        y = self.linear(
            x.reshape(-1, x.shape[-1]), norm=norm, activation=activation, gated=gated, residual=rows
        )
        return y.view(*x.shape[:-1], -1)


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

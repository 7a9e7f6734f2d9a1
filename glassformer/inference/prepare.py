"""Copies of a model's stacks for inference, with linear layers that are fused and packed for the device.

`core.block` defines what a block computes. A copy shares all modules with the model except attention and
feed-forward: `FusedAttention` and `FusedFeedForward` have linear layers that also apply the norm before them
and add the residual after them. Blocks of `fused_copy` work on rows (N, D) without padding; only the
attention backend knows which rows form a sequence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from glassformer.core.attention import AttentionBackend, MultiHeadAttention
from glassformer.core.backend import FusedLinear, Linear, Norm
from glassformer.core.block import Block, LayerContext, Sublayer, apply_part
from glassformer.core.feedforward import FeedForward
from glassformer.core.heads import VocabularyHead
from glassformer.core.norms import Conditional, LayerScale
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


class FusedAttention(MultiHeadAttention):
    """Attention whose projections are fused linear layers.

    qkv: projections of self-attention; q, kv: those of cross-attention
    norm: norm of the input, if the projections apply it
    """

    qkv: FusedLinear
    q: FusedLinear
    kv: FusedLinear
    out: FusedLinear
    norm: Norm | None

    def forward(  # type: ignore[override]
        self, x: Tensor, attend: AttentionBackend, *, residual: Tensor | None = None, obs: None = None
    ) -> Tensor:
        """Return attention(norm(x)) + residual."""
        return self.out(attend(self, x).flatten(-2), residual=residual)

    def queries_keys_values(self, x: Tensor, position: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if position is not None:
            return super().queries_keys_values(x if self.norm is None else self.norm(x), position)
        q, k, v = self.qkv(x, norm=self.norm).split_with_sizes(self._widths, -1)
        return self._split_queries(q), *self._split_keys_values(k, v)

    def queries(self, x: Tensor, position: Tensor | None = None) -> Tensor:
        if position is not None:
            return super().queries(x if self.norm is None else self.norm(x), position)
        return self._split_queries(self.q(x, norm=self.norm))

    def keys_values(self, memory: Tensor, position: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if position is not None:
            return super().keys_values(memory, position)
        k, v = self.kv(memory).split_with_sizes(self._widths[1:], -1)
        return self._split_keys_values(k, v)

    @property
    def _widths(self) -> list[int]:
        groups = self.num_kv_heads
        return [self.num_heads * self.head_dim, groups * self.head_dim, groups * self.value_dim]


class FusedFeedForward(FeedForward):
    """A feed-forward layer with fused linear layers. norm: norm of the input, if they apply it."""

    wide: FusedLinear
    narrow: FusedLinear
    norm: Norm | None

    def forward(self, x: Tensor, *, residual: Tensor | None = None, obs: None = None) -> Tensor:  # type: ignore[override]
        """Return feed_forward(norm(x)) + residual."""
        hidden = self.wide(x, norm=self.norm, activation=self.activation, gated=self.gated)
        return self.narrow(hidden, residual=residual)


class FusedBlock(Block):
    """A block whose fused parts add the residual."""

    def _add(self, x: Tensor, f: Sublayer, y: Tensor, context: LayerContext) -> Tensor:
        if not isinstance(f.module, FusedAttention | FusedFeedForward):
            return super()._add(x, f, y, context)
        residual = x if f.norm_out is None and f.scale is None else None
        run: Any = f.module.forward  # without hooks, which the copy does not have
        out: Tensor = run(y, residual=residual) if f.attend is None else run(y, f.attend, residual=residual)
        if residual is not None:
            return out
        out = self._norm("", f.norm_out, out, context)
        return x + (out if f.scale is None else apply_part(f.scale, out, context))


def fused_copy(stack: Stack, make: LinearFactory | None) -> Stack:
    """Copy a stack for rows (N, D). make: creates the linear layers; None: use the model's modules."""
    result: Stack = _copy(stack)
    copies = {block: _fused_block(cast(Block, block), make) for block in stack.blocks}  # layers may share one
    result.blocks = nn.ModuleList(copies[block] for block in stack.blocks)
    return result


def _fused_block(block: Block, make: LinearFactory | None) -> Block:
    parts: dict[str, Any] = {"self_attn": _copy(block.self_attn), "ffn": _copy(block.ffn)}
    if block.cross_attn is not None:
        parts["cross_attn"] = _copy(block.cross_attn)
    if block.local_conv is not None:
        parts["local_conv"] = block.local_conv.fold()  # type: ignore[operator]
    if make is not None:
        for name in ("self_attn", "cross_attn", "ffn"):
            parts |= _fused_sublayer(block, name, make)
    result: Block = _copy(block, FusedBlock)
    vars(result).update(parts)
    if getattr(vars(result).get("forward"), "training_only", False):  # it would run the original block
        del vars(result)["forward"]
    return result


def _fused_sublayer(block: Block, name: str, make: LinearFactory) -> dict[str, Any]:
    """Return the fused part of a block, and the norm and factor that the block still applies around it."""
    modules = dict(block.named_children())
    part, scale = modules.get(name), modules.get(f"scale_{name}")
    norm_name = f"norm_{name.removesuffix('_attn')}"
    norm = modules.get(norm_name)
    if isinstance(norm, Conditional) or block.wiring not in ("pre", "sandwich", "parallel_split"):
        norm = None
    if block.wiring in ("sandwich", "res_post") or not isinstance(scale, LayerScale):
        scale = None
    kept: dict[str, Any] = {} if norm is None else {norm_name: None}
    kept |= {} if scale is None else {f"scale_{name}": None}
    match part:
        case FeedForward():
            return kept | {name: _fused_feed_forward(part, make, norm, scale)}
        case MultiHeadAttention():
            if part.on_grid:  # the tokens that fill up windows are added after the norm
                norm = kept.pop(norm_name, None)
            return kept | {name: _fused_attention(part, make, norm, scale, cross=name == "cross_attn")}
    return {}


def _fused_attention(
    attention: MultiHeadAttention,
    make: LinearFactory,
    norm: Norm | None,
    scale: LayerScale | None,
    cross: bool = False,
) -> FusedAttention:
    kind: type[FusedAttention] = FusedAttention
    if attention.on_grid:
        from glassformer.inference.grid_attention import FusedGridAttention as kind
    result: FusedAttention = _copy(attention, kind)
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    inputs = {"q": _fused(make, q), "kv": _fused(make, k, v)} if cross else {"qkv": _fused(make, q, k, v)}
    vars(result).update(inputs, norm=norm, out=_fused(make, attention.out_proj, scale=scale))
    return result


def _fused_feed_forward(
    ffn: FeedForward, make: LinearFactory, norm: Norm | None, scale: LayerScale | None
) -> FusedFeedForward:
    result: FusedFeedForward = _copy(ffn, FusedFeedForward)
    gates = [] if ffn.gate is None else [ffn.gate]
    vars(result).update(
        wide=_fused(make, *gates, ffn.up), narrow=_fused(make, ffn.down, scale=scale), norm=norm
    )
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
    if callable(fold := getattr(module, "fold", None)):  # a convolution with batch norm
        return cast(AnyModule, fold())
    if not any(isinstance(part, Block) or hasattr(part, "fold") for part in module.modules()):
        return module
    if hooked(module):
        raise HookedModuleError(type(module).__name__)
    children = {name: child for name, child in module._modules.items() if child is not None}
    copies = {child: _packed(child, make) for child in children.values()}  # layers may share one
    result: AnyModule = _copy(module)
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


def _copy(module: nn.Module, kind: type[nn.Module] | None = None) -> Any:
    """Return a copy that shares submodules and parameters, in evaluation mode and without hooks.

    Submodules become plain attributes, which are faster to look up. kind: class of the copy, if another
    """
    # `copy` would initialize a module that FSDP has wrapped
    result: Any = object.__new__(type(module) if kind is None else kind)
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

"""The layers of a stack over flat rows, with their matrices laid out for the machine.

What a block computes is said by `core.block`; here the same is done for rows (N, D) that have no batch and no
time: only attention, which is handed in, knows which rows belong together. Nothing can be observed here.

N rows, D d_model, H query heads, G key/value heads, K head width, V value width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.feedforward import FeedForward, GatedFeedForward
from glassformer.core.heads import LanguageModelHead
from glassformer.core.linear import Linear
from glassformer.core.norms import BatchNorm
from glassformer.core.stack import Stack
from glassformer.errors import GlassformerError
from glassformer.inference.products import Called, Lay, Norm, Product

Look = Callable[[int, Tensor], Tensor]  # layer, what the projections gave (N, ...) -> heads (N, H * V)


class Layer:
    """One block. Projections that read the same rows are one product."""

    def __init__(self, block: Block, lay: Lay) -> None:
        self.wiring = block.wiring
        own, cross, ffn = block.self_attn, block.cross_attn, block.ffn
        self.qkv = _projected(lay, own.q_proj, own.k_proj, own.v_proj)
        self.out = _projected(lay, own.out_proj)
        self.norm_self, self.norm_ffn = _flat(block.norm_self), _flat(block.norm_ffn)
        if cross is not None:
            self.cross_q, self.cross_out = _projected(lay, cross.q_proj), _projected(lay, cross.out_proj)
            self.cross_kv = _projected(lay, cross.k_proj, cross.v_proj)
            self.norm_cross = _flat(block.norm_cross)
        self.gated = isinstance(ffn, GatedFeedForward)
        gates = [ffn.gate] if isinstance(ffn, GatedFeedForward) else []
        self.up = _projected(lay, *gates, ffn.up)
        self.down = _projected(lay, ffn.down)
        self.activation = ffn.activation

    def __call__(self, n: int, x: Tensor, own: Look, across: Look | None) -> Tensor:
        """x (N, D) -> (N, D), through layer n."""
        if self.wiring == "post":
            x = self.norm_self(self.out(own(n, self.qkv(x)), plus=x))
            if across is not None:
                x = self.norm_cross(self.cross_out(across(n, self.cross_q(x)), plus=x))
            return self.norm_ffn(self._feed(x, x))
        if self.wiring == "parallel":
            normed = self.norm_self(x)
            return self._feed(normed, self.out(own(n, self.qkv(normed)), plus=x))
        attended = self.out(own(n, self.qkv(x, norm=self.norm_self)), plus=x)
        if self.wiring == "parallel_split":
            return self._feed(x, attended, self.norm_ffn)
        x = attended
        if across is not None:
            x = self.cross_out(across(n, self.cross_q(x, norm=self.norm_cross)), plus=x)
        return self._feed(x, x, self.norm_ffn)

    def _feed(self, x: Tensor, plus: Tensor, norm: Norm | None = None) -> Tensor:
        hidden = self.up(x, norm=norm, activation=self.activation, gated=self.gated)
        return self.down(hidden, plus=plus)


class Layers:
    """A stack's layers and its final norm."""

    def __init__(self, stack: Stack, lay: Lay) -> None:
        blocks: Any = stack.blocks
        self.stack = stack
        self.layers = [Layer(block, lay) for block in blocks]
        self.final_norm = _flat(stack.final_norm)
        self.own: MultiHeadAttention | None = blocks[0].self_attn if len(blocks) else None
        self.cross: MultiHeadAttention | None = blocks[0].cross_attn if len(blocks) else None

    def __call__(self, x: Tensor, own: Look, across: Look | None = None) -> Tensor:
        """x (N, D) -> (N, D)."""
        for n, layer in enumerate(self.layers):
            x = layer(n, x, own, across)
        return self.final_norm(x)


def heads_of(attention: MultiHeadAttention, qkv: Tensor, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (B * T, (H + G) * K + G * V) -> q (B, H, T, K), k (B, G, T, K), v (B, G, T, V)."""
    heads, groups, width = attention.num_heads, attention.num_kv_heads, attention.head_dim
    whole = qkv.view(batch, -1, qkv.shape[-1])
    q, k, v = whole.split_with_sizes([heads * width, groups * width, groups * attention.value_dim], -1)
    return split(q, heads), split(k, groups), split(v, groups)


def split(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads * K) -> (B, heads, T, K)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(heads: Tensor) -> Tensor:
    """(B, H, T, V) -> rows (B * T, H * V)."""
    batch, count, length, width = heads.shape
    return heads.transpose(1, 2).reshape(batch * length, count * width)


def _projected(lay: Lay, *projections: nn.Module) -> Product:
    """Projections that read the same rows, as one product; called one by one where someone changed them."""
    if all(type(one) in (Linear, nn.Linear) and not hooked(one) for one in projections):
        return lay([(one.weight, one.bias) for one in projections])  # type: ignore[misc]
    return Called(projections)


def hooked(module: nn.Module) -> bool:
    """Whether someone looks on when this module is called."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def refuse_hooks(model: nn.Module) -> None:
    """A layout calls the projections, norms and embeddings, and passes the parts around them by."""
    passed_by = (Stack, Block, MultiHeadAttention, FeedForward, GatedFeedForward, LanguageModelHead)
    for name, module in model.named_modules():
        # sharded modules hook themselves to be gathered, which whoever trains them has seen to
        if isinstance(module, passed_by) and hooked(module) and not hasattr(module, "unshard"):
            raise GlassformerError(
                f"{name} has a hook, which writing and reading pass by; remove it, put it on a projection, "
                "or observe a forward of the model (glassformer.observe)"
            )


def _flat(norm: nn.Module | None) -> Norm:
    """A norm of rows (N, D)."""
    if norm is None:
        return _as_it_is
    if isinstance(norm, BatchNorm):
        return lambda x: norm(x[None])[0]
    return norm


def _as_it_is(x: Tensor) -> Tensor:
    return x


def stream_dtype(parameter: Tensor) -> torch.dtype:
    """The precision of what flows between the layers: the weights', or bfloat16 where autocast says so."""
    kind = parameter.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16:
        return torch.bfloat16
    return parameter.dtype


class MadeOf:
    """What a layout was made of and for, to tell whether it still holds.

    What is written through a weight's `data` leaves no trace, and is not noticed.
    """

    def __init__(self, model: nn.Module) -> None:
        # held, so that weights that replace these cannot come to lie where all of these lay
        self.witness = min(model.parameters(), key=Tensor.numel).detach()
        self.marks = _marks(model)

    def still(self, model: nn.Module) -> bool:
        return self.marks == _marks(model)


def _marks(model: nn.Module) -> tuple[bool, list[tuple[int, int]], list[tuple[int, bool]]]:
    """Whether autocast is on; where each weight lies and how often it was written; modules and hooks."""
    refuse_hooks(model)
    modules = [(id(module), hooked(module)) for module in model.modules()]
    weights = list(model.parameters())
    written = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in weights]
    return torch.is_autocast_enabled(weights[0].device.type), written, modules

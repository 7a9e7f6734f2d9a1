"""One Transformer layer: self-attention, optional cross-attention, feed-forward; six wirings of the norms.

post                pre                      parallel (one norm)      parallel_split (two norms)
x --+-> attn -+     x --+-> norm -> attn -+   x --> norm --> attn -+   x --> norm_self --> attn -+
    +-------> + -> norm +---------------> +   |      +-----> ffn --+   +---> norm_ffn ---> ffn --+
                                              +------------------> +   +-----------------------> +

sandwich                             res_post
x --+-> norm -> attn -> norm_out -+   x --+-> attn -> norm -+
    +---------------------------> +       +---------------> +
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from glassformer.core import backend
from glassformer.core.attention import AttentionBackend, MultiHeadAttention
from glassformer.core.backend import Dropout
from glassformer.core.feedforward import FeedForward
from glassformer.core.inputs import Memory
from glassformer.core.kernels import Kernel
from glassformer.core.masks import Mask
from glassformer.core.norms import Conditional, LayerScale, drop_path
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.positions import NO_TERMS, Grid, PositionTerms
from glassformer.core.spec import Wiring
from glassformer.errors import InvalidValueError, MissingValueError


class LayerContext(NamedTuple):
    """All that a layer needs besides the residual stream, prepared once per pass.

    attend, cross_attend: backends of self-attention and cross-attention: memory, mask, positions, KV cache
    condition: (B, C), read by adaptive norms: a time, a class or a text
    grid: rows and columns, if the tokens form a 2-D grid
    """

    attend: AttentionBackend
    cross_attend: AttentionBackend | None = None
    condition: Tensor | None = None
    grid: Grid | None = None
    obs: Observer | None = None


class Sublayer(NamedTuple):
    """Attention or the feed-forward layer, with the norms and the factor around it.

    attend: backend, if the module is attention
    norm, norm_out: norm of its input and of its output
    scale: factor on its output
    """

    name: str
    module: nn.Module
    attend: AttentionBackend | None
    norm: nn.Module | None
    norm_out: nn.Module | None
    scale: nn.Module | None


class Block(nn.Module):
    """One Transformer layer, (B, T, D) -> (B, T, D): self-attention, optional cross-attention, feed-forward.

    self_attn: self-attention
    ffn: feed-forward layer
    norm: function that creates a norm; called once for each norm that the wiring needs, in their order; it
    may return None for no norm
    wiring: "post" norm(x + f(x)), "pre" x + f(norm(x)), "sandwich" x + norm(f(norm(x))), "res_post"
    x + norm(f(x)), "parallel" with one shared norm, "parallel_split" with two
    cross_attn: cross-attention, for a decoder with memory
    dropout: dropout rate of the output of each sublayer
    layer_scale: creates the factor on the output of a sublayer; called once for each, like `norm`
    local_conv: convolution between self-attention and feed-forward, for tokens of a 2-D grid
    drop_path: stochastic depth: probability of skipping a sublayer for a whole sample in training
    order: whether self-attention or cross-attention comes first

    >>> import torch
    >>> from glassformer.core.norms import LayerNorm
    >>> block = Block(self_attn=MultiHeadAttention(16, num_heads=4), ffn=FeedForward(16, d_ff=64),
    ...               norm=lambda: LayerNorm(16), wiring="pre")
    >>> x = torch.randn(2, 5, 16)
    >>> block(x, block.prepare(x, Mask(causal=True))).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        *,
        self_attn: MultiHeadAttention | nn.Module,
        ffn: FeedForward,
        norm: Callable[[], nn.Module | None],
        wiring: Wiring = "post",
        cross_attn: MultiHeadAttention | None = None,
        dropout: float = 0.0,
        layer_scale: Callable[[], LayerScale | Conditional | None] | None = None,
        drop_path: float = 0.0,
        order: Literal["self_first", "cross_first"] = "self_first",
        local_conv: nn.Module | None = None,
    ) -> None:
        if isinstance(norm, nn.Module):
            name = type(norm).__name__
            raise InvalidValueError("norm", name, f"a function that creates a norm, e.g. lambda: {name}(...)")
        super().__init__()
        self.wiring, self.order = wiring, order
        self.self_attn: Any = self_attn
        self.norm_self: nn.Module | None = norm()
        self.cross_attn = cross_attn
        self.norm_cross = norm() if cross_attn is not None else None
        self.ffn = ffn
        self.norm_ffn = norm() if wiring != "parallel" else None
        # norms of the output of each sublayer
        sandwich = wiring == "sandwich"
        self.norm_self_out = norm() if sandwich else None
        self.norm_cross_out = norm() if sandwich and cross_attn is not None else None
        self.norm_ffn_out = norm() if sandwich else None
        self.dropout = Dropout(dropout)
        self.drop_path = drop_path
        self.local_conv = local_conv
        # factors on the outputs of the sublayers
        self.scale_self_attn = None if layer_scale is None else layer_scale()
        self.scale_cross_attn = None if layer_scale is None or cross_attn is None else layer_scale()
        self.scale_ffn = None if layer_scale is None else layer_scale()

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x (B, T, D) -> (B, T, D), or (N, D) if the backends of the context work on rows without padding."""
        obs = context.obs
        x = tap(obs, "resid_in", x)
        attention, cross, ffn = self._sublayers(context)
        if self.wiring == "parallel":
            y = self._norm("norm_self", attention.norm, x, context)
            x = self._add(self._add(x, attention, y, context), ffn, y, context)
        elif self.wiring == "parallel_split":
            y = self._norm("norm_self", attention.norm, x, context)
            z = self._norm("norm_ffn", ffn.norm, x, context)
            x = self._add(self._add(x, attention, y, context), ffn, z, context)
        else:
            if self.order == "cross_first" and cross is not None:
                x = tap(obs, "resid_cross", self._add_and_norm(x, cross, context))
            x = tap(obs, "resid_self", self._add_and_norm(x, attention, context))
            if self.local_conv is not None:
                x = tap(obs, "local_conv", self.local_conv(x, context.grid))
            if self.order == "self_first" and cross is not None:
                x = tap(obs, "resid_cross", self._add_and_norm(x, cross, context))
            x = self._add_and_norm(x, ffn, context)
        return tap(obs, "resid_out", x)

    def _sublayers(self, context: LayerContext) -> tuple[Sublayer, Sublayer | None, Sublayer]:
        """Return self-attention, cross-attention and feed-forward, each with what is around it."""
        norms = (self.norm_self, self.norm_cross, self.norm_ffn)
        out_norms = (self.norm_self_out, self.norm_cross_out, self.norm_ffn_out)
        if self.wiring == "res_post":  # the norm is that of the output
            norms, out_norms = (None, None, None), norms
        attention = Sublayer(
            "self", self.self_attn, context.attend, norms[0], out_norms[0], self.scale_self_attn
        )
        ffn = Sublayer("ffn", self.ffn, None, norms[2], out_norms[2], self.scale_ffn)
        if self.cross_attn is None:
            return attention, None, ffn
        if context.cross_attend is None:
            raise MissingValueError(
                "memory", "by a block with cross-attention", "pass the output of the encoder"
            )
        cross = Sublayer(
            "cross", self.cross_attn, context.cross_attend, norms[1], out_norms[1], self.scale_cross_attn
        )
        return attention, cross, ffn

    def _add_and_norm(self, x: Tensor, f: Sublayer, context: LayerContext) -> Tensor:
        """Return norm(x + f(x)) if post-norm, else x + f(norm(x)); f may normalize its output, too."""
        name = f"norm_{f.name}"
        if self.wiring == "post":
            y = tap(context.obs, f"{name}_in", self._add(x, f, x, context))
            return self._norm(name, f.norm, y, context)
        return self._add(x, f, self._norm(name, f.norm, x, context), context)

    def _add(self, x: Tensor, f: Sublayer, y: Tensor, context: LayerContext) -> Tensor:
        """Return x + dropout(scale * norm_out(f(y)))."""
        obs = context.obs
        if f.attend is None:
            out = f.module(y, obs=scope(obs, f.name))
        else:
            out = f.module(y, f.attend, obs=scope(obs, f"{f.name}_attn"))
        if f.norm_out is not None:
            name = f"norm_{f.name}" if self.wiring == "res_post" else f"norm_{f.name}_out"
            out = self._norm(name, f.norm_out, out, context)
        if f.scale is not None:
            out = apply_part(f.scale, out, context)
        if self.training and self.drop_path:
            return x + drop_path(backend.dropout(out, self.dropout.p, True), self.drop_path)
        last: Any = f.scale or f.norm_out or f.module.output_layer
        producers = (f.module, last) if obs is None else None
        return backend.add_residual(x, out, self.dropout.p, self.training, producers=producers)

    def _norm(self, name: str, norm: nn.Module | None, x: Tensor, context: LayerContext) -> Tensor:
        return x if norm is None else tap(context.obs, name, apply_part(norm, x, context))

    def prepare(
        self,
        x: Tensor,
        mask: Mask | Tensor | None = None,
        memory: Tensor | Memory | None = None,
        *,
        terms: PositionTerms = NO_TERMS,
        kernel: Kernel = "auto",
    ) -> LayerContext:
        """Prepare the context of this layer alone; a stack prepares it for all its layers."""
        attend = self.self_attn.prepare(x, mask, terms=terms, kernel=kernel)
        cross = None
        if self.cross_attn is not None and memory is not None:
            memory = Memory.of(memory)
            prepared = self.cross_attn.prepare(x, memory.mask, memory.x, kernel=kernel)
            cross = prepared.at_layer(0, self.norm_cross, None)
        return LayerContext(attend.at_layer(0, self.norm_self, None), cross, grid=terms.grid)


def apply_part(part: nn.Module, x: Tensor, context: LayerContext) -> Tensor:
    """Apply a norm or a factor; an adaptive one reads the condition of the context."""
    out: Tensor = part(x, context.condition) if isinstance(part, Conditional) else part(x)
    return out

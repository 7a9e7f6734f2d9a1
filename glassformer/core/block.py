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
from typing import Any, Literal

from torch import Tensor, nn

from glassformer.core import backend
from glassformer.core.attention import AttentionBackend, DenseAttention, MultiHeadAttention
from glassformer.core.backend import Dropout, Norm
from glassformer.core.convolution.layers import ConvNorm
from glassformer.core.deformable import DeformableAttention
from glassformer.core.feedforward import FeedForward
from glassformer.core.kernels import Kernel, PreparedMask
from glassformer.core.masks import Mask
from glassformer.core.norms import LayerScale, drop_path
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.positions import PositionTerms
from glassformer.core.spatial import cells_to_map, map_to_cells
from glassformer.core.spec import Wiring
from glassformer.errors import MissingValueError


class Block(nn.Module):
    """One Transformer layer, (B, T, D) -> (B, T, D): self-attention, optional cross-attention, feed-forward.

    self_attn: self-attention
    ffn: feed-forward layer
    norm: function that creates a norm; called once for each norm that the wiring needs
    wiring: "post" norm(x + f(x)), "pre" x + f(norm(x)), "sandwich" x + norm(f(norm(x))), "res_post"
    x + norm(f(x)), "parallel" with one shared norm, "parallel_split" with two
    cross_attn: cross-attention, for a decoder with memory
    dropout: dropout rate of the output of each sublayer
    layer_scale: creates the factor on the output of a sublayer; called once for each; None: no factor
    local_conv: convolution between self-attention and feed-forward, for tokens of a 2-D grid
    drop_path: stochastic depth: probability of skipping a sublayer for a whole sample in training
    order: whether self-attention or cross-attention comes first

    >>> import torch
    >>> from glassformer.core.norms import LayerNorm
    >>> block = Block(self_attn=MultiHeadAttention(16, num_heads=4), ffn=FeedForward(16, d_ff=64),
    ...               norm=lambda: LayerNorm(16), wiring="pre")
    >>> block(torch.randn(2, 5, 16), mask=Mask(causal=True)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        *,
        self_attn: MultiHeadAttention | DeformableAttention,
        ffn: FeedForward,
        norm: Callable[[], nn.Module],
        wiring: Wiring = "post",
        cross_attn: MultiHeadAttention | None = None,
        dropout: float = 0.0,
        layer_scale: Callable[[], LayerScale] | None = None,
        drop_path: float = 0.0,
        order: Literal["self_first", "cross_first"] = "self_first",
        local_conv: ConvNorm | None = None,
    ) -> None:
        super().__init__()
        self.wiring, self.order = wiring, order
        self.self_attn = self_attn
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

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | PreparedMask | Tensor | None = None,
        memory_mask: Mask | PreparedMask | Tensor | None = None,
        terms: PositionTerms | None = None,
        kernel: Kernel = "auto",
        attend: AttentionBackend | None = None,
        cross_attend: AttentionBackend | None = None,
        position_embeddings: Tensor | None = None,
        memory_position_embeddings: Tensor | None = None,
        obs: Observer | None = None,
    ) -> Tensor:
        """x (B, T, D) -> (B, T, D), or (N, D) if `attend` and `cross_attend` handle rows without padding.

        attend, cross_attend: backends of self- and cross-attention, instead of mask, terms and kernel.
        position_embeddings, memory_position_embeddings: (B|1, T, D) and (B|1, S, D), added to the inputs of
        queries and keys of both attentions, but not of values.
        """
        if self.cross_attn is not None and memory is None and not (cross_attend and cross_attend.keys_cached):
            raise MissingValueError("memory", "by a block with cross-attention")
        x = tap(obs, "resid_in", x)
        self_options = {"mask": mask, "terms": terms, "kernel": kernel, "attend": attend}
        if position_embeddings is not None:
            self_options["position_embeddings"] = position_embeddings
        if self.wiring == "parallel":
            normed = self._norm("norm_self", obs)(x)
            x = self._add(x, "self_attn", normed, None, obs, self_options)
            x = self._add(x, "ffn", normed, None, obs, {})
        elif self.wiring == "parallel_split":
            attended = self._add(x, "self_attn", x, self._norm("norm_self", obs), obs, self_options)
            x = self._add(attended, "ffn", x, self._norm("norm_ffn", obs), obs, {})
        else:
            cross_options: dict[str, Any] = {
                "memory": memory,
                "mask": memory_mask,
                "kernel": kernel,
                "attend": cross_attend,
                "position_embeddings": position_embeddings,
                "memory_position_embeddings": memory_position_embeddings,
            }
            attentions: list[tuple[str, dict[str, Any]]] = [("self", self_options)]
            if self.cross_attn is not None:
                attentions.insert(self.order == "self_first", ("cross", cross_options))
            for kind, options in attentions:
                attended = self._sublayer(x, f"{kind}_attn", f"norm_{kind}", obs, options)
                x = tap(obs, f"resid_{kind}", attended)
                if kind == "self" and self.local_conv is not None:
                    grid = attend.grid if isinstance(attend, DenseAttention) else terms and terms.grid
                    if grid is None:
                        raise MissingValueError("the grid of the tokens", "by a convolution in a block")
                    x = tap(obs, "local_conv", map_to_cells(self.local_conv(cells_to_map(x, grid))))
            x = self._sublayer(x, "ffn", "norm_ffn", obs, {})
        return tap(obs, "resid_out", x)

    def _sublayer(
        self, x: Tensor, name: str, norm_name: str, obs: Observer | None, options: dict[str, Any]
    ) -> Tensor:
        """Return x + f(norm(x)), norm(x + f(x)) if post-norm; f is the sublayer `name`."""
        norm = self._norm(norm_name, obs) if getattr(self, norm_name) is not None else None
        if self.wiring == "res_post":
            return self._add(x, name, x, None, obs, options, out_norm=norm_name)
        if self.wiring == "sandwich":
            return self._add(x, name, x, norm, obs, options, out_norm=f"{norm_name}_out")
        if self.wiring == "pre" or norm is None:
            return self._add(x, name, x, norm, obs, options)
        return norm(tap(obs, f"{norm_name}_in", self._add(x, name, x, None, obs, options)))

    def _norm(self, name: str, obs: Observer | None) -> Norm:
        norm: Norm = getattr(self, name)
        return norm if obs is None else lambda x: tap(obs, name, norm(x))

    def _add(
        self,
        residual: Tensor,
        name: str,
        x: Tensor,
        norm: Norm | None,
        obs: Observer | None,
        options: dict[str, Any],
        out_norm: str | None = None,
    ) -> Tensor:
        """Return residual + dropout(scale * out_norm(f(norm(x)))), where f is the sublayer `name`."""
        part: MultiHeadAttention | DeformableAttention | FeedForward = getattr(self, name)
        out: Tensor
        if part.fused is not None:  # an inference copy: its fused linear layers apply norm and residual
            if out_norm is not None:
                return residual + self._norm(out_norm, obs)(part.forward(x, norm=norm, **options))
            out = part.forward(x, norm=norm, residual=residual, **options)
            return out
        if norm is not None and isinstance(part, MultiHeadAttention) and part.pads_before_norm:
            out = part(x, norm=norm, **options, obs=scope(obs, name))
        else:
            out = part(x if norm is None else norm(x), **options, obs=scope(obs, name))
        last: nn.Module = part.down if isinstance(part, FeedForward) else part.out_proj
        if out_norm is not None:
            out, last = self._norm(out_norm, obs)(out), getattr(self, out_norm)
        if (scale := getattr(self, f"scale_{name}")) is not None:
            out, last = scale(out), scale
        if self.training and self.drop_path:
            out = drop_path(backend.dropout(out, self.dropout.p, True), self.drop_path)
            return residual + out
        producers = (part, last) if obs is None else None
        return backend.add_residual(residual, out, self.dropout.p, self.training, producers=producers)

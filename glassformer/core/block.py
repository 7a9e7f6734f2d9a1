"""One layer: self-attention, cross-attention where there is memory, feed-forward; norms in named slots.

post                pre                      parallel (one norm)      parallel_split (two norms)
x --+-> attn -+     x --+-> norm -> attn -+   x --> norm --> attn -+   x --> norm_self --> attn -+
    +-------> + -> norm +---------------> +   |      +-----> ffn --+   +---> norm_ffn ---> ffn --+
                                              +------------------> +   +-----------------------> +
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.cache import LayerCache
from glassformer.core.dropout import Dropout, add_dropped
from glassformer.core.feedforward import FeedForward, GatedFeedForward
from glassformer.core.kernels import Kernel, Settled
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, child, seen, unwatched
from glassformer.core.positions import Place
from glassformer.core.spec import Wiring
from glassformer.errors import GlassformerError


class Block(nn.Module):
    """(B, T, D) -> (B, T, D), with memory (B, S, D) where it has cross-attention.

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
        self_attn: MultiHeadAttention,
        ffn: FeedForward | GatedFeedForward,
        norm: Callable[[], nn.Module],
        wiring: Wiring = "post",
        cross_attn: MultiHeadAttention | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.wiring = wiring
        self.self_attn = self_attn
        self.norm_self = norm()
        self.cross_attn = cross_attn
        self.norm_cross = norm() if cross_attn is not None else None
        self.ffn = ffn
        self.norm_ffn = norm() if wiring != "parallel" else None
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | Settled | Tensor | None = None,
        memory_mask: Mask | Settled | Tensor | None = None,
        place: Place | None = None,
        cache: LayerCache | None = None,
        start: int | Tensor = 0,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Tensor:
        if self.cross_attn is not None and memory is None:
            raise GlassformerError("this block has cross-attention; give it memory (B, S, d_model)")
        x = seen(obs, "resid_in", x)

        def attend(y: Tensor) -> Tensor:
            out: Tensor = self.self_attn(
                y,
                mask=mask,
                place=place,
                cache=cache,
                start=start,
                kernel=kernel,
                obs=child(obs, "self_attn"),
            )
            return out

        def cross(y: Tensor) -> Tensor:
            assert self.cross_attn is not None
            seeing = child(obs, "cross_attn")
            out: Tensor = self.cross_attn(y, memory, mask=memory_mask, cache=cache, kernel=kernel, obs=seeing)
            return out

        def feed(y: Tensor) -> Tensor:
            out: Tensor = self.ffn(y, obs=child(obs, "ffn"))
            return out

        if self.wiring in ("parallel", "parallel_split"):
            normed = seen(obs, "norm_self", self.norm_self(x))
            other = normed
            if self.norm_ffn is not None:
                other = seen(obs, "norm_ffn", self.norm_ffn(x))
            x = self._add(self._add(x, attend(normed), obs), feed(other), obs)
            return seen(obs, "resid_out", x)
        x = seen(obs, "resid_self", self._add_norm(x, attend, self.norm_self, "norm_self", obs))
        if self.cross_attn is not None:
            x = self._add_norm(x, cross, self.norm_cross, "norm_cross", obs)
            x = seen(obs, "resid_cross", x)
        return seen(obs, "resid_out", self._add_norm(x, feed, self.norm_ffn, "norm_ffn", obs))

    def _add_norm(
        self,
        x: Tensor,
        part: Callable[[Tensor], Tensor],
        norm: nn.Module | None,
        name: str,
        obs: Observer | None,
    ) -> Tensor:
        assert norm is not None
        if self.wiring == "pre":
            return self._add(x, part(seen(obs, name, norm(x))), obs)
        return seen(obs, name, norm(seen(obs, f"{name}_in", self._add(x, part(x), obs))))

    def _add(self, x: Tensor, out: Tensor, obs: Observer | None) -> Tensor:
        """x plus a sub-layer's fresh output, dropped; written over it where no one else looks at it.

        Only where the sum would lie in memory the same way: the next product's last bits depend on that.
        """
        alike = out.dtype == x.dtype and out.stride() == x.stride()
        if alike and not self.training:
            makers: list[nn.Module] = [self.self_attn, self.self_attn.out_proj, self.ffn, self.ffn.down]
            if self.cross_attn is not None:
                makers += [self.cross_attn, self.cross_attn.out_proj]
            if unwatched(obs, *makers):
                return out.add_(x)
        return add_dropped(x, out, self.dropout.p, self.training)

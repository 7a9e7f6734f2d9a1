"""Two-way attention: prompt tokens attend to an image, and the image attends to the tokens.

    tokens --self_attn--> norm --cross_attn to image--> norm --ffn--> norm -----+--> tokens
    image  --------------------------------------------- image_attn to tokens --+--> norm --> image

Positions are added to the queries and keys of every attention, not to the values: those of the tokens are the
tokens themselves before the first layer, those of the image its position features.
B prompts, T tokens, S cells of the image, D d_model.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.attention import (
    AttentionBackend,
    DenseAttention,
    MultiHeadAttention,
    make_attention,
)
from glassformer.core.feedforward import FeedForward
from glassformer.core.kernels import Kernel
from glassformer.core.norms import make_norm
from glassformer.core.observe import Observer, scope, tap


class Positioned(NamedTuple):
    """Vectors (B, T, D), and the position embeddings (B|1, T, D) that attention adds to queries and keys."""

    x: Tensor
    position: Tensor

    def attend(
        self, attention: MultiHeadAttention, memory: Positioned | None = None, *, kernel: Kernel
    ) -> AttentionBackend:
        """Prepare attention to the memory, or to the vectors themselves."""
        prepared = attention.prepare(self.x, None, None if memory is None else memory.x, kernel=kernel)
        assert isinstance(prepared, DenseAttention)
        return prepared._replace(position=self.position, memory_position=memory and memory.position)


class TwoWayBlock(nn.Module):
    """One layer of two-way attention, post-norm.

    first: whether it is the first layer, whose self-attention has neither positions nor a residual

    >>> import torch
    >>> attention = specs.AttentionSpec(num_heads=2)
    >>> spec = specs.TwoWayStackSpec(d_model=16, num_layers=1, attention=attention, cross_attention=attention,
    ...                              feed_forward=specs.FeedForwardSpec(d_ff=32))
    >>> tokens, image = torch.randn(3, 5, 16), torch.randn(3, 64, 16)
    >>> image = Positioned(image, torch.randn(1, 64, 16))
    >>> [tuple(x.shape) for x in TwoWayBlock(spec)(Positioned(tokens, tokens), image)]
    [(3, 5, 16), (3, 64, 16)]
    """

    def __init__(self, spec: specs.TwoWayStackSpec, *, first: bool = False) -> None:
        super().__init__()
        d_model, self.first = spec.d_model, first
        self.self_attn = make_attention(d_model, spec.attention)
        self.norm_self = make_norm(spec.norm, d_model)
        self.cross_attn = make_attention(d_model, spec.cross_attention)
        self.norm_cross = make_norm(spec.norm, d_model)
        self.ffn = FeedForward(d_model, **vars(spec.feed_forward))
        self.norm_ffn = make_norm(spec.norm, d_model)
        self.image_attn = make_attention(d_model, spec.cross_attention)
        self.norm_image = make_norm(spec.norm, d_model)

    def forward(
        self, tokens: Positioned, image: Positioned, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tokens (B, T, D) and image (B, S, D), each with its positions -> the same shapes."""
        x, position = tokens
        attend: AttentionBackend = (
            self.self_attn.prepare(x, kernel=kernel)
            if self.first
            else tokens.attend(self.self_attn, kernel=kernel)
        )
        attended = self.self_attn(x, attend, obs=scope(obs, "self_attn"))
        x = tap(obs, "resid_self", self.norm_self(attended if self.first else x + attended))
        attend = Positioned(x, position).attend(self.cross_attn, image, kernel=kernel)
        x = x + self.cross_attn(x, attend, obs=scope(obs, "cross_attn"))
        x = tap(obs, "resid_cross", self.norm_cross(x))
        x = self.norm_ffn(x + self.ffn(x, obs=scope(obs, "ffn")))
        attend = image.attend(self.image_attn, Positioned(x, position), kernel=kernel)
        cells = image.x + self.image_attn(image.x, attend, obs=scope(obs, "image_attn"))
        return tap(obs, "resid_out", x), tap(obs, "image_out", self.norm_image(cells))


class TwoWayStack(nn.Module):
    """Two-way layers, then a last attention of the tokens to the image."""

    def __init__(self, spec: specs.TwoWayStackSpec) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TwoWayBlock(spec, first=n == 0) for n in range(spec.num_layers))
        self.final_attn = make_attention(spec.d_model, spec.cross_attention)
        self.final_norm = make_norm(spec.final_norm, spec.d_model)

    def forward(
        self,
        tokens: Tensor,
        image: Tensor,
        image_positions: Tensor,
        *,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[Tensor, Tensor]:
        """tokens (B, T, D), image (B, S, D), image_positions (B|1, S, D) -> tokens and image."""
        positions = tokens
        for n, block in enumerate(self.blocks):
            tokens, image = block(
                Positioned(tokens, positions),
                Positioned(image, image_positions),
                kernel=kernel,
                obs=scope(obs, f"blocks.{n}"),
            )
        last = Positioned(tokens, positions)
        attend = last.attend(self.final_attn, Positioned(image, image_positions), kernel=kernel)
        attended = tokens + self.final_attn(tokens, attend, obs=scope(obs, "final_attn"))
        return tap(obs, "final_norm", self.final_norm(attended)), image

"""Two-way attention: prompt tokens attend to an image, and the image attends to the tokens.

    tokens --self_attn--> norm --cross_attn to image--> norm --ffn--> norm -----+--> tokens
    image  --------------------------------------------- image_attn to tokens --+--> norm --> image

Positions are added to the queries and keys of every attention, not to the values: those of the tokens are the
tokens themselves before the first layer, those of the image its position features.
B prompts, T tokens, S cells of the image, D d_model.
"""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.feedforward import FeedForward
from glassformer.core.kernels import Kernel
from glassformer.core.norms import make_norm
from glassformer.core.observe import Observer, scope, tap


class TwoWayBlock(nn.Module):
    """One layer of two-way attention, post-norm.

    first: whether it is the first layer, whose self-attention has neither positions nor a residual

    >>> import torch
    >>> attention = specs.AttentionSpec(num_heads=2)
    >>> spec = specs.TwoWayStackSpec(d_model=16, num_layers=1, attention=attention, cross_attention=attention,
    ...                              feed_forward=specs.FeedForwardSpec(d_ff=32))
    >>> tokens, image = torch.randn(3, 5, 16), torch.randn(3, 64, 16)
    >>> [tuple(x.shape) for x in TwoWayBlock(spec)(tokens, image, tokens, torch.randn(1, 64, 16))]
    [(3, 5, 16), (3, 64, 16)]
    """

    def __init__(self, spec: specs.TwoWayStackSpec, *, first: bool = False) -> None:
        super().__init__()
        d_model, self.first = spec.d_model, first
        self.self_attn = MultiHeadAttention(d_model, **vars(spec.attention))
        self.norm_self = make_norm(spec.norm, d_model)
        self.cross_attn = MultiHeadAttention(d_model, **vars(spec.cross_attention))
        self.norm_cross = make_norm(spec.norm, d_model)
        self.ffn = FeedForward(d_model, **vars(spec.feed_forward))
        self.norm_ffn = make_norm(spec.norm, d_model)
        self.image_attn = MultiHeadAttention(d_model, **vars(spec.cross_attention))
        self.norm_image = make_norm(spec.norm, d_model)

    def forward(
        self,
        tokens: Tensor,
        image: Tensor,
        token_positions: Tensor,
        image_positions: Tensor,
        *,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[Tensor, Tensor]:
        """tokens (B, T, D), image (B, S, D) -> the same shapes; positions (B|1, T, D) and (B|1, S, D)."""
        attended = self.self_attn(
            tokens,
            position_embeddings=None if self.first else token_positions,
            residual=None if self.first else tokens,
            kernel=kernel,
            obs=scope(obs, "self_attn"),
        )
        tokens = tap(obs, "resid_self", self.norm_self(attended))
        attended = self.cross_attn(
            tokens,
            image,
            position_embeddings=token_positions,
            memory_position_embeddings=image_positions,
            residual=tokens,
            kernel=kernel,
            obs=scope(obs, "cross_attn"),
        )
        tokens = tap(obs, "resid_cross", self.norm_cross(attended))
        tokens = self.norm_ffn(self.ffn(tokens, residual=tokens, obs=scope(obs, "ffn")))
        attended = self.image_attn(
            image,
            tokens,
            position_embeddings=image_positions,
            memory_position_embeddings=token_positions,
            residual=image,
            kernel=kernel,
            obs=scope(obs, "image_attn"),
        )
        return tap(obs, "resid_out", tokens), tap(obs, "image_out", self.norm_image(attended))


class TwoWayStack(nn.Module):
    """Two-way layers, then a last attention of the tokens to the image."""

    def __init__(self, spec: specs.TwoWayStackSpec) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TwoWayBlock(spec, first=n == 0) for n in range(spec.num_layers))
        self.final_attn = MultiHeadAttention(spec.d_model, **vars(spec.cross_attention))
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
                tokens, image, positions, image_positions, kernel=kernel, obs=scope(obs, f"blocks.{n}")
            )
        attended = self.final_attn(
            tokens,
            image,
            position_embeddings=positions,
            memory_position_embeddings=image_positions,
            residual=tokens,
            kernel=kernel,
            obs=scope(obs, "final_attn"),
        )
        return tap(obs, "final_norm", self.final_norm(attended)), image

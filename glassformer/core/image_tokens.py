"""Image tokens: a decoder writes an image as a sequence of codes, which an autoencoder turns into pixels.

    image (B, C, H, W) --autoencoder--> codes (B, h, w), row by row: (B, N)
    [text | start of image | codes] (B, T) --decoder--> scores of the next code (B, T, V)
    codes (B, N) --autoencoder--> image (B, C, H, W)

B batch, C channels, H and W height and width, h and w rows and columns of codes, N = h * w, T positions,
V codes in the codebook.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from glassformer.core import spec as specs
from glassformer.core.diffusion.autoencoder import Autoencoder
from glassformer.core.inputs import MaskLike, TextInputs
from glassformer.core.kernels import Kernel
from glassformer.core.model import DecoderOnly, Model
from glassformer.core.observe import Observer, scope


class ImageTokensModel(Model):
    """A decoder of codes with the autoencoder they belong to; the forward is that of the decoder.

    >>> import torch
    >>> import glassformer
    >>> from glassformer.core.build import build_model
    >>> block = specs.BlockSpec(attention=specs.AttentionSpec(num_heads=2),
    ...                         feed_forward=specs.FeedForwardSpec(d_ff=32))
    >>> decoder = specs.DecoderOnlySpec(
    ...     input=specs.TokensSpec(vocab_size=24 + 1 + 10, position=specs.LearnedSpec(max_len=300)),
    ...     decoder=specs.StackSpec(d_model=16, num_layers=1, block=block, causal=True),
    ...     head=specs.LanguageModelSpec(vocab_size=24), tied=())
    >>> vq = glassformer.tiny("vq_model").spec
    >>> model = build_model(specs.ImageTokensModelSpec(decoder=decoder, autoencoder=vq))
    >>> model.encode(torch.randn(1, 3, 32, 32)).shape, model.spec.prompt([3, 7])
    (torch.Size([1, 256]), [28, 32, 24])
    >>> model(torch.tensor([model.spec.prompt([3, 7])])).shape
    torch.Size([1, 3, 24])
    """

    spec: specs.ImageTokensModelSpec

    def __init__(
        self, spec: specs.ImageTokensModelSpec, *, decoder: DecoderOnly, autoencoder: Autoencoder
    ) -> None:
        super().__init__()
        self.spec = spec
        self.decoder, self.autoencoder = decoder, autoencoder

    def forward(
        self,
        ids: Tensor | TextInputs,
        mask: MaskLike = None,
        *,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Any:
        """Return the scores (B, T, V) of the code after each token of ids (B, T)."""
        return self.decoder(ids, mask, kernel=kernel, obs=scope(obs, "decoder"))

    def encode(self, images: Tensor) -> Tensor:
        """Return the codes (B, N) of images (B, C, H, W) from -1 to 1."""
        ids: Tensor = self.autoencoder.encode(images).ids  # type: ignore[union-attr]
        return ids.flatten(1)

    def decode(self, ids: Tensor) -> Tensor:
        """Return images (B, C, H, W) from -1 to 1 for codes (B, N)."""
        return self.autoencoder.decode_ids(ids.unflatten(1, self.spec.grid))

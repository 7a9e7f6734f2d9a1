"""Two towers: an image encoder and a text encoder, whose embeddings are compared.

B images, N texts, T positions of a text, E width of the embeddings.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.heads import PooledOutput
from glassformer.core.inputs import ImageInputs, MaskLike, TextInputs
from glassformer.core.kernels import Kernel
from glassformer.core.model import EncoderOnly, Model
from glassformer.core.observe import Observer, scope
from glassformer.core.vision.heads import SimilarityHead


class TwoTowerOutput(NamedTuple):
    """Embeddings of images (B, E) and texts (N, E), of length 1, and their similarity logits both ways."""

    image_embeds: Tensor
    text_embeds: Tensor
    logits_per_image: Tensor  # (B, N)
    logits_per_text: Tensor  # (N, B)


class TwoTower(Model):
    """An image encoder and a text encoder; the similarity of their embeddings has a trained temperature.

    image, text: the towers, encoder-only models whose head gives one vector per input
    head: computes the similarity

    >>> import torch
    >>> from glassformer.core.build import build_model
    >>> attention, ffn = specs.AttentionSpec(num_heads=4), specs.FeedForwardSpec(d_ff=64)
    >>> block = specs.BlockSpec(attention=attention, feed_forward=ffn)
    >>> stack = specs.StackSpec(d_model=16, num_layers=1, block=block)
    >>> patches = specs.ImagePatchesSpec(image_size=(16, 16), patch_size=(4, 4))
    >>> image, text = (specs.EncoderOnlySpec(input=read, encoder=stack, head=specs.ProjectionSpec())
    ...                for read in (patches, specs.TokensSpec(vocab_size=50)))
    >>> model = build_model(specs.TwoTowerSpec(image=image, text=text))
    >>> model(torch.randn(2, 3, 16, 16), torch.ones(4, 7).long()).logits_per_image.shape
    torch.Size([2, 4])
    """

    spec: specs.TwoTowerSpec

    def __init__(
        self, spec: specs.TwoTowerSpec, *, image: EncoderOnly, text: EncoderOnly, head: SimilarityHead
    ) -> None:
        super().__init__()
        self.spec = spec
        self.image, self.text, self.head = image, text, head

    def tie(self) -> None:
        """Tie the weights of each tower; call again after parameters are replaced."""
        self.image.tie()
        self.text.tie()

    def forward(
        self,
        images: Tensor | ImageInputs,
        texts: Tensor | TextInputs,
        mask: MaskLike = None,
        *,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> TwoTowerOutput:
        """Compare images (B, C, height, width) with texts (N, T). mask: that of the texts."""
        image_embeds = self.embed_images(images, kernel=kernel, obs=obs)
        text_embeds = self.embed_texts(texts, mask, kernel=kernel, obs=obs)
        logits = self.head(image_embeds, text_embeds, obs=scope(obs, "head"))
        return TwoTowerOutput(image_embeds, text_embeds, logits, logits.T)

    def embed_images(
        self, images: Tensor | ImageInputs, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> Tensor:
        """Embed images (B, C, height, width) -> (B, E), of length 1."""
        output: PooledOutput = self.image(images, kernel=kernel, obs=scope(obs, "image"))
        return F.normalize(output.pooled, dim=-1)

    def embed_texts(
        self,
        texts: Tensor | TextInputs,
        mask: MaskLike = None,
        *,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Tensor:
        """Embed texts, ids (N, T) -> (N, E), of length 1."""
        output: PooledOutput = self.text(texts, mask, kernel=kernel, obs=scope(obs, "text"))
        return F.normalize(output.pooled, dim=-1)

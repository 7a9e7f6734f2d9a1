"""Inputs that are texts with images: image vectors among the tokens, next to them, or in cross-attention.

All three join the modalities at the embedding: the stacks behind them are those of text models.
B texts, T tokens of a text, N images, S vectors of an image, E width of the image encoder, D d_model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.backend import ACTIVATIONS, Linear, normal_table
from glassformer.core.embeddings import EmbeddingOutput, TokenInput
from glassformer.core.inputs import (
    ImageInputs,
    ImageTextInputs,
    Memory,
    ModelInputs,
    TextInputs,
    embed_inputs,
)
from glassformer.core.masks import Mask
from glassformer.core.model import EncoderOnly
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.positions import Grid
from glassformer.errors import ImageTokensError, MissingValueError, ShapeError


class Connector(nn.Module):
    """Project the vectors of an image (N, S, E) to the width of the text (N, S / shuffle², D)."""

    def __init__(self, width: int, d_model: int, spec: specs.ConnectorSpec) -> None:
        super().__init__()
        self.shuffle = spec.shuffle
        self.up = Linear(width * spec.shuffle**2, d_model, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation] if spec.activation else None
        self.down = Linear(d_model, d_model, bias=spec.bias) if spec.activation else None

    def forward(self, x: Tensor, grid: Grid, *, obs: Observer | None = None) -> Tensor:
        if self.shuffle > 1:
            x = self.shuffle_patches(x, grid)
        x = self.up(x)
        if self.activation is not None and self.down is not None:
            x = self.down(self.activation(x))
        return tap(obs, "out", x)

    def shuffle_patches(self, x: Tensor, grid: Grid) -> Tensor:
        """Concatenate the vectors of each square of patches, row by row: (N, S, E) -> (N, S / n², n² E)."""
        n, (rows, columns) = self.shuffle, grid
        cells: Tensor = x.unflatten(1, (rows // n, n, columns // n, n))  # (N, rows / n, n, columns / n, n, E)
        return cells.transpose(2, 3).flatten(3).flatten(1, 2)


class EncodedImageInput(TokenInput, ABC):
    """Base of token inputs with images. image: the image encoder."""

    def __init__(self, d_model: int, *, image: EncoderOnly, **fields: Any) -> None:
        super().__init__(d_model, **fields)
        self.image = image

    @abstractmethod
    def encode_images(self, images: Tensor | ImageInputs, *, obs: Observer | None = None) -> Tensor:
        """Encode images (N, C, height, width) -> their vectors (N, S, W), which may replace the images."""

    def image_vectors(self, text: TextInputs, obs: Observer | None) -> Tensor | None:
        """Return the vectors (N, S, W) of the images of a batch, which it has as images or as vectors."""
        images = text.images if isinstance(text, ImageTextInputs) else None
        if images is None or (isinstance(images, Tensor) and images.dim() == 3):
            return images
        vectors: Tensor = self.encode_images(images, obs=obs)
        return vectors


class ImageTokenInput(EncodedImageInput):
    """Embed tokens, with the projected vectors of images in place of the placeholder tokens.

    connector: projects them
    """

    def __init__(
        self, d_model: int, spec: specs.ImageTokensSpec, *, image: EncoderOnly, **fields: Any
    ) -> None:
        super().__init__(d_model, image=image, **fields)
        self.connector = Connector(image.spec.encoder.d_model, self.token.embedding_dim, spec.connector)
        self.image_id, self.layer, self.keeps_prefix = spec.image_id, spec.layer, spec.prefix

    def encode_images(self, images: Tensor | ImageInputs, *, obs: Observer | None = None) -> Tensor:
        embedded = embed_inputs(self.image.embed, images, obs=scope(obs, "image.embed"))
        encoder, name = self.image.encoder, scope(obs, "image.encoder")
        if self.layer is None:
            x = encoder(embedded, obs=name)
        else:
            x = encoder.layer_outputs(embedded, obs=name)[self.layer].x
        assert embedded.grid is not None
        prefix = x.shape[1] - embedded.grid[0] * embedded.grid[1]
        x = x if self.keeps_prefix else x[:, prefix:]  # (N, S, E)
        vectors: Tensor = self.connector(x, embedded.grid, obs=scope(obs, "connector"))
        return vectors

    def embed_text(
        self, text: TextInputs, *, last: int | None = None, obs: Observer | None = None
    ) -> EmbeddingOutput:
        vectors = self.image_vectors(text, obs)
        if vectors is None:
            return super().embed_text(text, last=last, obs=obs)
        x = self.token_vectors(text.ids)
        places = text.ids == self.image_id
        if not places.is_meta and (found := int(places.sum())) != vectors.shape[:2].numel():
            raise ImageTokensError(len(vectors), vectors.shape[1], found)
        x = x.masked_scatter(places[..., None], vectors.to(x.dtype))  # in the order of the text
        return self.embed_vectors(x, positions=text.positions, last=last, types=text.types, obs=obs)


class ImageMemoryInput(EncodedImageInput):
    """Embed the tokens of a text (B, T), with the vectors of its image (B, S, E) for cross-attention."""

    def encode_images(self, images: Tensor | ImageInputs, *, obs: Observer | None = None) -> Tensor:
        x, _ = self.image.hidden_states(images, obs=scope(obs, "image"))
        return x

    def embed_text(
        self, text: TextInputs, *, last: int | None = None, obs: Observer | None = None
    ) -> EmbeddingOutput:
        vectors = self.image_vectors(text, obs)
        if vectors is None:
            raise MissingValueError("an image", "with every text, by this model", hint="use ImageTextInputs")
        if len(vectors) != len(text.ids):
            raise ShapeError("images", vectors.shape, f"{len(text.ids)} images, one for each text")
        embedded = super().embed_text(text, last=last, obs=obs)
        return embedded._replace(memory=Memory.of(vectors))


class TokensAndPatchesInput(nn.Module):
    """Embed texts (B, T) and their images, one for each -> one sequence (B, T + patches, D).

    text, image: embeddings of the tokens and of the patches. kind: a vector for texts, then those of images
    """

    def __init__(self, d_model: int, *, text: nn.Module, image: nn.Module, image_kinds: int) -> None:
        super().__init__()
        self.text, self.image = text, image
        self.kind = nn.Embedding(1 + image_kinds, d_model, _weight=normal_table(1 + image_kinds, d_model))

    def forward(self, inputs: ModelInputs, *, obs: Observer | None = None) -> EmbeddingOutput:
        images = inputs.images if isinstance(inputs, ImageTextInputs) else None
        if images is None:
            raise MissingValueError("an image", "with every text, by this model", hint="use ImageTextInputs")
        words = embed_inputs(self.text, inputs, obs=scope(obs, "text"))
        patches = embed_inputs(self.image, images, obs=scope(obs, "image"))
        if len(words.x) != len(patches.x):
            raise ShapeError("images", patches.x.shape, f"{len(words.x)} images, one for each text")
        kinds = tap(obs, "kind", self.kind.weight)
        x = torch.cat((words.x + kinds[0], patches.x + kinds[1]), 1)  # (B, T + patches, D)
        padding = words.mask.padding
        if padding is not None:
            padding = torch.cat((padding, padding.new_ones(patches.x.shape[:2])), 1)
        return EmbeddingOutput(tap(obs, "out", x), Mask(padding=padding), grid=patches.grid)

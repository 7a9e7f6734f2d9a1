"""Specs of inputs that are texts with images, and of what belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from glassformer.core.spec.architectures import EncoderOnlySpec, ModelSpec
from glassformer.core.spec.images import ImagePatchesSpec, StagesSpec
from glassformer.core.spec.layers import Activation, LayerNormSpec, NormSpec
from glassformer.core.spec.text import HeadSpec, InputSpec, Output, TokensSpec
from glassformer.errors import ConflictError, InvalidValueError, UnsupportedError
from glassformer.schema import Spec


@dataclass(frozen=True, kw_only=True)
class ConnectorSpec(Spec):
    """Dense layers that project the vectors of an image to the width of the text.

    shuffle: side of the squares of patches whose vectors are concatenated first (pixel shuffle).
    activation: between two dense layers; None: there is one layer.
    """

    shuffle: int = 1
    activation: Activation | None = None
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class EncodedImageSpec(TokensSpec, abstract=True):
    """Base of token inputs with images that an image encoder encodes first.

    image: the image encoder.
    """

    image: EncoderOnlySpec

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image.modalities != ("image",):
            raise UnsupportedError("the image encoder of a text", f"{self.image.modalities[0]} input")

    def parts(self) -> tuple[InputSpec, ...]:
        return (self, *self.image.inputs())

    def children(self) -> dict[str, ModelSpec]:
        return {"image": self.image}


@dataclass(frozen=True, kw_only=True)
class ImageTokensSpec(EncodedImageSpec):
    """Token embeddings, with the projected vectors of images in place of placeholder tokens.

    image: the image encoder. image_id: the placeholder token.
    connector: dense layers that project its vectors.
    layer: the hidden states of the image encoder to use: None for its output, -2 for those before its last
    layer. prefix: whether to use the class token too.
    """

    image_id: int
    connector: ConnectorSpec = field(default_factory=ConnectorSpec)
    layer: int | None = None
    prefix: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.image.encoder.num_layers
        if self.layer is not None and not -layers - 1 <= self.layer <= -1:
            raise InvalidValueError("layer", self.layer, f"from {-layers - 1} to -1")
        if isinstance(self.image.encoder, StagesSpec) or not isinstance(self.image.input, ImagePatchesSpec):
            raise UnsupportedError("image tokens", f"an image encoder with {self.image.encoder.kind}")

    def num_image_tokens(self, size: Sequence[int]) -> int:
        """Return how many tokens an image of this height and width takes; for processor, model and server."""
        patches: ImagePatchesSpec = self.image.input  # type: ignore[assignment]
        rows, columns = (side // patch for side, patch in zip(size, patches.patch_size, strict=True))
        shuffle = self.connector.shuffle
        if rows % shuffle or columns % shuffle:
            raise ConflictError(
                ("image_size", "shuffle"), f"{rows} x {columns} patches are not whole squares of {shuffle}"
            )
        return rows * columns // shuffle**2 + (patches.prefix if self.prefix else 0)


@dataclass(frozen=True, kw_only=True)
class ImageMemorySpec(EncodedImageSpec):
    """Token embeddings of a text, with an image that cross-attention of its stack attends to.

    image: the image encoder.
    """

    @property
    def memory_dim(self) -> int:
        return self.image.encoder.d_model


@dataclass(frozen=True, kw_only=True)
class TokensAndPatchesSpec(InputSpec):
    """Text tokens followed by image patches, in one sequence; a trained vector marks each of the two.

    text, image: the tokens and the patches.
    image_kinds: number of trained vectors for images: one for each image of a text.
    """

    modality = "text"

    text: TokensSpec
    image: ImagePatchesSpec
    image_kinds: int = 1

    def parts(self) -> tuple[InputSpec, ...]:
        return self.text, self.image


@dataclass(frozen=True, kw_only=True)
class PoolerClassifySpec(HeadSpec):
    """Classify by the first hidden state: tanh pooler, dense layer, norm, activation, logits.

    hidden_dim: width of the dense layer.
    """

    yields: ClassVar[Output | None] = "label"
    pool: ClassVar[Literal["first"]] = "first"

    num_labels: int
    hidden_dim: int
    activation: Activation = "gelu"
    norm: NormSpec = field(default_factory=LayerNormSpec)

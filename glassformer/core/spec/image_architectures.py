"""Specs of models that exist for images only: prompts, two towers, mask classification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from glassformer.core.spec.architectures import (
    DecoderOnlySpec,
    EncoderOnlySpec,
    InitSpec,
    ModelSpec,
    NormalSpec,
    XavierSpec,
)
from glassformer.core.spec.images import (
    BackboneSpec,
    ConvolutionStemSpec,
    HybridStagesSpec,
    ImagePatchesSpec,
    NeckSpec,
    ObjectQueriesSpec,
    PromptedMasksSpec,
    PromptEncoderSpec,
    ResNetSpec,
    SigmoidSimilaritySpec,
    SoftmaxSimilaritySpec,
    TwoWayStackSpec,
)
from glassformer.core.spec.layers import StackSpec
from glassformer.core.spec.text import AttentionPoolSpec, HeadSpec, InputSpec, ProjectionSpec
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class FeaturePyramidSpec(InputSpec):
    """A pixel decoder of convolutions: a feature pyramid network (FPN) with group norm.

    backbone: a convolutional network, or an image encoder with a `BackboneSpec` head.
    width: channels of the feature pyramid.
    """

    modality = "image"

    backbone: ResNetSpec | EncoderOnlySpec
    width: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_groups(self.width)

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        return image_channels(self), 96, 128


@dataclass(frozen=True, kw_only=True)
class DeformablePixelDecoderSpec(InputSpec):
    """A pixel decoder of deformable attention among the three coarsest feature maps of the backbone.

    backbone: a convolutional network, or an image encoder with a `BackboneSpec` head.
    width: of the blocks. num_points: sampled points of each head and map.
    num_finer: number of finer maps that a feature pyramid then adds.
    """

    modality = "image"

    backbone: ResNetSpec | EncoderOnlySpec
    width: int = 256
    num_layers: int = 6
    num_heads: int = 8
    num_points: int = 4
    d_ff: int = 1024
    num_finer: int = 1
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_groups(self.width)

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        return image_channels(self), 96, 128


def _check_groups(width: int) -> None:
    """Raise unless group norm, with 32 groups as in the published models, can divide the channels."""
    if width % 32:
        raise InvalidValueError("width", width, "a multiple of 32, the number of groups of group norm")


@dataclass(frozen=True, kw_only=True)
class PromptedSegmenterSpec(ModelSpec):
    """Promptable segmentation: an image is encoded once; points, boxes and masks are decoded to masks.

    neck: convolutions that bring the features of the encoder to the width of the decoder.
    prompt: the embedding of points, boxes and masks.
    """

    architecture = "promptable segmentation"

    input: ImagePatchesSpec | ConvolutionStemSpec
    encoder: StackSpec | HybridStagesSpec
    decoder: TwoWayStackSpec
    neck: NeckSpec = field(default_factory=NeckSpec)
    prompt: PromptEncoderSpec = field(default_factory=PromptEncoderSpec)
    head: PromptedMasksSpec = field(default_factory=PromptedMasksSpec)
    tied: tuple[Literal["head"], ...] = ()
    init: InitSpec = field(default_factory=NormalSpec)


@dataclass(frozen=True, kw_only=True)
class TwoTowerSpec(ModelSpec):
    """An image encoder and a text encoder whose embeddings, of equal width, the head compares.

    image, text: the encoders, with a head that returns embeddings.
    """

    architecture = "two towers"

    image: EncoderOnlySpec
    text: EncoderOnlySpec
    head: SoftmaxSimilaritySpec | SigmoidSimilaritySpec = field(default_factory=SoftmaxSimilaritySpec)
    init: InitSpec = field(default_factory=NormalSpec)

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = []
        for name, tower in (("image", self.image), ("text", self.text)):
            if not isinstance(tower.head, ProjectionSpec | AttentionPoolSpec):
                raise InvalidValueError(f"{name}.head", tower.head.kind, "Projection or AttentionPool")
            widths.append(getattr(tower.head, "projection_dim", None) or tower.encoder.d_model)
        if widths[0] != widths[1]:
            raise ConflictError(
                ("image", "text"), f"their embeddings have {widths[0]} and {widths[1]} values"
            )

    @property
    def tied(self) -> tuple[str, ...]:  # type: ignore[override]
        """Modules that share weights: none."""
        return ()

    @property
    def embedding_dim(self) -> int:
        """Width of the embeddings of both towers."""
        return getattr(self.image.head, "projection_dim", None) or self.image.encoder.d_model


@dataclass(frozen=True, kw_only=True)
class EncoderMaskClassifierSpec(ModelSpec):
    """Mask classification by an image encoder alone: object queries join the patches in its last layers.

    query_layers: number of last layers that the queries go through.
    num_upscale: how often the resolution of the patches is doubled for the masks.
    """

    architecture = "encoder-only mask classification"

    input: ImagePatchesSpec
    encoder: StackSpec
    head: HeadSpec
    num_queries: int
    query_layers: int
    num_upscale: int = 2
    tied: tuple[Literal["head"], ...] = ()
    init: InitSpec = field(default_factory=NormalSpec)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder.final_norm is None:
            raise MissingValueError("final_norm", "in the encoder of a mask classifier")
        if not 1 <= self.query_layers <= self.encoder.num_layers:
            expected = f"from 1 to num_layers {self.encoder.num_layers}"
            raise InvalidValueError("query_layers", self.query_layers, expected)


@dataclass(frozen=True, kw_only=True)
class MaskClassifierSpec(ModelSpec):
    """Mask classification: a backbone, a pixel decoder, and a decoder of object queries.

    input: with deformable attention, the decoder reads three maps in turn, and its cross-attention is masked;
    with a feature pyramid, it reads the coarsest map of the backbone.
    project_memory: project the maps that the decoder reads even if they have its width.
    """

    architecture = "mask classification"

    input: FeaturePyramidSpec | DeformablePixelDecoderSpec
    target: ObjectQueriesSpec
    decoder: StackSpec
    head: HeadSpec
    project_memory: bool = False
    tied: tuple[Literal["head"], ...] = ()
    init: InitSpec = field(default_factory=XavierSpec)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cross_attention", "final_norm"):
            owner = self.decoder.block if name == "cross_attention" else self.decoder
            if getattr(owner, name) is None:
                raise MissingValueError(name, "in the decoder of a mask classifier")


def feature_channels(backbone: ResNetSpec | EncoderOnlySpec) -> tuple[int, ...]:
    """Return the channels of the feature maps of a backbone, fine to coarse."""
    if isinstance(backbone, ResNetSpec):
        return backbone.widths
    if not isinstance(backbone.head, BackboneSpec):
        raise UnsupportedError("a backbone", f"the {backbone.head.kind} head", hint="use BackboneSpec")
    return tuple(backbone.encoder.widths[n] for n in backbone.head.layers)


def image_channels(source: InputSpec) -> int:
    """Return the number of channels of the images that a model reads."""
    if isinstance(source, FeaturePyramidSpec | DeformablePixelDecoderSpec):
        backbone = source.backbone
        return backbone.channels if isinstance(backbone, ResNetSpec) else image_channels(backbone.input)
    channels: int = getattr(source, "channels", 3)
    return channels


DecoderSpec = DecoderOnlySpec | MaskClassifierSpec  # without a Transformer encoder

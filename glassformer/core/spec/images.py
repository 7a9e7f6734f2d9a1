"""Specs of the inputs, encoders, decoders and heads of image models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from glassformer.core.spec.layers import (
    Activation,
    AttentionSpec,
    BlockSpec,
    FeedForwardSpec,
    LayerNormSpec,
    NormSpec,
    StackSpec,
)
from glassformer.core.spec.text import HeadSpec, InputSpec
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.schema import Spec


@dataclass(frozen=True, kw_only=True)
class ResNetSpec(Spec):
    """A residual convolutional network: a 7x7 stem with pooling (stride 4), then stages of residual layers.

    stem_width, widths: channels of the stem and of the output of each stage. depths: layers of each stage.
    layer: "basic" is two 3x3 convolutions, "bottleneck" 1x1, 3x3 and 1x1.
    strides: by how much each stage lowers the resolution. strided_conv: the convolution of a bottleneck that
    does it.
    dilations: dilation of the 3x3 convolutions of each stage; its first layer has that of the stage before.
    norm: batch norm is trained ("batch"), or its statistics and parameters are fixed ("frozen_batch").
    """

    channels: int = 3
    stem_width: int = 64
    widths: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    layer: Literal["basic", "bottleneck"] = "bottleneck"
    strides: tuple[int, ...] = (1, 2, 2, 2)
    strided_conv: Literal["1x1", "3x3"] = "3x3"
    dilations: tuple[int, ...] = ()
    norm: Literal["batch", "frozen_batch"] = "frozen_batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depths", "strides", "dilations"):
            values = getattr(self, name)
            if len(values) != len(self.widths) and (values or name != "dilations"):
                expected = f"{len(self.widths)} numbers, one for each of the widths"
                raise InvalidValueError(name, values, expected)


@dataclass(frozen=True, kw_only=True)
class ImagePatchesSpec(InputSpec):
    """Embedded image patches after `prefix` trained tokens (class token, distillation token).

    suffix: number of trained tokens after the patches, e.g. object queries.
    position: trained positions of prefix and patches, fixed sines of row and column, or none.
    position_scale: by how much rows and columns are divided before their sines are taken.
    interpolate: accept images of other sizes, with interpolation of the trained positions.
    interpolation: how: bicubic; bilinear with the corners aligned; or the nearest position above and left.
    antialias: whether bicubic interpolation to a smaller size averages over neighbors.
    patch_norm, norm: norm of the patches before positions are added, and of all tokens after that.
    registers: number of further trained tokens, without positions, between prefix and patches.
    mask_token: whether there is a token for masked patches.
    pad: pad images with zeros to whole patches; otherwise incomplete patches are cut off.
    layer_positions: number of further tables of trained positions; table n is added to the output of layer n.
    """

    modality = "image"

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    channels: int = 3
    prefix: int = 1
    suffix: int = 0
    bias: bool = True
    dropout: float = 0.0
    position: Literal["learned", "sinusoidal", "none"] = "learned"
    position_scale: float = 1.0
    interpolate: bool = False
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    antialias: bool = False
    patch_norm: NormSpec | None = None
    norm: NormSpec | None = None
    layer_positions: int = 0
    registers: int = 0
    mask_token: bool = False
    pad: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(i < p or p < 1 for i, p in zip(self.image_size, self.patch_size, strict=True)):
            expected = f"at least 1 and at most the image_size {self.image_size}"
            raise InvalidValueError("patch_size", self.patch_size, expected)
        if self.position == "sinusoidal" and (self.prefix or self.suffix or self.position_scale <= 0):
            raise UnsupportedError("sinusoidal positions of patches", "prefix, suffix or a scale of 0")

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        return self.channels, *self.image_size

    def num_tokens(self, shape: Sequence[int]) -> int:
        patches = [side // patch for side, patch in zip(shape[2:], self.patch_size, strict=True)]
        return self.prefix + self.registers + self.suffix + math.prod(patches)

    @property
    def num_patches(self) -> int:
        rows, columns = self.grid
        return rows * columns

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches of an image of `image_size`."""
        (height, width), (ph, pw) = self.image_size, self.patch_size
        return height // ph, width // pw


@dataclass(frozen=True, kw_only=True)
class Sinusoidal2dSpec(Spec):
    """Sinusoidal positions of the cells of a 2-D grid: half of the features encode the row, half the column.

    Rows and columns are counted over real cells, and scaled to 2 pi over the grid.
    """

    base: float = 10000.0


@dataclass(frozen=True, kw_only=True)
class Learned2dSpec(Spec):
    """Learned positions of the cells of a 2-D grid: half of the features encode the column, half the row.

    max_len: largest number of rows and of columns.
    """

    max_len: int = 50


Position2dSpec = Sinusoidal2dSpec | Learned2dSpec


@dataclass(frozen=True, kw_only=True)
class FeatureMapSpec(InputSpec):
    """The last feature map of an image backbone, projected to d_model; its cells are the tokens.

    position: position embeddings of the cells, added to queries and keys of every layer.
    """

    modality = "image"

    backbone: ResNetSpec
    position: Position2dSpec = field(default_factory=Sinusoidal2dSpec)

    @property
    def stride(self) -> int:
        """Pixels per cell and side: the stem has stride 4."""
        return 4 * math.prod(self.backbone.strides)

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        return self.backbone.channels, 4 * self.stride, 5 * self.stride

    def num_tokens(self, shape: Sequence[int]) -> int:
        return math.prod(-(-side // self.stride) for side in shape[2:])


@dataclass(frozen=True, kw_only=True)
class ObjectQueriesSpec(InputSpec):
    """Object queries: trained position embeddings, added to queries and keys of every layer.

    content: the input of the first layer, zeros or trained vectors.
    """

    modality = "vectors"
    trained = True

    num_queries: int
    content: Literal["zeros", "learned"] = "zeros"

    def num_tokens(self, shape: Sequence[int]) -> int:
        return self.num_queries


@dataclass(frozen=True, kw_only=True)
class ConvolutionStemSpec(InputSpec):
    """Images at a quarter of their size: two 3x3 convolutions of stride 2 with batch norm."""

    modality = "image"

    image_size: tuple[int, int]
    channels: int = 3
    activation: Activation = "gelu"

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        return self.channels, *self.image_size


@dataclass(frozen=True, kw_only=True)
class StagesSpec(Spec):
    """A hierarchical image encoder: stacks, between which 2 x 2 neighboring cells of the grid are merged.

    Merging concatenates the cells and projects them to the width of the next stage.
    stages: the stacks, finest grid first.
    merging_order: whether the concatenated cells are normalized ("norm_first") or the projected ones
    ("norm_last"). merging_norm: the norm of the merging.
    """

    stages: tuple[StackSpec, ...]
    merging_order: Literal["norm_first", "norm_last"] = "norm_first"
    merging_norm: NormSpec = field(default_factory=LayerNormSpec)
    final_norm: NormSpec | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stages:
            raise InvalidValueError("stages", self.stages, "at least one stack")

    @property
    def d_model(self) -> int:
        """The width of the output."""
        return self.stages[-1].d_model

    def parts(self) -> dict[str, StackSpec]:
        """Return the stages that are stacks, by the rest of their module path."""
        return {f".stages.{n}": stage for n, stage in enumerate(self.stages)}

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the input and of every stage."""
        return (self.stages[0].d_model, *(stage.d_model for stage in self.stages))

    @property
    def num_layers(self) -> int:
        return sum(stage.num_layers for stage in self.stages)

    @property
    def block(self) -> BlockSpec:
        """The first block."""
        return self.stages[0].block_at(0)

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """The distinct blocks of all stages."""
        return tuple(block for stage in self.stages for block in stage.blocks)


@dataclass(frozen=True, kw_only=True)
class ConvolutionStageSpec(Spec):
    """A stage of inverted bottlenecks.

    expansion: how many times as wide a bottleneck is inside.
    """

    d_model: int
    num_layers: int
    expansion: int = 4


@dataclass(frozen=True, kw_only=True)
class HybridStagesSpec(Spec):
    """A hierarchical image encoder of convolutional stages and Transformer stacks, merged by convolutions.

    stages: the stages, finest grid first.
    strides: by how much the merging after each stage but the last divides rows and columns.
    activation: of the convolutions.
    """

    stages: tuple[ConvolutionStageSpec | StackSpec, ...]
    strides: tuple[int, ...]
    activation: Activation = "gelu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.strides) != len(self.stages) - 1:
            raise InvalidValueError("strides", self.strides, f"{len(self.stages) - 1} numbers")

    @property
    def d_model(self) -> int:
        """The width of the output."""
        return self.stages[-1].d_model

    def parts(self) -> dict[str, StackSpec]:
        """Return the stages that are stacks, by the rest of their module path."""
        return {f".stages.{n}": stage for n, stage in enumerate(self.stages) if isinstance(stage, StackSpec)}

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the input and of every stage."""
        return (self.stages[0].d_model, *(stage.d_model for stage in self.stages))


@dataclass(frozen=True, kw_only=True)
class BackboneSpec(HeadSpec):
    """Feature maps (B, D, rows, columns) of an image: the hidden states after some layers or stages.

    layers: numbers of the layers, or of the stages of a hierarchical encoder; 0 is the embedding.
    norm: norm of the hidden states. shared_norm: one norm for all maps instead of one for each.
    """

    yields = "feature maps"

    layers: tuple[int, ...]
    norm: NormSpec | None = None
    shared_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layers or list(self.layers) != sorted({*self.layers}) or self.layers[0] < 0:
            raise InvalidValueError("Backbone.layers", self.layers, "increasing numbers from 0 on")


@dataclass(frozen=True, kw_only=True)
class DistilledClassifySpec(HeadSpec):
    """Classify by class token and distillation token, and by the mean of their logits."""

    yields = "label"

    num_labels: int


@dataclass(frozen=True, kw_only=True)
class BoxesSpec(HeadSpec):
    """Class and box of every object query.

    num_labels: number of classes, without the class "no object", which gets the last logit.
    class_layers: dense layers of the classifier. box_layers: dense layers of the box predictor.
    num_queries: number of queries at the end of the sequence; None: every position is a query.
    """

    yields = "boxes"

    num_labels: int
    class_layers: int = 1
    box_layers: int = 3
    num_queries: int | None = None


@dataclass(frozen=True, kw_only=True)
class PixelsSpec(HeadSpec):
    """Class of every pixel of an image, from its patches.

    num_labels: number of classes. decoder_dim: width of the convolutional decoder; 0: one linear layer.
    stride: pixels per prediction, which is then interpolated. channels: of the images.
    instances: predict also "no object" and the offset from each pixel to the center of its object.
    """

    yields = "pixels"

    num_labels: int
    decoder_dim: int = 128
    stride: Literal[1, 2, 4, 8] = 4
    channels: int = 3
    instances: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_dim % 64:
            raise InvalidValueError("decoder_dim", self.decoder_dim, "a multiple of 64")


@dataclass(frozen=True, kw_only=True)
class SoftmaxSimilaritySpec(HeadSpec):
    """Logits exp(scale) * cosine, trained with a softmax over each row and column.

    scale: initial value of the trained scale, the log of an inverse temperature.
    """

    yields = "similarity"
    activation = "softmax"

    scale: float = 2.6592


@dataclass(frozen=True, kw_only=True)
class SigmoidSimilaritySpec(HeadSpec):
    """Logits exp(scale) * cosine + bias, trained with a sigmoid for each pair.

    scale, bias: initial values of the trained scale (log of an inverse temperature) and bias.
    """

    yields = "similarity"
    activation = "sigmoid"

    scale: float = 2.302585
    bias: float = -10.0


@dataclass(frozen=True, kw_only=True)
class MasksSpec(HeadSpec):
    """Class and binary mask of every object query: query embeddings times pixel embeddings.

    mask_dim: width of the pixel embeddings. activation: of the three-layer perceptron that embeds a query.
    """

    yields = "masks"

    num_labels: int
    mask_dim: int
    activation: Activation = "relu"


@dataclass(frozen=True, kw_only=True)
class PromptedMasksSpec(HeadSpec):
    """Masks of a prompt at four times the resolution of the image embedding, with their predicted IoU.

    num_masks: number of masks for an ambiguous prompt; there is one more mask for several prompts.
    iou_dim, iou_layers: hidden width and number of layers of the perceptron that predicts the IoU.
    """

    yields = "prompted masks"

    num_masks: int = 3
    iou_dim: int = 256
    iou_layers: int = 3


@dataclass(frozen=True, kw_only=True)
class NeckSpec(Spec):
    """Convolutions that project the output of an image encoder to `channels` feature maps."""

    channels: int = 256
    norm_eps: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class PromptEncoderSpec(Spec):
    """Points and boxes as random Fourier features plus a learned label, masks through small convolutions.

    mask_channels: channels of the last but one convolution, a multiple of 4.
    """

    mask_channels: int = 16
    activation: Activation = "gelu"
    norm_eps: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class TwoWayStackSpec(Spec):
    """Layers of two-way attention between prompt tokens and an image, and a last look at the image.

    cross_attention: of the tokens to the image and of the image to the tokens, usually at half the width.
    final_norm: after the last look.
    """

    d_model: int
    num_layers: int
    attention: AttentionSpec
    cross_attention: AttentionSpec
    feed_forward: FeedForwardSpec
    norm: NormSpec = field(default_factory=LayerNormSpec)
    final_norm: NormSpec = field(default_factory=LayerNormSpec)

    def parts(self) -> dict[str, StackSpec]:
        """Return the parts that are stacks: none."""
        return {}

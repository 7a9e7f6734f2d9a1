"""Specs: small frozen dataclasses that describe a model, nested like its modules.

Variants are separate classes or literals, not combinations of booleans, so that meaningless combinations
cannot be expressed. `build.py` builds modules from a spec; `to_dict` and `from_dict` of `schema.py` convert
it to and from JSON data.

    StackSpec(d_model=512, num_layers=6, block=BlockSpec(attention=AttentionSpec(num_heads=8),
          feed_forward=FeedForwardSpec(d_ff=2048), norm=LayerNormSpec(), wiring="post"))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from glassformer.core.schema import Spec
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, UnsupportedError

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"]
Wiring = Literal["pre", "post", "sandwich", "res_post", "parallel", "parallel_split"]
Projection = Literal["q", "k", "v", "out"]

# ---- norms ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LayerNormSpec(Spec):
    """LayerNorm: (x - mean) / std over the features, with a trained scale and bias."""

    eps: float = 1e-5
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class RMSNormSpec(Spec):
    """RMSNorm: x / rms(x) over the features, times the trained weight plus `offset`.

    With offset 1, the stored weight is centered at 0.
    """

    eps: float = 1e-6
    offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BatchNormSpec(Spec):
    """BatchNorm: normalize each feature over batch and time (running statistics in evaluation)."""

    eps: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class CosineSpec(Spec):
    """Cosine attention: scores of unit queries and keys, times a trained factor for each head.

    max_scale: maximum of the factor.
    """

    max_scale: float = 100.0


NormSpec = LayerNormSpec | RMSNormSpec | BatchNormSpec

# ---- positions ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SinusoidalSpec(Spec):
    """Sinusoidal positions added to the input; "halves": all sines first, then all cosines."""

    max_len: int
    layout: Literal["interleaved", "halves"] = "interleaved"
    base: float = 10000.0


@dataclass(frozen=True, kw_only=True)
class LearnedSpec(Spec):
    """Learned positions added to the input; the first `offset` rows of the table are unused."""

    max_len: int
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class LinearScalingSpec(Spec):
    """RoPE position interpolation: rotary angles are divided by `factor`."""

    factor: float


@dataclass(frozen=True, kw_only=True)
class BandScalingSpec(Spec):
    """RoPE scaling by frequency: low frequencies are divided by `factor`, high ones are unchanged.

    Wavelengths below `original_max_len / high_freq_factor` are unchanged, those above
    `original_max_len / low_freq_factor` are scaled, those between are interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high_freq_factor == self.low_freq_factor:
            raise ConflictError(("high_freq_factor", "low_freq_factor"), "they are equal")


@dataclass(frozen=True, kw_only=True)
class RotarySpec(Spec):
    """Rotary position embedding (RoPE) of queries and keys, in the half-split form.

    width: the number of rotated features per head (None: all). Feature i is paired with i + width/2.
    """

    base: float = 10000.0
    width: int | None = None
    scaling: LinearScalingSpec | BandScalingSpec | None = None


@dataclass(frozen=True, kw_only=True)
class RelativeSpec(Spec):
    """Relative position bias: a trained bias on the scores per head and distance bucket."""

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 4 <= self.buckets < 2 * self.max_distance:
            expected = f"at least 4 and less than twice max_distance {self.max_distance}"
            raise InvalidValueError("buckets", self.buckets, expected)


@dataclass(frozen=True, kw_only=True)
class AlibiSpec(Spec):
    """ALiBi: a fixed bias on the scores that falls linearly with distance, with one slope per head.

    rounding: "bfloat16" rounds each slope, and each slope times position, as in models trained in bfloat16.
    """

    scale: float = 1.0
    rounding: Literal["none", "bfloat16"] = "none"


@dataclass(frozen=True, kw_only=True)
class DisentangledSpec(Spec):
    """Disentangled attention: scores between contents and trained embeddings of relative positions.

    A position embedding is projected with the layer's own query and key matrices. "c2p" adds the product of
    query and position key to the scores, "p2c" that of position query and key.
    buckets: if given, distances up to buckets/2 are exact, and farther ones share logarithmic buckets.
    max_distance: farther positions share an embedding.
    norm, dropout: of the position embeddings.
    """

    max_distance: int
    buckets: int | None = None
    terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")
    norm: NormSpec | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.terms:
            raise InvalidValueError("terms", self.terms, "at least one of c2p and p2c")
        if self.buckets is not None and not 4 <= self.buckets < 2 * (self.max_distance - 1):
            expected = f"at least 4 and less than twice max_distance {self.max_distance} - 1"
            raise InvalidValueError("buckets", self.buckets, expected)

    @property
    def span(self) -> int:
        """Half of the number of position embeddings."""
        return self.buckets or self.max_distance


InputPositionSpec = SinusoidalSpec | LearnedSpec
AttentionPositionSpec = RotarySpec | RelativeSpec | AlibiSpec | DisentangledSpec

# ---- attention, feed-forward, block, stack ----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WindowSpec(Spec):
    """Window attention over a 2-D grid: tokens attend within windows of size x size tokens.

    shift: rows and columns by which the windows are shifted (shifted-window attention).
    always: shift the windows also if a side of the grid is not larger than a window.
    pad_before_norm: the zeros that fill up windows are added before the norm of a pre-norm block, not after.
    """

    size: int
    shift: int = 0
    always: bool = False
    pad_before_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.shift < self.size:
            raise InvalidValueError("shift", self.shift, f"at least 0 and less than size {self.size}")


@dataclass(frozen=True, kw_only=True)
class RelativeBias2dSpec(Spec):
    """2-D relative position bias: a trained bias on the scores per head and offset within `grid`.

    signed: if False, opposite offsets share a bias.
    """

    grid: tuple[int, int]
    signed: bool = True


@dataclass(frozen=True, kw_only=True)
class QueryBias2dSpec(Spec):
    """2-D relative position bias from the query: its product with embeddings of row and column offsets."""

    grid: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class LogBias2dSpec(Spec):
    """2-D relative position bias computed by a small network from log-spaced offsets within `grid`.

    pretrained_size: window size in pretraining, by which offsets are scaled; None: that of `grid`.
    hidden_dim: width of the network. max_bias: upper bound of the bias.
    """

    grid: tuple[int, int]
    pretrained_size: int | None = None
    hidden_dim: int = 512
    max_bias: float = 16.0


PositionBiasSpec = RelativeBias2dSpec | QueryBias2dSpec | LogBias2dSpec


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(Spec):
    """Multi-head attention. Widths that are None are derived from d_model and num_heads.

    num_kv_heads: number of key/value heads for grouped-query attention; 1 is multi-query attention.
    value_dim: width of a value head, if not head_dim.
    scale: factor of the scores, by default 1/sqrt(head_dim).
    window: sliding window; a query attends to at most this many keys, including its own.
    qk_norm: norm of the queries and keys of each head, before rotary positions; `CosineSpec` also replaces
    the scale.
    softcap: bound of the scaled scores s, which become softcap * tanh(s / softcap) before bias and mask.
    spatial_window: windows of a 2-D grid, within which tokens attend; None: all tokens.
    position_bias: bias on the scores that belongs to this attention layer, for tokens of a 2-D grid.
    """

    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    scale: float | None = None
    biases: tuple[Projection, ...] = ("q", "k", "v", "out")
    window: int | None = None
    dropout: float = 0.0
    qk_norm: RMSNormSpec | CosineSpec | None = None
    softcap: float | None = None
    spatial_window: WindowSpec | None = None
    position_bias: PositionBiasSpec | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.softcap is not None and self.softcap <= 0:
            raise InvalidValueError("softcap", self.softcap, "a number above 0")
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise InvalidValueError(
                "num_kv_heads", self.num_kv_heads, f"a divisor of num_heads {self.num_heads}"
            )


@dataclass(frozen=True, kw_only=True)
class FeedForwardSpec(Spec):
    """down(activation(up(x)))."""

    d_ff: int
    activation: Activation = "relu"
    biases: tuple[Literal["up", "down"], ...] = ("up", "down")
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GatedFeedForwardSpec(Spec):
    """down(activation(gate(x)) * up(x))."""

    d_ff: int
    activation: Activation = "silu"
    biases: tuple[Literal["up", "gate", "down"], ...] = ()
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BlockSpec(Spec):
    """One layer: self-attention, optional cross-attention, feed-forward, and the placement of norms.

    wiring: "post" norm(x + f(x)); "pre" x + f(norm(x)); "sandwich" x + norm(f(norm(x))); "res_post"
    x + norm(f(x)); "parallel" x + attn(n) + ffn(n) with one shared norm n; "parallel_split" the same with
    separate norms.
    order: whether self-attention or cross-attention comes first.
    local_conv: size of a depthwise convolution with batch norm between attention and feed-forward, over a 2-D
    grid of tokens; None: none.
    layer_scale: initial value of a trained factor per feature on the output of each sublayer; None: none.
    """

    attention: AttentionSpec
    feed_forward: FeedForwardSpec | GatedFeedForwardSpec
    norm: NormSpec = field(default_factory=LayerNormSpec)
    wiring: Wiring = "post"
    cross_attention: AttentionSpec | None = None
    dropout: float = 0.0
    layer_scale: float | None = None
    order: Literal["self_first", "cross_first"] = "self_first"
    local_conv: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cross_attention is not None and self.wiring.startswith("parallel"):
            raise UnsupportedError("a parallel block", "cross-attention", hint="use wiring='pre'")


@dataclass(frozen=True, kw_only=True)
class StackSpec(Spec):
    """A stack of `num_layers` blocks, with positions that act inside attention and an optional final norm.

    pattern: if given, layer n is pattern[n % len(pattern)] instead of `block`, e.g. with and without a
    window. local_position: positions of layers with a window, if different from `position`.
    num_groups: if given, the layers form this many groups of consecutive layers, and the layers of a group
    share their parameters.
    first_norm: whether the first layer of a pre-norm stack normalizes its input; False if the embedding does.
    drop_path: stochastic depth: probability of skipping a sublayer for a whole sample in training, of the
    first and of the last layer, linear in between.
    """

    d_model: int
    num_layers: int
    block: BlockSpec
    causal: bool = False
    position: AttentionPositionSpec | None = None
    final_norm: NormSpec | None = None
    pattern: tuple[BlockSpec, ...] = ()
    local_position: AttentionPositionSpec | None = None
    num_groups: int | None = None
    first_norm: bool = True
    drop_path: tuple[float, float] = (0.0, 0.0)

    def drop_path_of(self, n: int) -> float:
        """Return the stochastic depth rate of layer n."""
        first, last = self.drop_path
        return first + (last - first) * n / max(1, self.num_layers - 1)

    def group_of(self, n: int) -> int:
        """Return the group of layer n; without groups, n."""
        return n if self.num_groups is None else n * self.num_groups // self.num_layers

    def block_at(self, n: int) -> BlockSpec:
        """Return the block of layer n."""
        return self.pattern[n % len(self.pattern)] if self.pattern else self.block

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """The distinct blocks of the stack."""
        return self.pattern or (self.block,)

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the input and of every layer."""
        return (self.d_model,) * (self.num_layers + 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for attention in (a for b in self.blocks for a in (b.attention, b.cross_attention)):
            if attention and attention.head_dim is None and self.d_model % attention.num_heads:
                expected = f"a multiple of num_heads {attention.num_heads}"
                raise InvalidValueError("d_model", self.d_model, expected, hint="or set head_dim")
        if isinstance(self.position, DisentangledSpec):
            attentions = [block.attention for block in self.blocks]
            if self.causal or any(a.num_kv_heads not in (None, a.num_heads) for a in attentions):
                raise UnsupportedError("disentangled attention", "causal stacks and grouped heads")
        if self.num_groups is not None and not 1 <= self.num_groups <= max(1, self.num_layers):
            expected = f"from 1 to num_layers {self.num_layers}"
            raise InvalidValueError("num_groups", self.num_groups, expected)
        if self.num_groups is not None and self.pattern:
            raise ConflictError(("num_groups", "pattern"), "layers of a group are equal")
        if not self.first_norm and (self.block_at(0).wiring != "pre" or self.num_groups is not None):
            raise UnsupportedError("a first layer without norm", "layers that share it, or are not pre-norm")
        width = self.position.width if isinstance(self.position, RotarySpec) else None
        head_dim = self.block.attention.head_dim or self.d_model // self.block.attention.num_heads
        if width is not None and width > head_dim:
            raise InvalidValueError("Rotary.width", width, f"at most head_dim {head_dim}")


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


EncoderSpec = StackSpec | StagesSpec

# ---- convolutions ---------------------------------------------------------------------------


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


# ---- inputs ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TokensSpec(Spec):
    """Token embeddings times `scale`, plus positions and token types, with an optional norm.

    embedding_dim: width of the embeddings and the norm, which a dense layer then projects to d_model; None:
    d_model, without a projection.
    """

    vocab_size: int
    embedding_dim: int | None = None
    scale: float = 1.0
    position: InputPositionSpec | None = None
    types: int | None = None
    norm: NormSpec | None = None
    dropout: float = 0.0
    pad_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ImagePatchesSpec(Spec):
    """Embedded image patches after `prefix` trained tokens (class token, distillation token).

    suffix: number of trained tokens after the patches, e.g. object queries.
    position: trained positions of prefix and patches, or none.
    interpolate: accept images of other sizes, with bicubic interpolation of the trained positions.
    antialias: whether the interpolation to a smaller size averages over neighbors.
    patch_norm, norm: norm of the patches before positions are added, and of all tokens after that.
    registers: number of further trained tokens, without positions, between prefix and patches.
    mask_token: whether there is a token for masked patches.
    pad: pad images with zeros to whole patches; otherwise incomplete patches are cut off.
    layer_positions: number of further tables of trained positions; table n is added to the output of layer n.
    """

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    channels: int = 3
    prefix: int = 1
    suffix: int = 0
    bias: bool = True
    dropout: float = 0.0
    position: Literal["learned", "none"] = "learned"
    interpolate: bool = False
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
class FeatureMapSpec(Spec):
    """The last feature map of an image backbone, projected to d_model; its cells are the tokens.

    position: position embeddings of the cells, added to queries and keys of every layer.
    """

    backbone: ResNetSpec
    position: Position2dSpec = field(default_factory=Sinusoidal2dSpec)


@dataclass(frozen=True, kw_only=True)
class ObjectQueriesSpec(Spec):
    """Object queries: trained position embeddings, added to queries and keys of every layer.

    content: the input of the first layer, zeros or trained vectors.
    """

    num_queries: int
    content: Literal["zeros", "learned"] = "zeros"


@dataclass(frozen=True, kw_only=True)
class ConvolutionStemSpec(Spec):
    """Images at a quarter of their size: two 3x3 convolutions of stride 2 with batch norm."""

    image_size: tuple[int, int]
    channels: int = 3
    activation: Activation = "gelu"


@dataclass(frozen=True, kw_only=True)
class SeriesPatchesSpec(Spec):
    """Embedded patches of scaled series (B, time, channels); each channel is a separate sequence."""

    context_length: int
    patch_length: int
    stride: int
    channels: int
    position: Literal["learned", "sincos"] = "sincos"
    scaling: Literal["std", "mean", "none"] = "std"
    embedding: Literal["shared", "per_channel"] = "shared"
    prefix: int = 0
    dropout: float = 0.0
    covariates: int = 0  # known covariates, whose effect is removed from the past and added to the forecast

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_length < self.patch_length:
            expected = f"at least patch_length {self.patch_length}"
            raise InvalidValueError("context_length", self.context_length, expected)

    @property
    def num_patches(self) -> int:
        return (self.context_length - self.patch_length) // self.stride + 1


@dataclass(frozen=True, kw_only=True)
class VectorsSpec(Spec):
    """Vectors (B, T, d_model), used unchanged."""


@dataclass(frozen=True, kw_only=True)
class FeaturePyramidSpec(Spec):
    """A pixel decoder of convolutions: a feature pyramid network (FPN) with group norm.

    backbone: a convolutional network, or an image encoder with a `BackboneSpec` head.
    width: channels of the feature pyramid.
    """

    backbone: ResNetSpec | EncoderOnlySpec
    width: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_groups(self.width)


@dataclass(frozen=True, kw_only=True)
class DeformablePixelDecoderSpec(Spec):
    """A pixel decoder of deformable attention among the three coarsest feature maps of the backbone.

    backbone: a convolutional network, or an image encoder with a `BackboneSpec` head.
    width: of the blocks. num_points: sampled points of each head and map.
    num_finer: number of finer maps that a feature pyramid then adds.
    """

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


def _check_groups(width: int) -> None:
    """Raise unless group norm, with 32 groups as in the published models, can divide the channels."""
    if width % 32:
        raise InvalidValueError("width", width, "a multiple of 32, the number of groups of group norm")


InputSpec = (
    TokensSpec
    | ImagePatchesSpec
    | ConvolutionStemSpec
    | FeatureMapSpec
    | FeaturePyramidSpec
    | DeformablePixelDecoderSpec
    | ObjectQueriesSpec
    | SeriesPatchesSpec
    | VectorsSpec
)

# ---- heads ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FeaturesSpec(Spec):
    """The last hidden states; with `pooler`, also activation(dense(first state)) of width `pooler_dim`.

    pool: without a pooler, also the "first" hidden state or the "mean" of all as pooled vector.
    """

    pooler: bool = False
    pooler_dim: int | None = None
    pooler_activation: Activation = "tanh"
    pool: Literal["first", "mean"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooler and self.pool is not None:
            raise ConflictError(("pooler", "pool"), "both give the pooled vector")


@dataclass(frozen=True, kw_only=True)
class BackboneSpec(Spec):
    """Feature maps (B, D, rows, columns) of an image: the hidden states after some layers or stages.

    layers: numbers of the layers, or of the stages of a hierarchical encoder; 0 is the embedding.
    norm: norm of the hidden states. shared_norm: one norm for all maps instead of one for each.
    """

    layers: tuple[int, ...]
    norm: NormSpec | None = None
    shared_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layers or list(self.layers) != sorted({*self.layers}) or self.layers[0] < 0:
            raise InvalidValueError("Backbone.layers", self.layers, "increasing numbers from 0 on")


@dataclass(frozen=True, kw_only=True)
class LanguageModelSpec(Spec):
    """Logits over the vocabulary at every position, from hidden states times `scale`.

    softcap: bound of the logits y, which become softcap * tanh(y / softcap).
    """

    vocab_size: int
    bias: bool = False
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.softcap is not None and self.softcap <= 0:
            raise InvalidValueError("softcap", self.softcap, "a number above 0")


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelSpec(Spec):
    """Dense layer, activation and norm, then logits over the vocabulary at every position.

    hidden_dim, hidden_bias: width (if not d_model) and bias of the dense layer. bias: of the logits.
    """

    vocab_size: int
    hidden_dim: int | None = None
    activation: Activation = "gelu"
    norm: NormSpec = field(default_factory=LayerNormSpec)
    hidden_bias: bool = True
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class ClassifySpec(Spec):
    """Classify a sequence from its pooled hidden state.

    pool: hidden state of the "first" token, the "last" real token or the last `end_id` ("end"), or the
    "mean"; "first_mean" concatenates the first token's and the mean of the image patches.
    hidden: activation of a dense layer before the classifier; None: no dense layer.
    hidden_norm, hidden_bias: norm after the activation, and bias of the dense layer.
    dropped: layers that have dropout before them: "hidden" (the dense layer), "out" (the classifier).
    """

    num_labels: int
    pool: Literal["first", "last", "end", "mean", "first_mean"] = "first"
    hidden: Activation | None = None
    bias: bool = True
    dropout: float = 0.0
    dropped: tuple[Literal["hidden", "out"], ...] = ("hidden", "out")
    end_id: int = -1
    hidden_norm: NormSpec | None = None
    hidden_bias: bool = True


@dataclass(frozen=True, kw_only=True)
class DistilledClassifySpec(Spec):
    """Classify by class token and distillation token, and by the mean of their logits."""

    num_labels: int


@dataclass(frozen=True, kw_only=True)
class TokenClassifySpec(Spec):
    """Classify every token.

    hidden, hidden_norm, hidden_bias: of a dense layer before the classifier, as in `ClassifySpec`.
    """

    num_labels: int
    bias: bool = True
    dropout: float = 0.0
    hidden: Activation | None = None
    hidden_norm: NormSpec | None = None
    hidden_bias: bool = True


@dataclass(frozen=True, kw_only=True)
class ReplacedTokenSpec(Spec):
    """Replaced-token detection: dense layer, activation, then one logit per token, positive if replaced."""

    activation: Activation = "gelu"


@dataclass(frozen=True, kw_only=True)
class AnswerSpec(Spec):
    """Extractive question answering: start and end logits for every token.

    hidden, hidden_norm, hidden_bias: of a dense layer before the logits, as in `ClassifySpec`.
    """

    dropout: float = 0.0
    hidden: Activation | None = None
    hidden_norm: NormSpec | None = None
    hidden_bias: bool = True


@dataclass(frozen=True, kw_only=True)
class EmbedSpec(Spec):
    """One embedding per text, pooled over its real tokens; `normalize` scales it to length 1."""

    pool: Literal["mean", "first", "max", "mean_sqrt_len", "last"] = "mean"
    normalize: bool = False
    pooler: bool = False


@dataclass(frozen=True, kw_only=True)
class BoxesSpec(Spec):
    """Class and box of every object query.

    num_labels: number of classes, without the class "no object", which gets the last logit.
    class_layers: dense layers of the classifier. box_layers: dense layers of the box predictor.
    num_queries: number of queries at the end of the sequence; None: every position is a query.
    """

    num_labels: int
    class_layers: int = 1
    box_layers: int = 3
    num_queries: int | None = None


@dataclass(frozen=True, kw_only=True)
class PixelsSpec(Spec):
    """Class of every pixel of an image, from its patches.

    num_labels: number of classes. decoder_dim: width of the convolutional decoder; 0: one linear layer.
    stride: pixels per prediction, which is then interpolated. channels: of the images.
    instances: predict also "no object" and the offset from each pixel to the center of its object.
    """

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
class ProjectionSpec(Spec):
    """One vector per sequence or image: a pooled hidden state, then optional norm and dense layer.

    pool: hidden state of the "first" token, of the first `end_id` ("first_end"), of the largest token id
    ("largest_id"), or at the "last_position", even if it is padding; or the "mean" of all real tokens.
    projection_dim: width of the dense layer; None: no dense layer.
    """

    pool: Literal["first", "first_end", "largest_id", "last_position", "mean"] = "first"
    end_id: int = -1
    norm: NormSpec | None = None
    projection_dim: int | None = None
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class AttentionPoolSpec(Spec):
    """Attention pooling: a trained query (probe) attends to all hidden states; then norm and feed-forward."""

    attention: AttentionSpec
    feed_forward: FeedForwardSpec
    norm: NormSpec = field(default_factory=LayerNormSpec)


@dataclass(frozen=True, kw_only=True)
class SoftmaxSimilaritySpec(Spec):
    """Logits exp(scale) * cosine, trained with a softmax over each row and column.

    scale: initial value of the trained scale, the log of an inverse temperature.
    """

    scale: float = 2.6592


@dataclass(frozen=True, kw_only=True)
class SigmoidSimilaritySpec(Spec):
    """Logits exp(scale) * cosine + bias, trained with a sigmoid for each pair.

    scale, bias: initial values of the trained scale (log of an inverse temperature) and bias.
    """

    scale: float = 2.302585
    bias: float = -10.0


@dataclass(frozen=True, kw_only=True)
class ForecastSpec(Spec):
    """Forecast the next `prediction_length` values of each channel, or their distribution."""

    prediction_length: int
    pool: Literal["flatten", "mean", "max", "first"] = "flatten"
    projection: Literal["shared", "per_channel"] = "shared"
    distribution: Literal["none", "student_t", "normal", "negative_binomial"] = "none"
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SeriesClassifySpec(Spec):
    """Classify a series from the concatenated pooled vectors of its channels."""

    num_labels: int
    pool: Literal["mean", "max", "first"] = "mean"
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SeriesRegressSpec(Spec):
    """Predict `num_targets` values per series, or their distribution, optionally within a range."""

    num_targets: int
    pool: Literal["mean", "max", "first"] = "mean"
    distribution: Literal["none", "student_t", "normal", "negative_binomial"] = "none"
    output_range: tuple[float, float] | None = None
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PatchReconstructSpec(Spec):
    """Reconstruct the values of each patch, for masked pretraining."""

    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MasksSpec(Spec):
    """Class and binary mask of every object query: query embeddings times pixel embeddings.

    mask_dim: width of the pixel embeddings. activation: of the three-layer perceptron that embeds a query.
    """

    num_labels: int
    mask_dim: int
    activation: Activation = "relu"


@dataclass(frozen=True, kw_only=True)
class PromptedMasksSpec(Spec):
    """Masks of a prompt at four times the resolution of the image embedding, with their predicted IoU.

    num_masks: number of masks for an ambiguous prompt; there is one more mask for several prompts.
    iou_dim, iou_layers: hidden width and number of layers of the perceptron that predicts the IoU.
    """

    num_masks: int = 3
    iou_dim: int = 256
    iou_layers: int = 3


HeadSpec = (
    FeaturesSpec
    | BackboneSpec
    | LanguageModelSpec
    | MaskedLanguageModelSpec
    | ClassifySpec
    | DistilledClassifySpec
    | TokenClassifySpec
    | ReplacedTokenSpec
    | AnswerSpec
    | EmbedSpec
    | BoxesSpec
    | PixelsSpec
    | ProjectionSpec
    | AttentionPoolSpec
    | SoftmaxSimilaritySpec
    | SigmoidSimilaritySpec
    | ForecastSpec
    | SeriesClassifySpec
    | SeriesRegressSpec
    | PatchReconstructSpec
    | MasksSpec
    | PromptedMasksSpec
)

# ---- initialization and models --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class XavierSpec(Spec):
    """Xavier uniform for matrices, 0 for biases, normal with std 1/sqrt(d_model) for embeddings."""


@dataclass(frozen=True, kw_only=True)
class NormalSpec(Spec):
    """Normal distribution; residual="shrunk" divides `std` by sqrt(N) for the N residual projections."""

    std: float = 0.02
    residual: Literal["same", "shrunk"] = "same"


InitSpec = XavierSpec | NormalSpec


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderSpec(Spec):
    """An encoder-decoder. tied: modules that share the target's token matrix."""

    source: InputSpec
    target: InputSpec
    encoder: StackSpec
    decoder: StackSpec
    head: HeadSpec
    tied: tuple[Literal["source", "head"], ...] = ()
    start_id: int | None = None
    init: InitSpec = field(default_factory=XavierSpec)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder.block.cross_attention is None:
            raise MissingValueError("cross_attention", "in the block of the decoder of an encoder-decoder")


@dataclass(frozen=True, kw_only=True)
class EncoderOnlySpec(Spec):
    """An encoder-only model: every position attends to all positions.

    max_len: longest sequence in training, if no position table limits it; not enforced.
    """

    input: InputSpec
    encoder: EncoderSpec
    head: HeadSpec
    tied: tuple[Literal["head"], ...] = ()
    max_len: int | None = None
    init: InitSpec = field(default_factory=NormalSpec)


@dataclass(frozen=True, kw_only=True)
class DecoderOnlySpec(Spec):
    """A decoder-only model: every position attends to itself and to earlier positions.

    max_len: longest sequence in training, if no position table limits it; not enforced.
    """

    input: InputSpec
    decoder: StackSpec
    head: HeadSpec
    tied: tuple[Literal["head"], ...] = ()
    max_len: int | None = None
    init: InitSpec = field(default_factory=NormalSpec)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.decoder.causal:
            raise InvalidValueError("causal", False, "True in the decoder stack")


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

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the input and of every stage."""
        return (self.stages[0].d_model, *(stage.d_model for stage in self.stages))


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


@dataclass(frozen=True, kw_only=True)
class PromptedSegmenterSpec(Spec):
    """Promptable segmentation: an image is encoded once; points, boxes and masks are decoded to masks.

    neck: convolutions that bring the features of the encoder to the width of the decoder.
    prompt: the embedding of points, boxes and masks.
    """

    input: ImagePatchesSpec | ConvolutionStemSpec
    encoder: StackSpec | HybridStagesSpec
    decoder: TwoWayStackSpec
    neck: NeckSpec = field(default_factory=NeckSpec)
    prompt: PromptEncoderSpec = field(default_factory=PromptEncoderSpec)
    head: PromptedMasksSpec = field(default_factory=PromptedMasksSpec)
    tied: tuple[Literal["head"], ...] = ()
    init: InitSpec = field(default_factory=NormalSpec)


@dataclass(frozen=True, kw_only=True)
class TwoTowerSpec(Spec):
    """An image encoder and a text encoder whose embeddings, of equal width, the head compares.

    image, text: the encoders, with a head that returns embeddings.
    """

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
    def tied(self) -> tuple[str, ...]:
        """Modules that share weights: none."""
        return ()

    @property
    def embedding_dim(self) -> int:
        """Width of the embeddings of both towers."""
        return getattr(self.image.head, "projection_dim", None) or self.image.encoder.d_model


@dataclass(frozen=True, kw_only=True)
class EncoderMaskClassifierSpec(Spec):
    """Mask classification by an image encoder alone: object queries join the patches in its last layers.

    query_layers: number of last layers that the queries go through.
    num_upscale: how often the resolution of the patches is doubled for the masks.
    """

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
class MaskClassifierSpec(Spec):
    """Mask classification: a backbone, a pixel decoder, and a decoder of object queries.

    input: with deformable attention, the decoder reads three maps in turn, and its cross-attention is masked;
    with a feature pyramid, it reads the coarsest map of the backbone.
    project_memory: project the maps that the decoder reads even if they have its width.
    """

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


ModelSpec = (
    EncoderDecoderSpec
    | EncoderOnlySpec
    | DecoderOnlySpec
    | TwoTowerSpec
    | PromptedSegmenterSpec
    | EncoderMaskClassifierSpec
    | MaskClassifierSpec
)
DecoderSpec = DecoderOnlySpec | MaskClassifierSpec  # without a Transformer encoder

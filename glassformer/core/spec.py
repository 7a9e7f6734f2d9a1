"""What a model is, as data: small frozen dataclasses, one per part, nested as the parts are.

Every choice between kinds is a choice of class (or of a literal), never a boolean beside the field it
would change, so a combination that makes no sense cannot be written down. `build.py` turns a spec
into modules; `to_dict` and `from_dict` (in `core/schema.py`) turn it into JSON and back.

    StackSpec(d_model=512, num_layers=6, block=BlockSpec(attention=AttentionSpec(num_heads=8),
          feed_forward=FeedForwardSpec(d_ff=2048), norm=LayerNormSpec(), wiring="post"))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from glassformer.core.schema import Spec
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, UnsupportedError

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"]
Wiring = Literal["pre", "post", "parallel", "parallel_split"]
Projection = Literal["q", "k", "v", "out"]

# ---- norms ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LayerNormSpec(Spec):
    """Subtract the mean, divide by the spread over the features; then a learned scale and shift."""

    eps: float = 1e-5
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class RMSNormSpec(Spec):
    """Divide by the root mean square over the features; then a learned scale."""

    eps: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class BatchNormSpec(Spec):
    """Normalise each feature over batch and time (running statistics in evaluation)."""

    eps: float = 1e-5


NormSpec = LayerNormSpec | RMSNormSpec | BatchNormSpec

# ---- positions ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SinusoidalSpec(Spec):
    """Fixed sines and cosines added to the input; `halves` puts all sines left, all cosines right."""

    max_len: int
    layout: Literal["interleaved", "halves"] = "interleaved"
    base: float = 10000.0


@dataclass(frozen=True, kw_only=True)
class LearnedSpec(Spec):
    """A trained table added to the input; the first `offset` rows are never looked up."""

    max_len: int
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class LinearScalingSpec(Spec):
    """Rotary angles divided by `factor` (position interpolation)."""

    factor: float


@dataclass(frozen=True, kw_only=True)
class BandScalingSpec(Spec):
    """Rotary angles slowed by `factor` for long waves only, blended between two bands.

    Waves shorter than `original_max_len / high_freq_factor` stay, waves longer than
    `original_max_len / low_freq_factor` are slowed, those between are mixed.
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
    """Rotate pairs of query and key features by an angle that grows with the position.

    `width` is how many features of each head turn (all when None). Half-split pairing: feature i
    turns with feature i + width/2.
    """

    base: float = 10000.0
    width: int | None = None
    scaling: LinearScalingSpec | BandScalingSpec | None = None


@dataclass(frozen=True, kw_only=True)
class RelativeSpec(Spec):
    """A learned bias on the scores, one number per head and bucket of distance."""

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 4 <= self.buckets < 2 * self.max_distance:
            wanted = f"at least 4 and less than twice max_distance {self.max_distance}"
            raise InvalidValueError("buckets", self.buckets, wanted)


@dataclass(frozen=True, kw_only=True)
class AlibiSpec(Spec):
    """A fixed bias on the scores that falls linearly with distance, steeper in some heads.

    rounding: "bfloat16" rounds each slope, and each slope times position, as models trained in that
    precision were; the fall is then a staircase, and numbers agree only if its steps do.
    """

    scale: float = 1.0
    rounding: Literal["none", "bfloat16"] = "none"


InputPositionSpec = SinusoidalSpec | LearnedSpec
AttentionPositionSpec = RotarySpec | RelativeSpec | AlibiSpec

# ---- attention, feed-forward, block, stack ----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(Spec):
    """One multi-head attention. `None` means: derived from d_model and num_heads.

    num_kv_heads: fewer key/value heads than query heads (grouped; 1 is multi-query).
    value_dim: width of a value head where it differs from a query/key head.
    scale: what the scores are multiplied by; 1/sqrt(head_dim) when None.
    window: a query sees only this many keys around it, itself counted.
    qk_norm: queries and keys of each head are normalized before positions act on them.
    """

    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    scale: float | None = None
    biases: tuple[Projection, ...] = ("q", "k", "v", "out")
    window: int | None = None
    dropout: float = 0.0
    qk_norm: RMSNormSpec | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise InvalidValueError(
                "num_kv_heads", self.num_kv_heads, f"a divisor of num_heads {self.num_heads}"
            )


@dataclass(frozen=True, kw_only=True)
class FeedForwardSpec(Spec):
    """up, activation, down."""

    d_ff: int
    activation: Activation = "relu"
    biases: tuple[Literal["up", "down"], ...] = ("up", "down")
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GatedFeedForwardSpec(Spec):
    """activation(gate) times up, then down."""

    d_ff: int
    activation: Activation = "silu"
    biases: tuple[Literal["up", "gate", "down"], ...] = ()
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BlockSpec(Spec):
    """One layer: self-attention, cross-attention if any, feed-forward, and where the norms sit.

    wiring: "post" norm(x + f(x)); "pre" x + f(norm(x)); "parallel" x + attn(n) + ffn(n) with one
    shared norm n; "parallel_split" the same with a norm for each.
    """

    attention: AttentionSpec
    feed_forward: FeedForwardSpec | GatedFeedForwardSpec
    norm: NormSpec = field(default_factory=LayerNormSpec)
    wiring: Wiring = "post"
    cross_attention: AttentionSpec | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cross_attention is not None and self.wiring.startswith("parallel"):
            raise UnsupportedError("a parallel block", "cross-attention", hint="use wiring='pre'")


@dataclass(frozen=True, kw_only=True)
class StackSpec(Spec):
    """`num_layers` blocks, positions that act inside attention, and a final norm if any.

    pattern: if given, layer n is pattern[n % len(pattern)] instead of `block`, e.g. with and without a
    window. local_position: positions of layers with a window, if they differ from `position`.
    """

    d_model: int
    num_layers: int
    block: BlockSpec
    causal: bool = False
    position: AttentionPositionSpec | None = None
    final_norm: NormSpec | None = None
    pattern: tuple[BlockSpec, ...] = ()
    local_position: AttentionPositionSpec | None = None

    def block_at(self, n: int) -> BlockSpec:
        """The block of layer n."""
        return self.pattern[n % len(self.pattern)] if self.pattern else self.block

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """The different blocks."""
        return self.pattern or (self.block,)

    def __post_init__(self) -> None:
        super().__post_init__()
        attentions = [each for b in self.blocks for each in (b.attention, b.cross_attention)]
        for attention in attentions:
            if attention and attention.head_dim is None and self.d_model % attention.num_heads:
                wanted = f"a multiple of num_heads {attention.num_heads}"
                raise InvalidValueError("d_model", self.d_model, wanted, hint="or set head_dim")
        turned = self.position.width if isinstance(self.position, RotarySpec) else None
        head_dim = self.block.attention.head_dim or self.d_model // self.block.attention.num_heads
        if turned is not None and turned > head_dim:
            raise InvalidValueError("Rotary.width", turned, f"at most {head_dim}, the width of a head")


# ---- inputs ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TokensSpec(Spec):
    """Token ids to vectors, times `scale`, plus position and token type, normed if `norm`."""

    vocab_size: int
    scale: float = 1.0
    position: InputPositionSpec | None = None
    types: int | None = None
    norm: NormSpec | None = None
    dropout: float = 0.0
    pad_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ImagePatchesSpec(Spec):
    """An image (B, C, height, width) cut into squares, each a vector, after `prefix` learned tokens."""

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    channels: int = 3
    prefix: int = 1
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(i < p or p < 1 for i, p in zip(self.image_size, self.patch_size, strict=True)):
            wanted = f"at least 1 and at most the image_size {self.image_size}"
            raise InvalidValueError("patch_size", self.patch_size, wanted)

    @property
    def num_patches(self) -> int:
        (height, width), (ph, pw) = self.image_size, self.patch_size
        return (height // ph) * (width // pw)


@dataclass(frozen=True, kw_only=True)
class SeriesPatchesSpec(Spec):
    """Series (B, time, channels) scaled, cut into overlapping pieces, each a vector; channels apart."""

    context_length: int
    patch_length: int
    stride: int
    channels: int
    position: Literal["learned", "sincos"] = "sincos"
    scaling: Literal["std", "mean", "none"] = "std"
    embedding: Literal["shared", "per_channel"] = "shared"
    prefix: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_length < self.patch_length:
            wanted = f"at least patch_length {self.patch_length}"
            raise InvalidValueError("context_length", self.context_length, wanted)

    @property
    def num_patches(self) -> int:
        return (self.context_length - self.patch_length) // self.stride + 1


@dataclass(frozen=True, kw_only=True)
class VectorsSpec(Spec):
    """Vectors (B, T, d_model) handed in as they are."""


InputSpec = TokensSpec | ImagePatchesSpec | SeriesPatchesSpec | VectorsSpec

# ---- heads ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FeaturesSpec(Spec):
    """The last layer's vectors; with `pooler`, also activation(dense(first vector)), `pooler_dim` wide."""

    pooler: bool = False
    pooler_dim: int | None = None
    pooler_activation: Activation = "tanh"


@dataclass(frozen=True, kw_only=True)
class LanguageModelSpec(Spec):
    """Scores over the vocabulary at every position; vectors times `scale` first."""

    vocab_size: int
    bias: bool = False
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelSpec(Spec):
    """dense, activation, norm, then scores over the vocabulary at every position."""

    vocab_size: int
    activation: Activation = "gelu"
    norm: NormSpec = field(default_factory=LayerNormSpec)


@dataclass(frozen=True, kw_only=True)
class ClassifySpec(Spec):
    """One row of scores a sequence, read off one vector (`pool`), after `hidden` dense if any.

    pool: "first" vector, "last" real one, the one at the last `end_id` ("end"), or their "mean".
    dropped: before which of its layers dropout falls, the "hidden" one and the one that scores ("out").
    """

    num_labels: int
    pool: Literal["first", "last", "end", "mean"] = "first"
    hidden: Activation | None = None
    bias: bool = True
    dropout: float = 0.0
    dropped: tuple[Literal["hidden", "out"], ...] = ("hidden", "out")
    end_id: int = -1


@dataclass(frozen=True, kw_only=True)
class DistilledClassifySpec(Spec):
    """Two rows of scores, off the first and the second prefix vector, and their mean."""

    num_labels: int


@dataclass(frozen=True, kw_only=True)
class TokenClassifySpec(Spec):
    """A row of scores for every token."""

    num_labels: int
    bias: bool = True
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AnswerSpec(Spec):
    """Where an answer starts and where it ends: two scores for every token."""

    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EmbedSpec(Spec):
    """One vector a text: pooled over its real tokens, of length 1 when `normalize`."""

    pool: Literal["mean", "first", "max", "mean_sqrt_len", "last"] = "mean"
    normalize: bool = False
    pooler: bool = False


@dataclass(frozen=True, kw_only=True)
class ForecastSpec(Spec):
    """The next `prediction_length` values of each channel, or a distribution's parameters for them."""

    prediction_length: int
    pool: Literal["flatten", "mean", "max", "first"] = "flatten"
    projection: Literal["shared", "per_channel"] = "shared"
    distribution: Literal["none", "student_t", "normal", "negative_binomial"] = "none"
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SeriesClassifySpec(Spec):
    """One row of scores a series, from its channels' pooled vectors laid side by side."""

    num_labels: int
    pool: Literal["mean", "max", "first"] = "mean"
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SeriesRegressSpec(Spec):
    """`num_targets` numbers a series (or a distribution's parameters), optionally kept in a range."""

    num_targets: int
    pool: Literal["mean", "max", "first"] = "mean"
    distribution: Literal["none", "student_t", "normal", "negative_binomial"] = "none"
    output_range: tuple[float, float] | None = None
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PatchReconstructSpec(Spec):
    """Each patch's own values again, for learning from masked patches."""

    dropout: float = 0.0


HeadSpec = (
    FeaturesSpec
    | LanguageModelSpec
    | MaskedLanguageModelSpec
    | ClassifySpec
    | DistilledClassifySpec
    | TokenClassifySpec
    | AnswerSpec
    | EmbedSpec
    | ForecastSpec
    | SeriesClassifySpec
    | SeriesRegressSpec
    | PatchReconstructSpec
)

# ---- initialization and whole models --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class XavierSpec(Spec):
    """Matrices uniform by fan-in and fan-out, biases 0, token embeddings normal with 1/sqrt(d)."""


@dataclass(frozen=True, kw_only=True)
class NormalSpec(Spec):
    """Everything normal with `std`; with `residual`, layers writing to the stream shrunk by depth."""

    std: float = 0.02
    residual: Literal["same", "shrunk"] = "same"


InitSpec = XavierSpec | NormalSpec


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderSpec(Spec):
    """Reads one sequence, writes another. `tied` names what shares the target's token matrix."""

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
    """Reads a whole sequence at once, every position seeing every other."""

    input: InputSpec
    encoder: StackSpec
    head: HeadSpec
    tied: tuple[Literal["head"], ...] = ()
    init: InitSpec = field(default_factory=NormalSpec)


@dataclass(frozen=True, kw_only=True)
class DecoderOnlySpec(Spec):
    """Reads from left to right, every position seeing only those before it.

    max_len: the longest sequence it was made for, where no position table says so; not enforced.
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


ModelSpec = EncoderDecoderSpec | EncoderOnlySpec | DecoderOnlySpec

"""Specs of norms, positions, attention, feed-forward layers, blocks and stacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from glassformer.errors import ConflictError, InvalidValueError, UnsupportedError
from glassformer.schema import Spec

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"]
Wiring = Literal["pre", "post", "sandwich", "res_post", "parallel", "parallel_split"]
Projection = Literal["q", "k", "v", "out"]
ModulationKind = Literal["layer", "shared"]


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
class AdaptiveNormSpec(Spec):
    """Adaptive layer norm (adaLN-Zero): a condition shifts and scales the norms and gates the sublayers.

    The norms have no weights, and cross-attention has neither norm nor gate.
    eps, ffn_eps: of the norm before attention, and of that before the feed-forward layer, if they differ.
    modulation: whether each layer projects the condition to its six vectors with a dense layer, or all layers
    share six vectors, to which each adds a trained table.
    """

    eps: float = 1e-6
    ffn_eps: float | None = None
    modulation: ModulationKind = "layer"


@dataclass(frozen=True, kw_only=True)
class CosineSpec(Spec):
    """Cosine attention: scores of unit queries and keys, times a trained factor for each head.

    max_scale: maximum of the factor.
    """

    max_scale: float = 100.0


NormSpec = LayerNormSpec | RMSNormSpec | BatchNormSpec


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
class AxisSpec(Spec):
    """Attention along one axis of a video: between the patches of a frame, or those of a place over time."""

    axis: Literal["space", "time"]


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
    spatial_window: windows of a 2-D grid, or the axis of a video, within which tokens attend; None: all
    tokens.
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
    spatial_window: WindowSpec | AxisSpec | None = None
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

    gated: ClassVar[bool] = False

    d_ff: int
    activation: Activation = "relu"
    biases: tuple[Literal["up", "down"], ...] = ("up", "down")
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GatedFeedForwardSpec(Spec):
    """down(activation(gate(x)) * up(x))."""

    gated: ClassVar[bool] = True

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
    norm: NormSpec | AdaptiveNormSpec = field(default_factory=LayerNormSpec)
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
        plain = self.wiring == "pre" and self.layer_scale is None
        if isinstance(self.norm, AdaptiveNormSpec) and not plain:
            raise UnsupportedError("an adaptive norm", "other wirings than 'pre', and layer scale")


def check_divisible(d_model: int, num_heads: int) -> None:
    """Raise unless all heads have the same width."""
    if d_model % num_heads:
        near = d_model // num_heads * num_heads
        hint = f"use {near} or {near + num_heads}" if near else "the order is d_model, num_heads"
        raise InvalidValueError("d_model", d_model, f"a multiple of num_heads, {num_heads}", hint)


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

    def parts(self) -> dict[str, StackSpec]:
        """Return the stacks by the rest of their module path: itself."""
        return {"": self}

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the input and of every layer."""
        return (self.d_model,) * (self.num_layers + 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for attention in (a for b in self.blocks for a in (b.attention, b.cross_attention)):
            if attention and attention.head_dim is None:
                check_divisible(self.d_model, attention.num_heads)
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

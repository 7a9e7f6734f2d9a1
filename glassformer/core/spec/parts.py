"""The parts of a stack: norms, positions, attention, feed-forward, block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from glassformer.core.spec.checks import Part
from glassformer.errors import ConflictError, InvalidValueError, UnsupportedError

MOST_LAYERS = 10_000

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"]
Wiring = Literal["pre", "post", "parallel", "parallel_split"]
Projection = Literal["q", "k", "v", "out"]

# ---- norms ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Part):
    """Subtract the mean, divide by the spread over the features; then a learned scale and shift."""

    eps: float = 1e-5
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class RMSNorm(Part):
    """Divide by the root mean square over the features; then a learned scale."""

    eps: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Part):
    """Normalise each feature over batch and time (running statistics in evaluation)."""

    eps: float = 1e-5


Norm = LayerNorm | RMSNorm | BatchNorm

# ---- positions ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Part):
    """Fixed sines and cosines added to the input; `halves` puts all sines left, all cosines right."""

    max_len: int
    layout: Literal["interleaved", "halves"] = "interleaved"
    base: float = 10000.0


@dataclass(frozen=True, kw_only=True)
class Learned(Part):
    """A trained table added to the input; the first `offset` rows are never looked up."""

    max_len: int
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class LinearScaling(Part):
    """Rotary angles divided by `factor` (position interpolation)."""

    factor: float


@dataclass(frozen=True, kw_only=True)
class BandScaling(Part):
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
class Rotary(Part):
    """Rotate pairs of query and key features by an angle that grows with the position.

    `width` is how many features of each head turn (all when None). Half-split pairing: feature i
    turns with feature i + width/2.
    """

    base: float = 10000.0
    width: int | None = None
    scaling: LinearScaling | BandScaling | None = None


@dataclass(frozen=True, kw_only=True)
class Relative(Part):
    """A learned bias on the scores, one number per head and bucket of distance."""

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 4 <= self.buckets < 2 * self.max_distance:
            wanted = f"at least 4 and less than twice max_distance {self.max_distance}"
            raise InvalidValueError("buckets", self.buckets, wanted)


@dataclass(frozen=True, kw_only=True)
class Alibi(Part):
    """A fixed bias on the scores that falls linearly with distance, steeper in some heads.

    rounding: "bfloat16" rounds each slope, and each slope times position, as models trained in that
    precision were; the fall is then a staircase, and numbers agree only if its steps do.
    """

    scale: float = 1.0
    rounding: Literal["none", "bfloat16"] = "none"


AddedPosition = Sinusoidal | Learned
ScorePosition = Rotary | Relative | Alibi

# ---- attention, feed-forward, block, stack ----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Attention(Part):
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
    qk_norm: RMSNorm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise InvalidValueError(
                "num_kv_heads", self.num_kv_heads, f"a divisor of num_heads {self.num_heads}"
            )


@dataclass(frozen=True, kw_only=True)
class FeedForward(Part):
    """up, activation, down."""

    d_ff: int
    activation: Activation = "relu"
    biases: tuple[Literal["up", "down"], ...] = ("up", "down")
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GatedFeedForward(Part):
    """activation(gate) times up, then down."""

    d_ff: int
    activation: Activation = "silu"
    biases: tuple[Literal["up", "gate", "down"], ...] = ()
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Block(Part):
    """One layer: self-attention, cross-attention if any, feed-forward, and where the norms sit.

    wiring: "post" norm(x + f(x)); "pre" x + f(norm(x)); "parallel" x + attn(n) + ffn(n) with one
    shared norm n; "parallel_split" the same with a norm for each.
    """

    attention: Attention
    feed_forward: FeedForward | GatedFeedForward
    norm: Norm = field(default_factory=LayerNorm)
    wiring: Wiring = "post"
    cross_attention: Attention | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cross_attention is not None and self.wiring.startswith("parallel"):
            raise UnsupportedError("a parallel block", "cross-attention", hint="use wiring='pre'")


@dataclass(frozen=True, kw_only=True)
class Stack(Part):
    """`num_layers` blocks, positions that act inside attention, and a final norm if any.

    pattern: if given, layer n is pattern[n % len(pattern)] instead of `block`, e.g. with and without a
    window. local_position: positions of layers with a window, if they differ from `position`.
    """

    d_model: int
    num_layers: int
    block: Block
    causal: bool = False
    position: ScorePosition | None = None
    final_norm: Norm | None = None
    pattern: tuple[Block, ...] = ()
    local_position: ScorePosition | None = None

    def block_at(self, n: int) -> Block:
        """The block of layer n."""
        return self.pattern[n % len(self.pattern)] if self.pattern else self.block

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The different blocks."""
        return self.pattern or (self.block,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.num_layers, int) or not 0 <= self.num_layers <= MOST_LAYERS:
            raise InvalidValueError("num_layers", self.num_layers, f"an integer from 0 to {MOST_LAYERS}")
        attentions = [each for b in self.blocks for each in (b.attention, b.cross_attention)]
        for attention in attentions:
            if attention and attention.head_dim is None and self.d_model % attention.num_heads:
                wanted = f"a multiple of num_heads {attention.num_heads}"
                raise InvalidValueError("d_model", self.d_model, wanted, hint="or set head_dim")
        turned = self.position.width if isinstance(self.position, Rotary) else None
        head_dim = self.block.attention.head_dim or self.d_model // self.block.attention.num_heads
        if turned is not None and turned > head_dim:
            raise InvalidValueError("Rotary.width", turned, f"at most {head_dim}, the width of a head")

"""Position encodings.

`SinusoidalPositions` and `LearnedPositions` are added to the input. `RotaryPositions` rotates queries and
keys. `RelativeBias` and `AlibiBias` are added to the attention scores; so are the products of
`DisentangledPositions` with queries and keys. The last four return `PositionTerms`, which are computed once
per stack and used by all its layers.

B batch, T queries, S keys, D d_model, H heads, K head width, R rotated width, P relative positions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from glassformer.core.backend import normal_table
from glassformer.core.masks import Mask
from glassformer.core.spec import BandScalingSpec, LinearScalingSpec
from glassformer.errors import InputTooLongError, InvalidValueError

Grid = tuple[int, ...]  # rows and columns of tokens; of a video, frames before them
MAX_TABLE_SIZE = 2**28  # elements, one gigabyte: a computed table is not bounded by the size of a file


class RelativeTerms(NamedTuple):
    """Embeddings of relative positions, for scores between them and queries and keys."""

    embedding: Tensor  # (P, D)
    rows: Tensor  # (T, S), the row of each pair of query and key
    kinds: tuple[str, ...]  # "c2p", "p2c"
    dropout: float


class PositionTerms(NamedTuple):
    """Effect of positions inside attention: a rotation of q and k by (cos, sin), or a bias on the scores.

    relative: the bias depends on queries and keys too, so each layer computes its own.
    grid: rows and columns, if the tokens form a 2-D grid; of a video, frames before them.
    """

    rotary: tuple[Tensor, Tensor] | None = None  # cos, sin: (B|1, 1, T, R)
    bias: Tensor | None = None  # (B|1, H, T, S)
    relative: RelativeTerms | None = None
    grid: Grid | None = None

    @property
    def biased(self) -> bool:
        """Whether a bias is added to the scores."""
        return self.bias is not None or self.relative is not None

    def with_bias(self, bias: Tensor | None) -> PositionTerms:
        """Return the terms with another bias on the scores added, e.g. that of a float mask."""
        if bias is None:
            return self
        return self._replace(bias=bias if self.bias is None else self.bias + bias)

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate q (B, H, T, K) and k (B, G, T, K) if positions are rotary; else return them unchanged."""
        return (q, k) if self.rotary is None else (rotate(q, self.rotary), rotate(k, self.rotary))


NO_TERMS = PositionTerms()


def count_positions(padding: Tensor | None, segments: Tensor | None = None) -> Tensor:
    """Compute position ids (B, S) that count only the real tokens of each document.

    >>> count_positions(torch.tensor([[False, True, True], [True, True, False]])).tolist()
    [[0, 0, 1], [0, 1, 1]]
    >>> count_positions(None, torch.tensor([[7, 7, 7, 8, 8]])).tolist()
    [[0, 1, 2, 0, 1]]
    """
    if padding is None:
        assert segments is not None
        padding = torch.ones_like(segments, dtype=torch.bool)
    real = padding.long()
    counted = real.cumsum(-1)  # (B, S), the token itself included
    if segments is not None:
        is_first = nn.functional.pad(segments.diff().bool(), (1, 0))  # first tokens of later documents
        counted = counted - torch.where(is_first, counted - real, 0).cummax(-1).values
    return (counted - 1).clamp(min=0)


# ---- added to the input ---------------------------------------------------------------------------


def sinusoids(
    positions: int | Tensor,
    d_model: int,
    layout: Literal["interleaved", "halves"] = "interleaved",
    base: float = 10000.0,
) -> Tensor:
    """Compute sin and cos of pos / base^(2i/D), interleaved or in halves: (T, D).

    positions: a number of positions starting at 0, or a tensor of positions (T,), which may be fractional.

    >>> sinusoids(2, 8)[1].round(decimals=5).tolist()[:4]
    [0.8414700031280518, 0.5403000116348267, 0.09983000159263611, 0.9950000047683716]
    """
    positions = torch.arange(positions) if isinstance(positions, int) else positions
    wave = torch.arange((d_model + 1) // 2, dtype=torch.float64)
    angle = positions.double()[:, None] / base ** (2 * wave / d_model)  # (T, ceil(D/2))
    sines, cosines = angle.sin(), angle.cos()[:, : d_model // 2]
    table = torch.empty(len(positions), d_model, dtype=torch.float64)
    if layout == "interleaved":
        table[:, 0::2], table[:, 1::2] = sines, cosines
    else:
        table[:, : sines.shape[1]], table[:, sines.shape[1] :] = sines, cosines
    return table.float()


def _check_length(positions: Tensor, last: int | None, max_len: int) -> None:
    """Raise if `positions` is not integer position ids, or if a position is beyond the table.

    Packed and padded rows may be longer than the table, so the position ids themselves are checked; on a GPU,
    where this synchronizes, only if the row is longer than the table.
    """
    if positions.is_floating_point():
        hint = "add the rows to the vectors: x + module(torch.arange(x.shape[1]))"
        raise InvalidValueError("positions", positions.dtype, "integers, the position ids", hint=hint)
    last = last or positions.shape[-1]
    readable = positions.numel() and not positions.is_meta and not torch.compiler.is_compiling()
    if readable and (positions.is_cpu or last > max_len):
        last = int(positions.max()) + 1
    if last > max_len:
        raise InputTooLongError(
            last, max_len, "positions", hint="shorten it, or build the model with a larger max_len"
        )


class SinusoidalPositions(nn.Module):
    """The sinusoidal position table, a buffer: saved and moved with the model, not trained.

    The forward takes position ids and returns their rows: `x + positions(torch.arange(T))`.

    max_len: number of positions
    layout: "interleaved" alternates sine and cosine, "halves" puts all sines first
    base: base of the wavelengths

    >>> SinusoidalPositions(16, max_len=50)(torch.arange(5)).shape
    torch.Size([5, 16])
    """

    computes_buffers = True

    table: Tensor

    def __init__(
        self,
        d_model: int,
        *,
        max_len: int,
        layout: Literal["interleaved", "halves"] = "interleaved",
        base: float = 10000.0,
    ) -> None:
        super().__init__()
        if max_len * d_model > MAX_TABLE_SIZE:
            raise InvalidValueError("max_len", max_len, f"a table of at most {MAX_TABLE_SIZE:,} numbers")
        self.d_model, self.max_len, self.layout, self.base = d_model, max_len, layout, base
        self.register_buffer("table", torch.empty(max_len, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute the table."""
        if not self.table.is_meta:
            table = sinusoids(self.max_len, self.d_model, self.layout, self.base)
            self.table.copy_(table)

    def forward(self, positions: Tensor, last: int | None = None) -> Tensor:
        """Return the rows (..., T, D) of positions (..., T). last: upper bound of the positions, if known."""
        _check_length(positions, last, self.max_len)
        return self.table[positions]


class LearnedPositions(nn.Module):
    """A trained position table; row `offset + position` is added to the token embedding.

    max_len: number of positions
    offset: number of unused rows before the row of position 0

    >>> LearnedPositions(16, max_len=50)(torch.arange(5)).shape
    torch.Size([5, 16])
    """

    def __init__(self, d_model: int, *, max_len: int, offset: int = 0) -> None:
        super().__init__()
        self.max_len, self.offset = max_len, offset
        self.weight = normal_table(max_len + offset, d_model)

    def forward(self, positions: Tensor, last: int | None = None) -> Tensor:
        """Return the rows (..., T, D) of positions (..., T). last: upper bound of the positions, if known."""
        _check_length(positions, last, self.max_len)
        return nn.functional.embedding(positions + self.offset, self.weight)


# ---- rotating queries and keys ---------------------------------------------------------------------


def _scale_frequencies(freq: Tensor, scaling: LinearScalingSpec | BandScalingSpec | None) -> Tensor:
    match scaling:
        case None:
            return freq
        case LinearScalingSpec(factor=factor):
            return freq / factor
        case BandScalingSpec():
            wavelength = 2 * math.pi / freq
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            # 0 for wavelengths above the low band, 1 for those below the high band
            mix = ((scaling.original_max_len / wavelength - low) / (high - low)).clamp(0, 1)
            return (1 - mix) * freq / scaling.factor + mix * freq


class _ComputedBuffers(nn.Module, ABC):
    """Base of modules with computed float32 buffers, which move between devices but are never cast.

    A frequency or slope is multiplied by the position, so a rounding error would grow with the position.
    """

    computes_buffers = True

    @abstractmethod
    def reset_parameters(self) -> None:
        """Compute the buffers, unless they are on the meta device."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self.named_buffers(recurse=False):
            setattr(self, name, buffer.float())
        self.reset_parameters()
        return self


class AttentionPosition(nn.Module):
    """Base of positions that act inside attention, for all layers of a stack."""

    def terms(self, positions: Tensor, columns: Tensor, keys: int, mask: Mask) -> PositionTerms:
        """Return the terms of tokens with these position ids (B|1, T), attending to `keys` keys.

        columns: (1, T), the indices of the tokens among the keys. A bias depends only on differences, so they
        work for padded and packed rows, too.
        """
        terms: PositionTerms = self(columns, torch.arange(keys, device=columns.device)[None])
        return terms


class RotaryPositions(_ComputedBuffers, AttentionPosition):
    """Rotary position embedding (RoPE): cos and sin of position * frequency, for `rotate`.

    width: number of features of each head to rotate, even
    base: base of the wavelengths (rope_theta)
    scaling: scaling of the frequencies, for longer contexts

    >>> cos, sin = RotaryPositions(8)(torch.arange(5)[None]).rotary
    >>> cos.shape
    torch.Size([1, 1, 5, 8])
    """

    freq: Tensor

    def __init__(
        self,
        width: int,
        *,
        base: float = 10000.0,
        scaling: LinearScalingSpec | BandScalingSpec | None = None,
    ) -> None:
        super().__init__()
        if width % 2:
            raise InvalidValueError("rotary width", width, "an even number")
        self.width, self.base, self.scaling = width, base, scaling
        self.register_buffer("freq", torch.empty(width // 2), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if not self.freq.is_meta:
            exponent = torch.arange(0, self.width, 2, dtype=torch.float32) / self.width
            self.freq.copy_(_scale_frequencies(1.0 / self.base**exponent, self.scaling))

    def forward(self, positions: Tensor, keys: Tensor | None = None) -> PositionTerms:
        """Return cos and sin (B|1, 1, T, R) of positions (B|1, T).

        keys: unused, for the interface of the biases; keys are rotated before they are cached.
        """
        angle = positions[..., None].float() * self.freq  # (B|1, T, R/2)
        angle = torch.cat((angle, angle), -1)[:, None]  # (B|1, 1, T, R)
        return PositionTerms(rotary=(angle.cos(), angle.sin()))

    def terms(self, positions: Tensor, columns: Tensor, keys: int, mask: Mask) -> PositionTerms:
        return self(positions)  # type: ignore[no-any-return]


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the first R features of each head of x (B, H, T, K), pairing feature i with i + R/2."""
    cos, sin = (table.to(x.dtype) for table in rotary)
    width = cos.shape[-1]
    first, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
    left, right = first.chunk(2, -1)
    rotated = first * cos + torch.cat((-right, left), -1) * sin
    return rotated if rest is None else torch.cat((rotated, rest), -1)


# ---- added to the scores ----------------------------------------------------------------------------


def relative_position_bucket(
    distance: Tensor, *, buckets: int, max_distance: int, bidirectional: bool
) -> Tensor:
    """Map key position minus query position to a bucket: exact for near keys, logarithmic for far ones."""
    start = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        start = (distance > 0).long() * buckets  # keys after the query use the upper half
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    ratio = (distance.float().clamp(min=1) / exact).log() / math.log(max_distance / exact)
    far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return start + torch.where(distance < exact, distance, far)


class RelativeBias(AttentionPosition):
    """A trained bias for each head and distance bucket, shared by all layers of the stack.

    buckets: number of distance buckets
    max_distance: keys at this distance or farther share the last bucket
    bidirectional: keys after the query have separate buckets

    >>> RelativeBias(4, bidirectional=True)(torch.arange(3)[None], torch.arange(5)[None]).bias.shape
    torch.Size([1, 4, 3, 5])
    """

    def __init__(
        self, num_heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool
    ) -> None:
        super().__init__()
        self.buckets, self.max_distance, self.bidirectional = buckets, max_distance, bidirectional
        self.weight = normal_table(buckets, num_heads)

    def forward(self, positions: Tensor, keys: Tensor | None = None) -> PositionTerms:
        """Return the bias (B|1, H, T, S) of query positions (B|1, T) and key positions (B|1, S)."""
        keys = positions if keys is None else keys
        return self.bias_at(keys[:, None, :] - positions[:, :, None])

    def bias_at(self, distance: Tensor) -> PositionTerms:
        """Return the bias (B|1, H, T, S) for key position minus query position (B|1, T, S)."""
        rows = relative_position_bucket(
            distance,
            buckets=self.buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        bias = nn.functional.embedding(rows, self.weight)  # (B|1, T, S, H)
        return PositionTerms(bias=bias.permute(0, 3, 1, 2))


def log_bucket(distance: Tensor, *, buckets: int, max_distance: int) -> Tensor:
    """Map signed distances to buckets of the same sign: exact up to buckets/2, then logarithmic.

    >>> log_bucket(torch.tensor([-2, 3, 4, 5, 30]), buckets=8, max_distance=32).tolist()
    [-2, 3, 4, 5, 7]
    """
    exact = buckets // 2
    far = torch.where(distance.abs() < exact, exact - 1, distance.abs())
    ratio = torch.log(far / exact) / torch.log(torch.tensor((max_distance - 1) / exact))
    bucket = torch.ceil(ratio * (exact - 1)) + exact
    return torch.where(far <= exact, distance, bucket.long() * distance.sign())


class DisentangledPositions(AttentionPosition):
    """Trained embeddings of relative positions, which attention compares with queries and keys.

    max_distance: positions farther away share an embedding
    buckets: number of buckets on each side; None: one per distance
    kinds: "c2p" compares queries with positions, "p2c" positions with keys
    norm: norm of the embeddings
    dropout: dropout rate of the embeddings

    >>> DisentangledPositions(16, max_distance=8)(torch.arange(3)[None]).relative.rows.tolist()
    [[8, 7, 6], [9, 8, 7], [10, 9, 8]]
    """

    def __init__(
        self,
        d_model: int,
        *,
        max_distance: int,
        buckets: int | None = None,
        kinds: tuple[str, ...] = ("c2p", "p2c"),
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.max_distance, self.buckets, self.kinds, self.dropout = max_distance, buckets, kinds, dropout
        self.weight = normal_table(2 * (buckets or max_distance), d_model)
        self.norm = norm

    def forward(self, positions: Tensor, keys: Tensor | None = None) -> PositionTerms:
        """Return the embeddings, and the row of each pair of positions (1, T) and keys (1, S)."""
        keys = positions if keys is None else keys
        distance = positions[0, :, None] - keys[0, None, :]  # (T, S), positive for earlier keys
        relative = RelativeTerms(self.embedding(), self.rows(distance), self.kinds, self.dropout)
        return PositionTerms(relative=relative)

    def embedding(self) -> Tensor:
        """Return the normalized embeddings (P, D)."""
        return self.weight if self.norm is None else self.norm(self.weight)

    def rows(self, distance: Tensor) -> Tensor:
        """Return the row of the embedding for query position minus key position."""
        if self.buckets is not None:
            distance = log_bucket(distance, buckets=self.buckets, max_distance=self.max_distance)
        span = len(self.weight) // 2
        return (distance + span).clamp(0, 2 * span - 1)


def alibi_slopes(num_heads: int) -> Tensor:
    """Return the ALiBi slopes: 2^(-8i/n) for the largest power of two n, then odd powers of 2^(-4/n)."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(num_heads - power)]
    return torch.tensor(slopes)


class AlibiBias(_ComputedBuffers, AttentionPosition):
    """A fixed bias on the scores, `-slope * distance`, with one slope per head (ALiBi).

    scale: factor on the bias
    rounding: "bfloat16" rounds as models trained in that precision do

    >>> AlibiBias(4)(torch.arange(3)[None]).bias[0, 0].tolist()
    [[0.0, -0.25, -0.5], [-0.25, 0.0, -0.25], [-0.5, -0.25, 0.0]]
    """

    slopes: Tensor

    def __init__(
        self, num_heads: int, *, scale: float = 1.0, rounding: Literal["none", "bfloat16"] = "none"
    ) -> None:
        super().__init__()
        self.num_heads, self.scale, self.rounding = num_heads, scale, rounding
        self.register_buffer("slopes", torch.empty(num_heads), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if not self.slopes.is_meta:
            self.slopes.copy_(alibi_slopes(self.num_heads))

    def forward(self, positions: Tensor, keys: Tensor | None = None) -> PositionTerms:
        """Return the bias (B|1, H, T, S) of query positions (B|1, T) and key positions (B|1, S)."""
        keys = positions if keys is None else keys
        slopes = self.slopes[None, :, None]  # (1, H, 1)
        if self.rounding == "bfloat16":
            key, query = (_round(_round(slopes) * _round(ids)[:, None]) for ids in (keys, positions))
            return PositionTerms(bias=-(key[:, :, None] - query[..., None]).abs() * self.scale)
        distance = -(keys[:, None, :] - positions[:, :, None]).abs()[:, None]  # (B|1, 1, T, S)
        return PositionTerms(bias=distance.float() * (slopes[..., None] * self.scale))

    def terms(self, positions: Tensor, columns: Tensor, keys: int, mask: Mask) -> PositionTerms:
        if self.rounding == "none" or (mask.padding is None and mask.segments is None):
            return super().terms(positions, columns, keys, mask)
        # a rounded bias depends on absolute positions, so they are counted within each document
        counted = count_positions(mask.padding, mask.segments)
        return self(counted.index_select(1, columns[0]), counted)  # type: ignore[no-any-return]


def _round(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).float()

"""Attention masks: which keys a query may attend to.

A mask is boolean and True means *may attend*; 0 and 1 count as booleans. Causal masks are aligned
bottom-right: the last query is at the position of the last key. A window of w keys counts the query's own
position. B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from glassformer.errors import InvalidValueError, MissingValueError, ShapeError

_SHAPES = "(B, 1|T, S) or (B, 1|H, 1|T, S)"


def _read(value: Tensor, name: str) -> tuple[Tensor, Tensor | None]:
    """Return which keys a tensor allows, and what it adds to the scores of the others: None if nothing.

    A float mask of 0 and 1, such as torch.ones(T, T).tril(), is not added to the scores: 1 = may attend.
    """
    if not isinstance(value, Tensor):
        raise InvalidValueError(name, type(value).__name__, f"a Mask, or a boolean tensor {_SHAPES}")
    if value.dtype == torch.bool:
        return value, None
    if torch.compiler.is_compiling() and not value.is_floating_point():
        return value.bool(), None
    binary = bool(((value == 0) | (value == 1)).all())
    if binary and (bool(value.any()) or not value.is_floating_point()):
        return value.bool(), None
    if not value.is_floating_point():
        raise InvalidValueError(name, str(value.dtype), "booleans, or 0 and 1: true = may attend")
    allowed = value != -math.inf
    bias = value.masked_fill(~allowed, 0.0)
    return allowed, bias if bias.requires_grad or bool(bias.any()) else None


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Conditions under which a query may attend to a key; all conditions that are set must hold.

    causal: no key later than the query.
    window: at most this many keys back (if not causal, also ahead), including the query's own position.
    padding: (B, S), True for keys that are real tokens.
    segments: (B, S), document index of each key in a packed row; a query attends only to keys of its own
    document.
    query_segments: (B, T), document index of each query, if queries come from another sequence; by default
    the segments of the keys at the same positions.
    allowed: (B|1, 1|H, 1|T, S), any further condition, True = may attend.
    offset: the key position of the first query, if not S - T (for a cache that is not full).
    bias: (B|1, 1|H, 1|T, S), added to the scores.
    name, shape: those of the caller's mask, for errors.

    >>> Mask(causal=True).dense(2, 4).int()
    tensor([[[[1, 1, 1, 0],
              [1, 1, 1, 1]]]], dtype=torch.int32)
    """

    causal: bool = False
    window: int | None = None
    padding: Tensor | None = None
    segments: Tensor | None = None
    query_segments: Tensor | None = None
    allowed: Tensor | None = None
    offset: int | Tensor | None = None
    bias: Tensor | None = None
    name: str = "mask"
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.window is not None and not (isinstance(self.window, int) and self.window >= 1):
            raise InvalidValueError("window", self.window, "at least 1, the query's own position counted")

    @classmethod
    def of(cls, value: Mask | Tensor | None, name: str = "mask", *, padding: bool = False) -> Mask:
        """Create a `Mask` from None, a Mask, or a tensor (T, S), (B, 1|T, S) or (B, 1|H, 1|T, S).

        The tensor contains booleans, 0 and 1, or, as in torch, floats that are added to the scores.
        padding: a 2-D tensor is the padding (B, S), not (T, S)
        """
        if value is None:
            return _EVERYTHING
        if isinstance(value, Mask):
            return value
        allowed, bias = _read(value, name)
        two = (slice(None), None, None) if padding else (None, None)
        lead = {2: two, 3: (slice(None), None), 4: ()}.get(value.dim())
        if lead is None:
            raise ShapeError(name, value.shape, f"{'(B, S)' if padding else '(T, S)'}, {_SHAPES}")
        bias = None if bias is None else bias[lead]
        if padding and value.dim() == 2:
            return cls(padding=allowed, bias=bias, name=name)
        return cls(allowed=allowed[lead], bias=bias, name=name, shape=tuple(value.shape))

    @property
    def by_query(self) -> bool:
        """Whether an explicit mask says for each query which keys it may attend to."""
        return self.allowed is not None and self.allowed.shape[2] != 1

    def with_causal(self) -> Mask:
        """Return the mask of a decoder: causal, unless an explicit mask decides for each query."""
        if self is _EVERYTHING:
            return _CAUSAL
        return self if self.causal or self.by_query else replace(self, causal=True)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise if a tensor of the mask cannot be broadcast to (B, H, T, S)."""
        if self.query_segments is None and self.segments is not None and queries > keys:
            raise MissingValueError("query_segments", f"for {queries} queries and segments of {keys} keys")
        if self.query_segments is not None and self.segments is None:
            raise MissingValueError("segments", "for query_segments: those of the keys, (B, S)")
        for key, letter, length in (
            ("padding", "S", keys),
            ("segments", "S", keys),
            ("query_segments", "T", queries),
        ):
            part: Tensor | None = getattr(self, key)
            if part is not None and part.shape != (batch, length):
                expected = f"(B, {letter}) = ({batch}, {length})"
                raise ShapeError(self.name if key == "padding" else key, part.shape, expected)
        for part in (self.padding, self.allowed):
            if part is not None and part.dtype != torch.bool:
                expected = "torch.bool, True = may attend"
                raise InvalidValueError(f"{self.name}.dtype", str(part.dtype), expected)
        if self.allowed is not None:
            supported = ((1, batch), (1, heads), (1, queries), (keys,))
            size = self.allowed.shape
            if len(size) != 4 or not all(n in known for n, known in zip(size, supported, strict=True)):
                given = self.shape or tuple(size)
                sizes = f"for B = {batch}, H = {heads}, T = {queries}, S = {keys}"
                hint = ""
                if given == (batch, keys):
                    hint = "write padding as mask[:, None]"
                elif self.name in ("tgt_mask", "memory_mask"):
                    hint = "the order of the masks is tgt_mask, memory_mask"
                two = "(T, S), " if len(given) == 2 else ""
                raise ShapeError(self.name, given, f"{two}{_SHAPES} {sizes}", hint)

    def with_window(self, window: int | None) -> Mask:
        """Return the mask with this window, or with its own if that is narrower."""
        if window is None or (self.window is not None and self.window <= window):
            return self
        return replace(self, window=window)

    def _query_segments(self, queries: int, segments: Tensor) -> Tensor:
        """Return the document of each query (B, T); queries are the last keys, or those from `offset` on."""
        if self.query_segments is not None:
            return self.query_segments
        if self.offset is None:
            return segments[:, -queries:]
        return segments.index_select(1, torch.arange(queries, device=segments.device) + self.offset)

    def dense(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor | None:
        """Combine all conditions into one bool tensor (B|1, 1|H, T|1, S); None if there are none."""
        parts: list[Tensor] = []
        if self.causal or self.window is not None:
            first = keys - queries if self.offset is None else self.offset
            row = torch.arange(queries, device=device)[:, None] + first  # (T, 1)
            distance = row - torch.arange(keys, device=device)[None, :]  # (T, S), positive for earlier keys
            if self.causal:
                parts.append((distance >= 0)[None, None])
            if self.window is not None:
                near = distance < self.window if self.causal else distance.abs() < self.window
                parts.append(near[None, None])
        if self.padding is not None:
            parts.append(self.padding[:, None, None, :])  # (B, 1, 1, S)
        if self.segments is not None:
            query = self._query_segments(queries, self.segments)
            parts.append((query[:, :, None] == self.segments[:, None, :])[:, None])  # (B, 1, T, S)
        if self.allowed is not None:
            parts.append(self.allowed)
        if not parts:
            return None
        mask = parts[0]
        for part in parts[1:]:
            mask = mask & part
        return mask

    @property
    def only_causal(self) -> bool:
        """Whether causality is the only condition."""
        others = (self.window, self.padding, self.segments, self.allowed, self.offset)
        return self.causal and all(other is None for other in others)

    def simplify(self, queries: int, keys: int) -> Mask:
        """Drop the conditions that mask nothing for this number of queries and keys."""
        # queries and keys are less than max(T, S) apart, unless an offset moves the queries
        max_distance = max(queries, keys) if self.offset is None else math.inf
        window = None if self.window is not None and self.window >= max_distance else self.window
        causal = self.causal
        if self.offset is None and queries == 1 and window is None:
            causal = False  # a single query, at the last position, attends to every key
        same = window == self.window and causal == self.causal
        return self if same else replace(self, window=window, causal=causal)


# shared, because creating a mask takes as long as a small tensor operation
_EVERYTHING, _CAUSAL = Mask(), Mask(causal=True)

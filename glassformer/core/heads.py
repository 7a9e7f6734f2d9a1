"""From vectors to answers. A head takes the last layer's vectors and a `Context` of what was read.

B batch, T positions, D d_model, V vocabulary, L labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.backend import ACTIVATIONS, Dropout, linear, normal_table
from glassformer.core.observe import Observer, tap
from glassformer.core.spec import Activation
from glassformer.errors import MissingValueError, ShapeError


class Context(NamedTuple):
    """What a head may need besides the vectors."""

    ids: Tensor | None = None  # (B, T)
    padding: Tensor | None = None  # (B, T), True where real
    loc: Tensor | None = None  # how a series was shifted
    scale: Tensor | None = None  # and scaled


class Pooled(NamedTuple):
    """All vectors (B, T, D) and one for the whole sequence (B, D or the pooler's width)."""

    hidden: Tensor
    pooled: Tensor


class Twice(NamedTuple):
    """The mean of two rows of scores (B, L), and each."""

    logits: Tensor
    first: Tensor
    second: Tensor


class Span(NamedTuple):
    """Scores (B, T) for where an answer starts and ends."""

    start: Tensor
    end: Tensor


class FeaturesHead(nn.Module):
    """The vectors themselves; with a pooler also activation(dense(first vector)).

    >>> hidden, pooled = FeaturesHead(16, pooler=True)(torch.randn(2, 5, 16), Context())
    >>> hidden.shape, pooled.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 16]))
    """

    def __init__(
        self,
        d_model: int,
        *,
        pooler: bool = False,
        pooler_dim: int | None = None,
        pooler_activation: Activation = "tanh",
    ) -> None:
        super().__init__()
        self.pooler = nn.Linear(d_model, pooler_dim or d_model) if pooler else None
        self.activation = pooler_activation

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor | Pooled:
        if self.pooler is None:
            return x
        return Pooled(x, tap(obs, "pooled", ACTIVATIONS[self.activation](self.pooler(x[:, 0]))))


class LanguageModelHead(nn.Module):
    """Scores over the vocabulary at every position: (B, T, D) -> (B, T, V).

    >>> LanguageModelHead(16, vocab_size=100)(torch.randn(2, 5, 16), Context()).shape
    torch.Size([2, 5, 100])
    """

    def __init__(self, d_model: int, *, vocab_size: int, bias: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = normal_table(vocab_size, d_model)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.scale = scale

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor:
        return tap(obs, "logits", linear(self.transform(x), self.weight, self.bias))

    def transform(self, x: Tensor) -> Tensor:
        """What the vocabulary's matrix is multiplied with."""
        return x if self.scale == 1.0 else x * self.scale


class MaskedLanguageModelHead(nn.Module):
    """dense, activation, norm, then scores over the vocabulary: (B, T, D) -> (B, T, V).

    >>> head = MaskedLanguageModelHead(16, vocab_size=100, activation="gelu", norm=nn.LayerNorm(16))
    >>> head(torch.randn(2, 5, 16), Context()).shape
    torch.Size([2, 5, 100])
    """

    def __init__(self, d_model: int, *, vocab_size: int, activation: Activation, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)
        self.activation = activation
        self.norm = norm
        self.weight = normal_table(vocab_size, d_model)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor:
        return tap(obs, "logits", linear(self.transform(x), self.weight, self.bias))

    def transform(self, x: Tensor) -> Tensor:
        """What the vocabulary's matrix is multiplied with."""
        y: Tensor = self.norm(ACTIVATIONS[self.activation](self.dense(x)))
        return y


def _last_real(padding: Tensor | None, x: Tensor) -> Tensor:
    """The row number (B,) of each sequence's last real token."""
    if padding is None:
        return torch.full((x.shape[0],), x.shape[1] - 1, device=x.device)
    rows = torch.arange(x.shape[1], device=x.device)
    return torch.where(padding, rows, 0).amax(-1)


def _pick(x: Tensor, rows: Tensor) -> Tensor:
    return x[torch.arange(x.shape[0], device=x.device), rows]  # (B, D)


class ClassifyHead(nn.Module):
    """One vector of the sequence, a dense layer if any, then a row of scores: (B, T, D) -> (B, L).

    >>> ClassifyHead(16, num_labels=3, pool="mean")(torch.randn(2, 5, 16), Context()).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        d_model: int,
        *,
        num_labels: int,
        pool: Literal["first", "last", "end", "mean"] = "first",
        hidden: Activation | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        dropped: Sequence[Literal["hidden", "out"]] = ("hidden", "out"),
        end_id: int = -1,
    ) -> None:
        super().__init__()
        self.pool, self.hidden, self.end_id = pool, hidden, end_id
        self.dense = nn.Linear(d_model, d_model) if hidden else None
        self.dropout_hidden = Dropout(dropout if "hidden" in dropped else 0.0)
        self.dropout = Dropout(dropout if "out" in dropped else 0.0)
        self.out = nn.Linear(d_model, num_labels, bias=bias)

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor:
        pooled = tap(obs, "pooled", self._pooled(x, context))  # (B, D)
        if self.dense is not None and self.hidden is not None:
            pooled = ACTIVATIONS[self.hidden](self.dense(self.dropout_hidden(pooled)))
        return tap(obs, "logits", self.out(self.dropout(pooled)))  # (B, L)

    def _pooled(self, x: Tensor, context: Context) -> Tensor:
        match self.pool:
            case "first":
                return x[:, 0]
            case "last":
                return _pick(x, _last_real(context.padding, x))
            case "mean":
                return pool_mean(x, context.padding)
            case "end":
                return _pick(x, _last_real(self._ends(x, context.ids), x))

    def _ends(self, x: Tensor, ids: Tensor | None) -> Tensor:
        """Where the end token stands (B, T); that each row has one is looked at on a CPU alone."""
        if ids is None:
            raise MissingValueError("token ids", "by a head that reads the end token")
        if ids.shape != x.shape[:2]:
            wanted = f"the source's shape {tuple(ids.shape)}, as the head reads the source's end token"
            raise ShapeError("the target", x.shape[:2], wanted)
        ends = ids.eq(self.end_id)
        if ids.is_cpu and not torch.compiler.is_compiling() and not bool(ends.any(-1).all()):
            raise MissingValueError(f"the end token {self.end_id}", "in every sequence by this head")
        return ends


class ClassifyTwiceHead(nn.Module):
    """Scores off the first and off the second prefix vector, and their mean.

    >>> [scores.shape for scores in ClassifyTwiceHead(16, num_labels=3)(torch.randn(2, 5, 16), Context())]
    [torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([2, 3])]
    """

    def __init__(self, d_model: int, *, num_labels: int) -> None:
        super().__init__()
        self.first = nn.Linear(d_model, num_labels)
        self.second = nn.Linear(d_model, num_labels)

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Twice:
        first, second = self.first(x[:, 0]), self.second(x[:, 1])  # (B, L)
        return Twice(tap(obs, "logits", (first + second) / 2), first, second)


class TokenClassifyHead(nn.Module):
    """A row of scores for every token: (B, T, D) -> (B, T, L).

    >>> TokenClassifyHead(16, num_labels=3)(torch.randn(2, 5, 16), Context()).shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, d_model: int, *, num_labels: int, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(d_model, num_labels, bias=bias)

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor:
        return tap(obs, "logits", self.out(self.dropout(x)))


class AnswerHead(nn.Module):
    """Where an answer starts and ends: (B, T, D) -> two of (B, T).

    >>> start, end = AnswerHead(16)(torch.randn(2, 5, 16), Context())
    >>> start.shape, end.shape
    (torch.Size([2, 5]), torch.Size([2, 5]))
    """

    def __init__(self, d_model: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(d_model, 2)

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Span:
        start, end = tap(obs, "logits", self.out(self.dropout(x))).unbind(-1)
        return Span(start, end)


def pool_mean(x: Tensor, padding: Tensor | None) -> Tensor:
    """The mean of the real vectors: (B, T, D) -> (B, D)."""
    if padding is None:
        return x.mean(1)
    real = padding[..., None].to(x.dtype)
    return (x * real).sum(1) / real.sum(1).clamp(min=1)


class EmbedHead(nn.Module):
    """One vector a text, pooled over its real tokens: (B, T, D) -> (B, D).

    >>> EmbedHead(16, normalize=True)(torch.randn(2, 5, 16), Context()).shape
    torch.Size([2, 16])
    """

    def __init__(
        self,
        d_model: int,
        *,
        pool: Literal["mean", "first", "max", "mean_sqrt_len", "last"] = "mean",
        normalize: bool = False,
        pooler: bool = False,
    ) -> None:
        super().__init__()
        self.pool, self.normalize = pool, normalize
        # published folders carry a pooler beside; it takes no part here but is kept for saving
        self.pooler = nn.Linear(d_model, d_model) if pooler else None

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor:
        vector = self._pooled(x, context.padding)
        vector = F.normalize(vector, dim=-1) if self.normalize else vector
        return tap(obs, "embedding", vector)

    def _pooled(self, x: Tensor, padding: Tensor | None) -> Tensor:
        match self.pool:
            case "first":
                rows = None if padding is None else padding.long().argmax(-1)
                return x[:, 0] if rows is None else _pick(x, rows)
            case "last":
                return _pick(x, _last_real(padding, x))
            case "max":
                low = torch.finfo(x.dtype).min
                return (x if padding is None else x.masked_fill(~padding[..., None], low)).amax(1)
            case "mean":
                return pool_mean(x, padding)
            case "mean_sqrt_len":
                if padding is None:
                    return pool_mean(x, padding) * math.sqrt(x.shape[1])
                return pool_mean(x, padding) * padding.sum(1, keepdim=True).sqrt().to(x.dtype)

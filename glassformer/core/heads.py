"""From vectors to answers. A head takes the last layer's vectors and a `HeadContext` of what was read.

B batch, T positions, D d_model, V vocabulary, L labels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec
from glassformer.core.backend import ACTIVATIONS, Dropout, linear, normal_table
from glassformer.core.norms import make_norm
from glassformer.core.observe import Observer, tap
from glassformer.errors import MissingValueError, ShapeError


class HeadContext(NamedTuple):
    """What a head may need besides the vectors."""

    ids: Tensor | None = None  # (B, T)
    padding: Tensor | None = None  # (B, T), True where real
    loc: Tensor | None = None  # how a series was shifted
    scale: Tensor | None = None  # and scaled


class PooledOutput(NamedTuple):
    """All vectors (B, T, D) and one for the whole sequence (B, D or the pooler's width)."""

    hidden: Tensor
    pooled: Tensor


class DistilledLogits(NamedTuple):
    """The mean of two rows of scores (B, L), and each."""

    logits: Tensor
    first: Tensor
    second: Tensor


class SpanLogits(NamedTuple):
    """Scores (B, T) for where an answer starts and ends."""

    start: Tensor
    end: Tensor


class FeaturesHead(nn.Module):
    """The vectors themselves; with a pooler also activation(dense(first vector))."""

    def __init__(self, d_model: int, what: spec.FeaturesSpec) -> None:
        super().__init__()
        self.pooler = nn.Linear(d_model, what.pooler_dim or d_model) if what.pooler else None
        self.activation = what.pooler_activation

    def forward(
        self, x: Tensor, context: HeadContext, *, obs: Observer | None = None
    ) -> Tensor | PooledOutput:
        if self.pooler is None:
            return x
        return PooledOutput(x, tap(obs, "pooled", ACTIVATIONS[self.activation](self.pooler(x[:, 0]))))


class VocabularyHead(nn.Module):
    """Scores over the vocabulary at every position: (B, T, D) -> (B, T, V)."""

    def __init__(self, d_model: int, vocab_size: int, bias: bool) -> None:
        super().__init__()
        self.weight = normal_table(vocab_size, d_model)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        return tap(obs, "logits", linear(self.transform(x), self.weight, self.bias))

    def transform(self, x: Tensor) -> Tensor:
        """What the vocabulary's matrix is multiplied with."""
        raise NotImplementedError


class LanguageModelHead(VocabularyHead):
    """Scores of the vectors times `scale`."""

    def __init__(self, d_model: int, *, vocab_size: int, bias: bool = False, scale: float = 1.0) -> None:
        super().__init__(d_model, vocab_size, bias)
        self.scale = scale

    def transform(self, x: Tensor) -> Tensor:
        return x if self.scale == 1.0 else x * self.scale


class MaskedLanguageModelHead(VocabularyHead):
    """dense, activation, norm, then scores."""

    def __init__(self, d_model: int, what: spec.MaskedLanguageModelSpec) -> None:
        super().__init__(d_model, what.vocab_size, bias=True)
        self.dense = nn.Linear(d_model, d_model)
        self.activation = what.activation
        self.norm = make_norm(what.norm, d_model)

    def transform(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(ACTIVATIONS[self.activation](self.dense(x)))
        return y


def _last_real(padding: Tensor | None, x: Tensor) -> Tensor:
    """The row number (B,) of each sequence's last real token."""
    if padding is None:
        return torch.full((x.shape[0],), x.shape[1] - 1, device=x.device)
    return torch.where(padding, torch.arange(x.shape[1], device=x.device), 0).amax(-1)


def pool(x: Tensor, padding: Tensor | None, kind: str) -> Tensor:
    """One of the vectors of a sequence, or their mean or maximum: (B, T, D) -> (B, D).

    Only real tokens count: "first" and "last" are the first and last real ones.
    """
    match kind:
        case "first" if padding is None:
            return x[:, 0]
        case "first" | "last":
            rows = _last_real(padding, x) if kind == "last" or padding is None else padding.long().argmax(-1)
            return x[torch.arange(x.shape[0], device=x.device), rows]
        case "max":
            low = torch.finfo(x.dtype).min
            return (x if padding is None else x.masked_fill(~padding[..., None], low)).amax(1)
    if padding is None:
        return x.mean(1) * (math.sqrt(x.shape[1]) if kind == "mean_sqrt_len" else 1.0)
    real = padding[..., None].to(x.dtype)
    mean = (x * real).sum(1) / real.sum(1).clamp(min=1)
    return mean if kind == "mean" else mean * padding.sum(1, keepdim=True).sqrt().to(x.dtype)


class ClassifyHead(nn.Module):
    """One vector of the sequence, a dense layer if any, then a row of scores: (B, T, D) -> (B, L)."""

    def __init__(self, d_model: int, what: spec.ClassifySpec) -> None:
        super().__init__()
        self.pool, self.hidden, self.end_id = what.pool, what.hidden, what.end_id
        self.dense = nn.Linear(d_model, d_model) if what.hidden else None
        self.dropout_hidden = Dropout(what.dropout if "hidden" in what.dropped else 0.0)
        self.dropout = Dropout(what.dropout if "out" in what.dropped else 0.0)
        self.out = nn.Linear(d_model, what.num_labels, bias=what.bias)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        if self.pool == "first":  # column 0, padding or not, as published models read it
            pooled = x[:, 0]
        elif self.pool == "end":
            pooled = pool(x, self._ends(x, context.ids), "last")
        else:
            pooled = pool(x, context.padding, self.pool)
        pooled = tap(obs, "pooled", pooled)  # (B, D)
        if self.dense is not None and self.hidden is not None:
            pooled = ACTIVATIONS[self.hidden](self.dense(self.dropout_hidden(pooled)))
        return tap(obs, "logits", self.out(self.dropout(pooled)))  # (B, L)

    def _ends(self, x: Tensor, ids: Tensor | None) -> Tensor:
        """Where the end token is (B, T); that each row has one is checked only on a CPU."""
        if ids is None:
            raise MissingValueError("token ids", "by a head that reads the end token")
        if ids.shape != x.shape[:2]:
            wanted = f"the source's shape {tuple(ids.shape)}, as the head reads the source's end token"
            raise ShapeError("the target", x.shape[:2], wanted)
        ends = ids.eq(self.end_id)
        if ids.is_cpu and not torch.compiler.is_compiling() and not bool(ends.any(-1).all()):
            raise MissingValueError(f"the end token {self.end_id}", "in every sequence by this head")
        return ends


class DistilledClassifyHead(nn.Module):
    """Scores off the first and off the second prefix vector, and their mean."""

    def __init__(self, d_model: int, what: spec.DistilledClassifySpec) -> None:
        super().__init__()
        self.first = nn.Linear(d_model, what.num_labels)
        self.second = nn.Linear(d_model, what.num_labels)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> DistilledLogits:
        first, second = self.first(x[:, 0]), self.second(x[:, 1])  # (B, L)
        return DistilledLogits(tap(obs, "logits", (first + second) / 2), first, second)


class TokenClassifyHead(nn.Module):
    """A row of scores for every token: (B, T, D) -> (B, T, L)."""

    def __init__(self, d_model: int, what: spec.TokenClassifySpec) -> None:
        super().__init__()
        self.dropout = Dropout(what.dropout)
        self.out = nn.Linear(d_model, what.num_labels, bias=what.bias)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        return tap(obs, "logits", self.out(self.dropout(x)))


class AnswerHead(nn.Module):
    """Where an answer starts and ends: (B, T, D) -> two of (B, T)."""

    def __init__(self, d_model: int, what: spec.AnswerSpec) -> None:
        super().__init__()
        self.dropout = Dropout(what.dropout)
        self.out = nn.Linear(d_model, 2)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> SpanLogits:
        start, end = tap(obs, "logits", self.out(self.dropout(x))).unbind(-1)
        return SpanLogits(start, end)


class EmbedHead(nn.Module):
    """One vector a text, pooled over its real tokens: (B, T, D) -> (B, D)."""

    def __init__(self, d_model: int, what: spec.EmbedSpec) -> None:
        super().__init__()
        self.pool, self.normalize = what.pool, what.normalize
        # published folders have a pooler; it takes no part here but is kept for saving
        self.pooler = nn.Linear(d_model, d_model) if what.pooler else None

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        vector = pool(x, context.padding, self.pool)
        return tap(obs, "embedding", F.normalize(vector, dim=-1) if self.normalize else vector)


HEADS: dict[type, type[nn.Module]] = {
    spec.FeaturesSpec: FeaturesHead,
    spec.MaskedLanguageModelSpec: MaskedLanguageModelHead,
    spec.ClassifySpec: ClassifyHead,
    spec.DistilledClassifySpec: DistilledClassifyHead,
    spec.TokenClassifySpec: TokenClassifyHead,
    spec.AnswerSpec: AnswerHead,
    spec.EmbedSpec: EmbedHead,
}

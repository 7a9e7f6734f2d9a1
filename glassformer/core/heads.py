"""Output heads: map the last hidden states and a `HeadContext` to the output of the model.

B batch, T positions, D d_model, V vocabulary, L labels, Q object queries, h and w rows and columns of a mask.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.attention import make_attention
from glassformer.core.backend import ACTIVATIONS, Dropout, apply_softcap, linear, normal_table
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.feedforward import FeedForward
from glassformer.core.masks import Mask
from glassformer.core.norms import make_norm
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.stack import LayerOutput
from glassformer.errors import MissingValueError, ShapeError


class HeadContext(NamedTuple):
    """Inputs of a head besides the hidden states."""

    ids: Tensor | None = None  # (B, T)
    padding: Tensor | None = None  # (B, T), True for real tokens
    loc: Tensor | None = None  # shift of a series
    scale: Tensor | None = None  # scale of a series
    layers: tuple[Tensor, ...] = ()  # (B, T, D) of every layer but the last, for deep supervision
    images: Tensor | None = None  # (B, C, H, W)
    grid: tuple[int, ...] | None = None  # rows and columns of the image patches, which are the last tokens
    condition: Tensor | None = None  # (B, C), for adaptive norms
    states: tuple[LayerOutput, ...] = ()  # of the embedding and of each layer, for feature maps

    @classmethod
    def of(cls, embedded: EmbeddingOutput, inputs: Tensor) -> HeadContext:
        """Return what a head needs to know about the embedded inputs of a model."""
        return cls(
            ids=None if inputs.is_floating_point() else inputs,
            padding=embedded.mask.padding,
            loc=embedded.loc,
            scale=embedded.scale,
            condition=embedded.condition,
            images=None if embedded.grid is None or not inputs.is_floating_point() else inputs,
            grid=embedded.grid,
        )


class PooledOutput(NamedTuple):
    """Hidden states (B, T, D) and one pooled vector per sequence (B, pooler width or D)."""

    hidden: Tensor
    pooled: Tensor


class SpanLogits(NamedTuple):
    """Logits (B, T) for the start and the end of an answer."""

    start: Tensor
    end: Tensor


class FeaturesHead(nn.Module):
    """Return the hidden states; also activation(dense(first hidden state)), or a pooled hidden state."""

    def __init__(self, d_model: int, spec: specs.FeaturesSpec) -> None:
        super().__init__()
        self.pooler = nn.Linear(d_model, spec.pooler_dim or d_model) if spec.pooler else None
        self.activation, self.pool = spec.pooler_activation, spec.pool

    def forward(
        self, x: Tensor, context: HeadContext, *, obs: Observer | None = None
    ) -> Tensor | PooledOutput:
        if self.pool is not None:
            return PooledOutput(x, tap(obs, "pooled", pool(x, context.padding, self.pool)))
        if self.pooler is None:
            return x
        return PooledOutput(x, tap(obs, "pooled", ACTIVATIONS[self.activation](self.pooler(x[:, 0]))))


class VocabularyHead(nn.Module, ABC):
    """Logits over the vocabulary at every position: (B, T, D) -> (B, T, V)."""

    softcap: float | None = None  # bound of the logits

    def __init__(self, d_model: int, vocab_size: int, bias: bool) -> None:
        super().__init__()
        self.weight = normal_table(vocab_size, d_model)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        logits = linear(self.transform(x), self.weight, self.bias)
        return tap(obs, "logits", apply_softcap(logits, self.softcap))

    @abstractmethod
    def transform(self, x: Tensor) -> Tensor:
        """Map hidden states to the input of the vocabulary projection."""


class LanguageModelHead(VocabularyHead):
    """Logits of `scale` times the hidden states, bounded by `softcap`."""

    def __init__(
        self,
        d_model: int,
        *,
        vocab_size: int,
        bias: bool = False,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        super().__init__(d_model, vocab_size, bias)
        self.scale, self.softcap = scale, softcap

    def transform(self, x: Tensor) -> Tensor:
        return x if self.scale == 1.0 else x * self.scale


class MaskedLanguageModelHead(VocabularyHead):
    """Dense layer, activation and norm, then the vocabulary projection."""

    def __init__(self, d_model: int, spec: specs.MaskedLanguageModelSpec) -> None:
        width = spec.hidden_dim or d_model
        super().__init__(width, spec.vocab_size, bias=spec.bias)
        self.dense = nn.Linear(d_model, width, bias=spec.hidden_bias)
        self.activation = spec.activation
        self.norm = make_norm(spec.norm, width)

    def transform(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(ACTIVATIONS[self.activation](self.dense(x)))
        return y


def _last_real(padding: Tensor | None, x: Tensor) -> Tensor:
    """Return the index (B,) of the last real token of each sequence."""
    if padding is None:
        return torch.full((x.shape[0],), x.shape[1] - 1, device=x.device)
    return torch.where(padding, torch.arange(x.shape[1], device=x.device), 0).amax(-1)


def pool(x: Tensor, padding: Tensor | None, kind: str) -> Tensor:
    """Pool the hidden states of each sequence: (B, T, D) -> (B, D).

    kind: "first", "last", "max", "mean" or "mean_sqrt_len". Padding is ignored.
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


def image_patches(x: Tensor, grid: tuple[int, ...] | None) -> Tensor:
    """Return the hidden states of the image patches, which are the last tokens: (B, rows * columns, D)."""
    if grid is None:
        raise MissingValueError("a grid of image patches", "by this head", hint="use an image encoder")
    return x[:, x.shape[1] - math.prod(grid) :]


class LabelHead(nn.Module):
    """Base of heads with labels: an optional dense layer with activation and norm, then the logits."""

    def __init__(
        self,
        d_model: int,
        spec: specs.ClassifySpec | specs.TokenClassifySpec | specs.AnswerSpec,
        num_labels: int,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.hidden = spec.hidden
        self.dense = nn.Linear(d_model, d_model, bias=spec.hidden_bias) if spec.hidden else None
        self.norm = make_norm(spec.hidden_norm, d_model) if spec.hidden_norm else None
        self.dropout = Dropout(spec.dropout)
        self.out = nn.Linear(d_model, num_labels, bias=bias)

    def logits(self, x: Tensor, obs: Observer | None) -> Tensor:
        """Map hidden states (..., D) to logits (..., L)."""
        if self.dense is not None and self.hidden is not None:
            x = ACTIVATIONS[self.hidden](self.dense(x))
            x = x if self.norm is None else self.norm(x)
        return tap(obs, "logits", self.out(self.dropout(x)))


class ClassifyHead(LabelHead):
    """Classify a sequence: pool, optional dense layer, logits: (B, T, D) -> (B, L)."""

    def __init__(self, d_model: int, spec: specs.ClassifySpec) -> None:
        width = 2 * d_model if spec.pool == "first_mean" else d_model
        super().__init__(width, spec, spec.num_labels, spec.bias)
        self.pool, self.end_id = spec.pool, spec.end_id
        self.dropout_hidden = Dropout(spec.dropout if "hidden" in spec.dropped else 0.0)
        self.dropout = Dropout(spec.dropout if "out" in spec.dropped else 0.0)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        if self.pool == "first":  # column 0, even if it is padding, as in the published models
            pooled = x[:, 0]
        elif self.pool == "end":
            pooled = pool(x, find_ends(x, context.ids, self.end_id), "last")
        elif self.pool == "first_mean":
            pooled = torch.cat((x[:, 0], image_patches(x, context.grid).mean(1)), -1)  # (B, 2 * D)
        else:
            pooled = pool(x, context.padding, self.pool)
        pooled = tap(obs, "pooled", pooled)  # (B, D)
        return self.logits(self.dropout_hidden(pooled) if self.dense is not None else pooled, obs)  # (B, L)


class PoolerClassifyHead(nn.Module):
    """Classify by the first hidden state: tanh pooler, dense layer, norm, activation: (B, T, D) -> (B, L)."""

    def __init__(self, d_model: int, spec: specs.PoolerClassifySpec) -> None:
        super().__init__()
        self.pooler = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, spec.hidden_dim)
        self.norm = make_norm(spec.norm, spec.hidden_dim)
        self.activation = spec.activation
        self.out = nn.Linear(spec.hidden_dim, spec.num_labels)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        pooled = tap(obs, "pooled", torch.tanh(self.pooler(x[:, 0])))  # (B, D)
        hidden = ACTIVATIONS[self.activation](self.norm(self.dense(pooled)))
        return tap(obs, "logits", self.out(hidden))


def find_ends(x: Tensor, ids: Tensor | None, end_id: int) -> Tensor:
    """Return a mask (B, T) of the end tokens; on a CPU, raise if a row has none."""
    if ids is None:
        raise MissingValueError("token ids", "by a head that reads the end token")
    if ids.shape != x.shape[:2]:
        expected = f"the source's shape {tuple(ids.shape)}, as the head reads the source's end token"
        raise ShapeError("the target", x.shape[:2], expected)
    ends = ids.eq(end_id)
    if ids.is_cpu and not torch.compiler.is_compiling() and not bool(ends.any(-1).all()):
        raise MissingValueError(f"the end token {end_id}", "in every sequence by this head")
    return ends


class TokenClassifyHead(LabelHead):
    """Logits for every token: (B, T, D) -> (B, T, L)."""

    def __init__(self, d_model: int, spec: specs.TokenClassifySpec) -> None:
        super().__init__(d_model, spec, spec.num_labels, spec.bias)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        return self.logits(x, obs)


class ReplacedTokenHead(nn.Module):
    """One logit per token, positive if it was replaced: (B, T, D) -> (B, T)."""

    def __init__(self, d_model: int, spec: specs.ReplacedTokenSpec) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)
        self.activation = spec.activation
        self.out = nn.Linear(d_model, 1)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        hidden = ACTIVATIONS[self.activation](self.dense(x))
        return tap(obs, "logits", self.out(hidden).squeeze(-1))


class AnswerHead(LabelHead):
    """Start and end logits of an answer span: (B, T, D) -> two tensors (B, T)."""

    def __init__(self, d_model: int, spec: specs.AnswerSpec) -> None:
        super().__init__(d_model, spec, num_labels=2)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> SpanLogits:
        start, end = self.logits(x, obs).unbind(-1)
        return SpanLogits(start, end)


class EmbedHead(nn.Module):
    """One embedding per text, pooled over its real tokens: (B, T, D) -> (B, D)."""

    def __init__(self, d_model: int, spec: specs.EmbedSpec) -> None:
        super().__init__()
        self.pool, self.normalize = spec.pool, spec.normalize
        # published checkpoints have a pooler; it is unused here and kept for saving
        self.pooler = nn.Linear(d_model, d_model) if spec.pooler else None

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        vector = pool(x, context.padding, self.pool)
        return tap(obs, "embedding", F.normalize(vector, dim=-1) if self.normalize else vector)


class ProjectionHead(nn.Module):
    """Hidden states, and one vector per sequence: pooled, normalized, projected: (B, T, D) -> (B, E)."""

    def __init__(self, d_model: int, spec: specs.ProjectionSpec) -> None:
        super().__init__()
        self.pool, self.end_id = spec.pool, spec.end_id
        self.norm = make_norm(spec.norm, d_model) if spec.norm else None
        width = spec.projection_dim
        self.projection = nn.Linear(d_model, width, bias=spec.bias) if width else None

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> PooledOutput:
        vector = tap(obs, "pooled", self._pool(x, context))  # (B, D)
        vector = vector if self.norm is None else tap(obs, "norm", self.norm(vector))
        vector = vector if self.projection is None else self.projection(vector)  # (B, E)
        return PooledOutput(x, tap(obs, "embedding", vector))

    def _pool(self, x: Tensor, context: HeadContext) -> Tensor:
        ids = context.ids
        match self.pool:
            case "first":
                return x[:, 0]
            case "last_position":
                return x[:, -1]
            case "mean":
                return pool(x, context.padding, "mean")
            case "first_end":
                return pool(x, find_ends(x, ids, self.end_id), "first")
        if ids is None:
            raise MissingValueError("token ids", "by a head that reads the largest id")
        return pool(x, ids == ids.amax(-1, keepdim=True), "first")


class AttentionPoolHead(nn.Module):
    """Hidden states, and one vector per sequence by attention pooling: (B, T, D) -> (B, D).

    A trained query attends to all positions; the result passes a feed-forward layer with norm and residual.

    >>> spec = specs.AttentionPoolSpec(
    ...     attention=specs.AttentionSpec(num_heads=4), feed_forward=specs.FeedForwardSpec(d_ff=32))
    >>> AttentionPoolHead(16, spec)(torch.randn(2, 5, 16), HeadContext()).pooled.shape
    torch.Size([2, 16])
    """

    has_tables = True  # its own parameters are initialized like embeddings

    def __init__(self, d_model: int, spec: specs.AttentionPoolSpec) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(1, 1, d_model))
        self.attn = make_attention(d_model, spec.attention)
        self.norm = make_norm(spec.norm, d_model)
        self.ffn = FeedForward(d_model, **vars(spec.feed_forward))

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> PooledOutput:
        probe = self.probe.to(x.dtype).expand(x.shape[0], -1, -1)
        vector = self.attn(probe, Mask(padding=context.padding), x, obs=scope(obs, "attn"))  # (B, 1, D)
        vector = vector + self.ffn(self.norm(vector), obs=scope(obs, "ffn"))
        return PooledOutput(x, tap(obs, "embedding", vector[:, 0]))


HEADS: dict[type, type[nn.Module]] = {
    specs.FeaturesSpec: FeaturesHead,
    specs.MaskedLanguageModelSpec: MaskedLanguageModelHead,
    specs.DenseLanguageModelSpec: MaskedLanguageModelHead,
    specs.ClassifySpec: ClassifyHead,
    specs.PoolerClassifySpec: PoolerClassifyHead,
    specs.TokenClassifySpec: TokenClassifyHead,
    specs.ReplacedTokenSpec: ReplacedTokenHead,
    specs.AnswerSpec: AnswerHead,
    specs.EmbedSpec: EmbedHead,
    specs.ProjectionSpec: ProjectionHead,
    specs.AttentionPoolSpec: AttentionPoolHead,
}

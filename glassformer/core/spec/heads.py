"""What a model answers with: scores over a vocabulary, labels, spans, vectors, forecasts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from glassformer.core.spec.checks import Part
from glassformer.core.spec.parts import Activation, LayerNorm, Norm


@dataclass(frozen=True, kw_only=True)
class Features(Part):
    """The last layer's vectors; with `pooler`, also activation(dense(first vector)), `pooler_dim` wide."""

    pooler: bool = False
    pooler_dim: int | None = None
    pooler_activation: Activation = "tanh"


@dataclass(frozen=True, kw_only=True)
class LanguageModel(Part):
    """Scores over the vocabulary at every position; vectors times `scale` first."""

    vocab_size: int
    bias: bool = False
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModel(Part):
    """dense, activation, norm, then scores over the vocabulary at every position."""

    vocab_size: int
    activation: Activation = "gelu"
    norm: Norm = field(default_factory=LayerNorm)


@dataclass(frozen=True, kw_only=True)
class Classify(Part):
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
class ClassifyTwice(Part):
    """Two rows of scores, off the first and the second prefix vector, and their mean."""

    num_labels: int


@dataclass(frozen=True, kw_only=True)
class TokenClassify(Part):
    """A row of scores for every token."""

    num_labels: int
    bias: bool = True
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Answer(Part):
    """Where an answer starts and where it ends: two scores for every token."""

    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Embed(Part):
    """One vector a text: pooled over its real tokens, of length 1 when `normalize`."""

    pool: Literal["mean", "first", "max", "mean_sqrt_len", "last"] = "mean"
    normalize: bool = False
    pooler: bool = False


@dataclass(frozen=True, kw_only=True)
class Forecast(Part):
    """The next `prediction_length` values of each channel, or a distribution's parameters for them."""

    prediction_length: int
    pool: Literal["flatten", "mean", "max", "first"] = "flatten"
    projection: Literal["shared", "per_channel"] = "shared"
    distribution: Literal["none", "student_t", "normal", "negative_binomial"] = "none"
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SeriesClassify(Part):
    """One row of scores a series, from its channels' pooled vectors laid side by side."""

    num_labels: int
    pool: Literal["mean", "max", "first"] = "mean"
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SeriesRegress(Part):
    """`num_targets` numbers a series (or a distribution's parameters), optionally kept in a range."""

    num_targets: int
    pool: Literal["mean", "max", "first"] = "mean"
    distribution: Literal["none", "student_t", "normal", "negative_binomial"] = "none"
    output_range: tuple[float, float] | None = None
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PatchReconstruct(Part):
    """Each patch's own values again, for learning from masked patches."""

    dropout: float = 0.0


Head = (
    Features
    | LanguageModel
    | MaskedLanguageModel
    | Classify
    | ClassifyTwice
    | TokenClassify
    | Answer
    | Embed
    | Forecast
    | SeriesClassify
    | SeriesRegress
    | PatchReconstruct
)

"""Specs of token inputs and of the heads of text models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from glassformer.core.spec.layers import (
    Activation,
    AttentionSpec,
    FeedForwardSpec,
    InputPositionSpec,
    LayerNormSpec,
    NormSpec,
)
from glassformer.errors import ConflictError, InvalidValueError
from glassformer.schema import Spec

if TYPE_CHECKING:
    from glassformer.core.spec.architectures import ModelSpec

Modality = Literal["text", "image", "series", "vectors", "latents", "class"]
Output = Literal[
    "hidden states",
    "next tokens",
    "masked tokens",
    "label",
    "token labels",
    "replaced tokens",
    "span",
    "embedding",
    "vector",
    "feature maps",
    "boxes",
    "pixels",
    "similarity",
    "masks",
    "prompted masks",
    "future values",
    "targets",
    "patches",
    "noise",
    "images",
    "frames",
]


class InputSpec(Spec, abstract=True):
    """Base of the specs of what a model takes.

    modality: kind of data that a user gives. trained: the input is trained vectors, which nobody gives.
    """

    modality: ClassVar[Modality]
    trained: ClassVar[bool] = False

    @property
    def memory_dim(self) -> int | None:
        """Width of the vectors that cross-attention of its stack attends to, if there are any."""
        return None

    def parts(self) -> tuple[InputSpec, ...]:
        """Return the inputs that this input consists of, such as a text and an image."""
        return (self,)

    def children(self) -> dict[str, ModelSpec]:
        """Return the models that its embedding consists of, such as an image encoder."""
        return {}

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        """Return the shape of an input that fits the model, without the batch, for a stack of this width."""
        return length, width

    def num_tokens(self, shape: Sequence[int]) -> int:
        """Return how many tokens the model makes of an input of this shape (B, ...)."""
        return shape[1]


@dataclass(frozen=True, kw_only=True)
class TokensSpec(InputSpec):
    """Token embeddings times `scale`, plus positions and token types, with an optional norm.

    embedding_dim: width of the embeddings and the norm, which a dense layer then projects to d_model; None:
    d_model, without a projection.
    """

    modality = "text"

    vocab_size: int
    embedding_dim: int | None = None
    scale: float = 1.0
    position: InputPositionSpec | None = None
    types: int | None = None
    norm: NormSpec | None = None
    dropout: float = 0.0
    pad_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class VectorsSpec(InputSpec):
    """Vectors (B, T, d_model), used unchanged."""

    modality = "vectors"


class HeadSpec(Spec, abstract=True):
    """Base of the specs of heads, which map the last hidden states to the output.

    yields: what the output is. per_token: it has one entry for each token, not one for each sequence.
    """

    yields: ClassVar[Output | None] = None
    per_token: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class FeaturesSpec(HeadSpec):
    """The last hidden states; with `pooler`, also activation(dense(first state)) of width `pooler_dim`.

    pool: without a pooler, also the "first" hidden state or the "mean" of all as pooled vector.
    """

    yields = "hidden states"
    per_token = True

    pooler: bool = False
    pooler_dim: int | None = None
    pooler_activation: Activation = "tanh"
    pool: Literal["first", "mean"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooler and self.pool is not None:
            raise ConflictError(("pooler", "pool"), "both give the pooled vector")


@dataclass(frozen=True, kw_only=True)
class LanguageModelSpec(HeadSpec):
    """Logits over the vocabulary at every position, from hidden states times `scale`.

    softcap: bound of the logits y, which become softcap * tanh(y / softcap).
    """

    yields = "next tokens"
    per_token = True

    vocab_size: int
    bias: bool = False
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.softcap is not None and self.softcap <= 0:
            raise InvalidValueError("softcap", self.softcap, "a number above 0")


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelSpec(HeadSpec):
    """Dense layer, activation and norm, then logits over the vocabulary at every position.

    hidden_dim, hidden_bias: width (if not d_model) and bias of the dense layer. bias: of the logits.
    """

    yields: ClassVar[Output | None] = "masked tokens"
    per_token = True

    vocab_size: int
    hidden_dim: int | None = None
    activation: Activation = "gelu"
    norm: NormSpec = field(default_factory=LayerNormSpec)
    hidden_bias: bool = True
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class DenseLanguageModelSpec(MaskedLanguageModelSpec):
    """The head of a masked language model on a causal decoder, where it predicts the next token.

    hidden_dim, hidden_bias, bias: as in `MaskedLanguageModelSpec`.
    """

    yields = "next tokens"


@dataclass(frozen=True, kw_only=True)
class ClassifySpec(HeadSpec):
    """Classify a sequence from its pooled hidden state.

    pool: hidden state of the "first" token, the "last" real token or the last `end_id` ("end"), or the
    "mean"; "first_mean" concatenates the first token's and the mean of the image patches.
    hidden: activation of a dense layer before the classifier; None: no dense layer.
    hidden_norm, hidden_bias: norm after the activation, and bias of the dense layer.
    dropped: layers that have dropout before them: "hidden" (the dense layer), "out" (the classifier).
    """

    yields = "label"

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
class TokenClassifySpec(HeadSpec):
    """Classify every token.

    hidden, hidden_norm, hidden_bias: of a dense layer before the classifier, as in `ClassifySpec`.
    """

    yields = "token labels"
    per_token = True

    num_labels: int
    bias: bool = True
    dropout: float = 0.0
    hidden: Activation | None = None
    hidden_norm: NormSpec | None = None
    hidden_bias: bool = True


@dataclass(frozen=True, kw_only=True)
class ReplacedTokenSpec(HeadSpec):
    """Replaced-token detection: dense layer, activation, then one logit per token, positive if replaced."""

    yields = "replaced tokens"
    per_token = True

    activation: Activation = "gelu"


@dataclass(frozen=True, kw_only=True)
class AnswerSpec(HeadSpec):
    """Extractive question answering: start and end logits for every token.

    hidden, hidden_norm, hidden_bias: of a dense layer before the logits, as in `ClassifySpec`.
    """

    yields = "span"
    per_token = True

    dropout: float = 0.0
    hidden: Activation | None = None
    hidden_norm: NormSpec | None = None
    hidden_bias: bool = True


@dataclass(frozen=True, kw_only=True)
class EmbedSpec(HeadSpec):
    """One embedding per text, pooled over its real tokens; `normalize` scales it to length 1."""

    yields = "embedding"

    pool: Literal["mean", "first", "max", "mean_sqrt_len", "last"] = "mean"
    normalize: bool = False
    pooler: bool = False


@dataclass(frozen=True, kw_only=True)
class ProjectionSpec(HeadSpec):
    """One vector per sequence or image: a pooled hidden state, then optional norm and dense layer.

    pool: hidden state of the "first" token, of the first `end_id` ("first_end"), of the largest token id
    ("largest_id"), or at the "last_position", even if it is padding; or the "mean" of all real tokens.
    projection_dim: width of the dense layer; None: no dense layer.
    """

    yields = "vector"

    pool: Literal["first", "first_end", "largest_id", "last_position", "mean"] = "first"
    end_id: int = -1
    norm: NormSpec | None = None
    projection_dim: int | None = None
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class AttentionPoolSpec(HeadSpec):
    """Attention pooling: a trained query (probe) attends to all hidden states; then norm and feed-forward."""

    yields = "vector"

    attention: AttentionSpec
    feed_forward: FeedForwardSpec
    norm: NormSpec = field(default_factory=LayerNormSpec)

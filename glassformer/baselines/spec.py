"""Specs of the baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from glassformer.core.spec import Modality, ModelSpec, Output
from glassformer.errors import ConflictError, InvalidValueError
from glassformer.schema import Spec, from_dict


def _check_layers(part: LSTMSpec) -> None:
    if part.num_layers < 1:
        raise InvalidValueError(f"{part.kind}.num_layers", part.num_layers, "at least 1")


def _check_id(part: Spec, name: str, size: int) -> None:
    value = getattr(part, name)
    if value is not None and not 0 <= value < size:
        raise InvalidValueError(f"{part.kind}.{name}", value, f"an id from 0 to {size - 1}")


class BaselineSpec(ModelSpec, abstract=True):
    """Base of the specs of baselines."""

    architecture = "baselines without attention"
    modality: ClassVar[Modality] = "series"
    output: ClassVar[Output] = "future values"

    @property
    def yields(self) -> Output:
        return self.output

    @property
    def modalities(self) -> tuple[Modality, ...]:
        return (self.modality,)


@dataclass(frozen=True, kw_only=True)
class LSTMEncoderDecoderSpec(BaselineSpec):
    """Spec of an LSTM encoder-decoder with a bidirectional encoder.

    attention: "dot" (Luong's), or "none": the decoder gets only the encoder's final state.
    tied: weights tied to the target embedding.
    """

    modality = "text"
    output = "next tokens"

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 512
    num_layers: int = 2
    dropout: float = 0.1
    attention: Literal["none", "dot"] = "dot"
    tied: tuple[Literal["source", "head"], ...] = ()
    pad_id: int | None = None
    start_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_layers(self)
        _check_id(self, "pad_id", min(self.src_vocab_size, self.tgt_vocab_size))
        _check_id(self, "start_id", self.tgt_vocab_size)
        if self.d_model % 2:
            raise InvalidValueError("d_model", self.d_model, "an even number, half for each direction")
        if "source" in self.tied and self.src_vocab_size != self.tgt_vocab_size:
            reason = f"they differ ({self.src_vocab_size} and {self.tgt_vocab_size}), but `tied` has 'source'"
            raise ConflictError(["src_vocab_size", "tgt_vocab_size"], reason)


@dataclass(frozen=True, kw_only=True)
class LSTMLanguageModelSpec(BaselineSpec):
    """Spec of a causal LSTM language model."""

    modality = "text"
    output = "next tokens"

    vocab_size: int
    d_model: int = 512
    num_layers: int = 2
    dropout: float = 0.1
    tied: tuple[Literal["head"], ...] = ()
    pad_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_layers(self)
        _check_id(self, "pad_id", self.vocab_size)


@dataclass(frozen=True, kw_only=True)
class RepeatLastSpec(BaselineSpec):
    """Spec of a forecaster that repeats the last value."""

    prediction_length: int


@dataclass(frozen=True, kw_only=True)
class SeasonalRepeatSpec(BaselineSpec):
    """Spec of a forecaster that repeats the last season. season: in steps, e.g. 24 for a day of hours."""

    prediction_length: int
    season: int


@dataclass(frozen=True, kw_only=True)
class LinearSpec(BaselineSpec):
    """Spec of a linear forecaster, with the same weights for all channels."""

    context_length: int
    prediction_length: int


LSTMSpec = LSTMEncoderDecoderSpec | LSTMLanguageModelSpec


def lstm_spec(kind: str, overrides: Mapping[str, Any], **fixed: Any) -> LSTMSpec:
    """Build a spec from the user's overrides and options fixed by the data; only `tied` may be in both.

    >>> lstm_spec("LSTMLanguageModel", {"d_model": 64}, vocab_size=9).d_model
    64
    """
    for name in overrides:
        if name in fixed and name != "tied":
            raise InvalidValueError(
                f"model.{name}", overrides[name], f"{fixed[name]}, as in the data, or none"
            )
    spec: LSTMSpec = from_dict({"kind": kind, **fixed, **overrides}, "model")
    return spec

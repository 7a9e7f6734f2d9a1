"""The specs of baselines, and their form as JSON (a closed schema)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from glassformer.core import schema
from glassformer.core.schema import Spec
from glassformer.errors import ConflictError, InvalidValueError


def _check_layers(part: LSTMSpec) -> None:
    if part.num_layers < 1:
        raise InvalidValueError(f"{part.kind}.num_layers", part.num_layers, "at least 1")


def _check_id(part: Spec, name: str, size: int) -> None:
    value = getattr(part, name)
    if value is not None and not 0 <= value < size:
        raise InvalidValueError(f"{part.kind}.{name}", value, f"an id from 0 to {size - 1}")


@dataclass(frozen=True, kw_only=True)
class LSTMEncoderDecoderSpec(Spec):
    """Reads a source in both directions, writes a target from left to right.

    attention: "dot" (Luong's), or "none": the decoder has only the encoder's final state.
    tied: what shares the target's token matrix.
    """

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
class LSTMLanguageModelSpec(Spec):
    """Reads from left to right, and predicts the next token at every position."""

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
class RepeatLastSpec(Spec):
    """Repeats the last value."""

    prediction_length: int


@dataclass(frozen=True, kw_only=True)
class SeasonalRepeatSpec(Spec):
    """Repeats the last season; a day of hourly values has a season of 24."""

    prediction_length: int
    season: int


@dataclass(frozen=True, kw_only=True)
class LinearSpec(Spec):
    """Each future value is a weighted sum of the past ones, with the same weights for every channel."""

    context_length: int
    prediction_length: int


LSTMSpec = LSTMEncoderDecoderSpec | LSTMLanguageModelSpec
BaselineSpec = LSTMSpec | RepeatLastSpec | SeasonalRepeatSpec | LinearSpec
KINDS: dict[str, type[BaselineSpec]] = {
    kind.kind: kind
    for kind in (
        LSTMEncoderDecoderSpec,
        LSTMLanguageModelSpec,
        RepeatLastSpec,
        SeasonalRepeatSpec,
        LinearSpec,
    )
}


def to_dict(spec: BaselineSpec) -> dict[str, Any]:
    """The spec as plain data with its `kind`."""
    data: dict[str, Any] = schema.to_dict(spec)
    return data


def from_dict(data: Any, where: str = "spec") -> BaselineSpec:
    """The spec that `to_dict` wrote.

    >>> from_dict({"kind": "RepeatLast", "prediction_length": 96})
    RepeatLastSpec(prediction_length=96)
    """
    spec: BaselineSpec = schema.from_dict(data, where, KINDS)
    return spec


def lstm_spec(kind: str, overrides: Mapping[str, Any], **fixed: Any) -> LSTMSpec:
    """A spec from a user's options and what the data determines, of which only `tied` may be overridden.

    >>> lstm_spec("LSTMLanguageModel", {"d_model": 64}, vocab_size=9).d_model
    64
    """
    for name in overrides:
        if name in fixed and name != "tied":
            raise InvalidValueError(
                f"model.{name}", overrides[name], f"{fixed[name]}, as in the data, or none"
            )
    spec = from_dict({"kind": kind, **fixed, **overrides}, "model")
    assert isinstance(spec, LSTMSpec)
    return spec

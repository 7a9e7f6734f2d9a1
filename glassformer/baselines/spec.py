"""What a baseline is, as data, and that data as JSON and back (a closed schema).

The recurrent ones are told here, the forecasters beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal

from glassformer.baselines.forecast_spec import Forecaster, Linear, RepeatLast, SeasonalRepeat
from glassformer.core.schema import nearest
from glassformer.core.spec.checks import Part
from glassformer.errors import GlassformerError


def _check_whole(part: Any, names: tuple[str, ...], least: int) -> None:
    for name in names:
        value = getattr(part, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise GlassformerError(
                f"{type(part).__name__}.{name} is {value!r}; it must be a whole number from {least} on"
            )


def _check_id(part: Any, name: str, *sizes: int) -> None:
    value = getattr(part, name)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and 0 <= value < min(sizes)):
        raise GlassformerError(
            f"{type(part).__name__}.{name} is {value!r}; it must be an id from 0 to {min(sizes) - 1}, or none"
        )


def _check_dropout(part: Any) -> None:
    if not isinstance(part.dropout, int | float) or isinstance(part.dropout, bool):
        raise GlassformerError(
            f"{type(part).__name__}.dropout is {part.dropout!r}; it must be at least 0 and less than 1"
        )


@dataclass(frozen=True, kw_only=True)
class LSTMEncoderDecoder(Part):
    """Reads a source both ways, writes a target from left to right.

    attention: how the writer looks back at the source: "dot" (Luong's), or "none": it has only the state
    in which the reader ended. tied: what shares the target's token matrix.
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
        _check_dropout(self)
        super().__post_init__()
        _check_whole(self, ("src_vocab_size", "tgt_vocab_size", "num_layers"), 1)
        _check_id(self, "pad_id", self.src_vocab_size, self.tgt_vocab_size)
        _check_id(self, "start_id", self.tgt_vocab_size)
        if self.d_model % 2:
            raise GlassformerError(
                f"d_model {self.d_model} is odd; each way of reading takes half of it, so make it even"
            )
        if "source" in self.tied and self.src_vocab_size != self.tgt_vocab_size:
            raise GlassformerError(
                f"the source's {self.src_vocab_size} tokens and the target's {self.tgt_vocab_size} cannot "
                "share one matrix; make the vocabularies equal or leave 'source' out of `tied`"
            )


@dataclass(frozen=True, kw_only=True)
class LSTMLanguageModel(Part):
    """Reads from left to right, and says at every token what comes next."""

    vocab_size: int
    d_model: int = 512
    num_layers: int = 2
    dropout: float = 0.1
    tied: tuple[Literal["head"], ...] = ()
    pad_id: int | None = None

    def __post_init__(self) -> None:
        _check_dropout(self)
        super().__post_init__()
        _check_whole(self, ("num_layers",), 1)
        _check_id(self, "pad_id", self.vocab_size)


LSTM = LSTMEncoderDecoder | LSTMLanguageModel
Baseline = LSTM | Forecaster
KINDS: dict[str, type[Baseline]] = {
    kind.__name__: kind
    for kind in (LSTMEncoderDecoder, LSTMLanguageModel, RepeatLast, SeasonalRepeat, Linear)
}


def to_dict(spec: Baseline) -> dict[str, Any]:
    """The spec as plain data with its `kind`.

    >>> to_dict(RepeatLast(prediction_length=96))
    {'kind': 'RepeatLast', 'prediction_length': 96}
    >>> to_dict(LSTMLanguageModel(vocab_size=9, d_model=4, tied=("head",)))["tied"]
    ['head']
    """
    values = {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(spec).items()
    }
    return {"kind": type(spec).__name__, **values}


def from_dict(data: Any, where: str = "spec") -> Baseline:
    """The spec that `to_dict` wrote; an unknown key or kind, or an ill-typed value, is one sentence."""
    name = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in KINDS:
        raise GlassformerError(f"{where} has unknown kind {name!r:.60}{nearest(str(name), KINDS)}")
    kind = KINDS[name]
    known = {field.name: field for field in fields(kind)}
    values = {key: value for key, value in data.items() if key != "kind"}
    for key in values:
        if key not in known:
            raise GlassformerError(f"{where} ({name}) has unknown key '{key}'{nearest(key, known)}")
    for key, field in known.items():
        if key not in values and field.default is MISSING:
            raise GlassformerError(f"{where} ({name}) lacks '{key}'")
    if "tied" not in known:
        return kind(**values)
    tied = values.get("tied", [])
    if not isinstance(tied, list | tuple) or not all(isinstance(word, str) for word in tied):
        raise GlassformerError(f"{where}.tied cannot be {tied!r:.60}; it takes a list of words")
    return kind(**{**values, "tied": tuple(tied)})


def lstm_spec(kind: str, words: Mapping[str, Any], **given: Any) -> LSTM:
    """A spec from a person's words and what the data says; of the latter only `tied` may be said otherwise.

    >>> lstm_spec("LSTMLanguageModel", {"d_model": 64}, vocab_size=9).d_model
    64
    """
    for word in words:
        if word in given and word != "tied":
            raise GlassformerError(f"model.{word} follows from the data ({given[word]}); leave it out")
    spec = from_dict({"kind": kind, **given, **words}, "model")
    assert isinstance(spec, LSTM)
    return spec

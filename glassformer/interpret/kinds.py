"""The words of a trace: what may be given, what a sequence and its tokens are, and what can be wrong.

Everything here is plain data; `as_json` gives it in the form that is sent to a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from glassformer.errors import GlassformerError

Kind = Literal["translate", "generate", "fill", "embed", "classify", "answer", "image", "forecast"]
SequenceName = Literal["source", "target", "input"]
Change = Mapping[str, Any]  # one intervention, as its `kind` says: see `trace.changes`


class UnknownNameError(GlassformerError):
    """Something was asked for by a name that nothing here has."""


class TooLargeError(GlassformerError):
    """More was asked for than is given out at once."""


@dataclass(frozen=True, kw_only=True)
class SeriesGiven:
    """Columns of numbers, all as long as each other; the last `truth` of each are held back."""

    columns: Mapping[str, tuple[float, ...]]
    truth: int | None = None


@dataclass(frozen=True, kw_only=True)
class Given:
    """What one trace is of; which words count is a matter of the model's kind.

    text: the source, prompt or text. target: what was written so far, as ids or as text; without it an
    encoder-decoder writes its own answer. image: a data: URL or base64. to: the language to write.
    question, context: of a model that answers.
    """

    text: str | None = None
    target: str | tuple[int, ...] | None = None
    image: str | None = None
    series: SeriesGiven | None = None
    to: str | None = None
    question: str | None = None
    context: str | None = None

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Given:
        """From JSON's words; those of another kind are a sentence."""
        known = {field.name for field in fields(cls)}
        if strange := sorted(set(words) - known):
            raise GlassformerError(
                f"a trace's input has no word '{strange[0]}'; it has {', '.join(sorted(known))}"
            )
        told: dict[str, Any] = {name: value for name, value in words.items() if value is not None}
        for name in ("text", "image", "to", "question", "context"):
            if not isinstance(told.get(name, ""), str):
                raise GlassformerError(f"{name} must be a text, not {type(told[name]).__name__}")
        if "target" in told and not isinstance(told["target"], str):
            told["target"] = _ids(told["target"])
        if "series" in told and not isinstance(told["series"], SeriesGiven):
            told["series"] = _series(told["series"])
        return cls(**told)


def _ids(target: Any) -> tuple[int, ...]:
    if not isinstance(target, list | tuple) or not all(type(one) is int and one >= 0 for one in target):
        raise GlassformerError("target must be a text, or a list of token ids from 0")
    return tuple(target)


def _series(series: Any) -> SeriesGiven:
    columns = series.get("columns") if isinstance(series, Mapping) else None
    if not isinstance(columns, Mapping) or not all(isinstance(one, list | tuple) for one in columns.values()):
        raise GlassformerError("series must hold columns: a name and a list of numbers each")
    for name, column in columns.items():
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in column):
            raise GlassformerError(f"the column '{str(name)[:60]}' holds something that is no number")
    truth = series.get("truth")
    if truth is not None and (type(truth) is not int or truth < 0):
        raise GlassformerError(
            f"truth must be how many of the last values are held back, from 0; got {truth!r}"
        )
    return SeriesGiven(columns={str(n): tuple(map(float, c)) for n, c in columns.items()}, truth=truth)


@dataclass(frozen=True, kw_only=True)
class Token:
    """One place of a sequence.

    piece: readable. raw: as the vocabulary spells it. start, end: characters of the sequence's text.
    bytes: in hex, where the token is part of a letter. box: x, y, width, height of an image's patch.
    span: first step of a series' patch, and one past its last.
    """

    id: int | None = None
    piece: str
    raw: str | None = None
    start: int | None = None
    end: int | None = None
    bytes: str | None = None
    special: bool = False
    box: tuple[int, int, int, int] | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """The places one stack reads. grid: rows, columns of patches. prefix: places before the input's own."""

    name: SequenceName
    kind: Literal["text", "patches", "series"]
    text: str | None = None
    tokens: tuple[Token, ...]
    grid: tuple[int, int] | None = None
    prefix: int = 0

    def __len__(self) -> int:
        return len(self.tokens)


_WHERE_SET = frozenset({"box", "span"}) | {field.name for field in fields(Given)}


def as_json(value: Any) -> Any:
    """Dataclasses, tuples and mappings as JSON's own kinds; optional words are left out when None."""
    if is_dataclass(value) and not isinstance(value, type):
        optional = _WHERE_SET if isinstance(value, Token | Given) else frozenset[str]()
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return {n: as_json(v) for n, v in named.items() if v is not None or n not in optional}
    if isinstance(value, float) and not math.isfinite(value):
        return None  # a model that overflowed; JSON has no word for it
    if isinstance(value, Mapping):
        return {str(name): as_json(one) for name, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, list | tuple) else value

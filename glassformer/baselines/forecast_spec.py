"""What a simple forecaster is, as data, and that data as JSON and back (a closed schema)."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from glassformer.core.errors import GlassformerError
from glassformer.core.schema import nearest
from glassformer.core.spec.checks import Part


@dataclass(frozen=True, kw_only=True)
class RepeatLast(Part):
    """The last value, over and over."""

    prediction_length: int


@dataclass(frozen=True, kw_only=True)
class SeasonalRepeat(Part):
    """The last season over and over; a day of hourly values has a season of 24."""

    prediction_length: int
    season: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.season, int) or isinstance(self.season, bool) or self.season < 1:
            raise GlassformerError(
                f"SeasonalRepeat.season is {self.season!r}; it must be a whole number from 1"
            )


@dataclass(frozen=True, kw_only=True)
class Linear(Part):
    """Each future value a weighted sum of the past ones, by the same weights for every channel."""

    context_length: int
    prediction_length: int


Forecaster = RepeatLast | SeasonalRepeat | Linear
KINDS: dict[str, type[RepeatLast] | type[SeasonalRepeat] | type[Linear]] = {
    kind.__name__: kind for kind in (RepeatLast, SeasonalRepeat, Linear)
}


def to_dict(spec: Forecaster) -> dict[str, Any]:
    """The spec as plain data with its `kind`.

    >>> to_dict(RepeatLast(prediction_length=96))
    {'kind': 'RepeatLast', 'prediction_length': 96}
    """
    return {"kind": type(spec).__name__, **asdict(spec)}


def from_dict(data: Any, where: str = "spec") -> Forecaster:
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
    return kind(**values)

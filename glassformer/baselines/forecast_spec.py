"""What a simple forecaster is, as data."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.core.spec.checks import Part
from glassformer.errors import GlassformerError


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

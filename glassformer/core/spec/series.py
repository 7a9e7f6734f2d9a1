"""Specs of the inputs and heads of time series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glassformer.core.spec.text import HeadSpec, InputSpec
from glassformer.errors import InvalidValueError


@dataclass(frozen=True, kw_only=True)
class SeriesPatchesSpec(InputSpec):
    """Embedded patches of scaled series (B, time, channels); each channel is a separate sequence."""

    modality = "series"

    context_length: int
    patch_length: int
    stride: int
    channels: int
    position: Literal["learned", "sincos"] = "sincos"
    scaling: Literal["std", "mean", "none"] = "std"
    embedding: Literal["shared", "per_channel"] = "shared"
    prefix: int = 0
    dropout: float = 0.0
    covariates: int = 0  # known covariates, whose effect is removed from the past and added to the forecast

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_length < self.patch_length:
            expected = f"at least patch_length {self.patch_length}"
            raise InvalidValueError("context_length", self.context_length, expected)

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        return self.context_length, self.channels

    def num_tokens(self, shape: Sequence[int]) -> int:
        return self.prefix + self.num_patches

    @property
    def num_patches(self) -> int:
        return (self.context_length - self.patch_length) // self.stride + 1


@dataclass(frozen=True, kw_only=True)
class ForecastSpec(HeadSpec):
    """Forecast the next `prediction_length` values of each channel, or their distribution."""

    yields = "future values"

    prediction_length: int
    pool: Literal["flatten", "mean", "max", "first"] = "flatten"
    projection: Literal["shared", "per_channel"] = "shared"
    distribution: Literal["none", "student_t", "normal", "negative_binomial"] = "none"
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SeriesClassifySpec(HeadSpec):
    """Classify a series from the concatenated pooled vectors of its channels."""

    yields = "label"

    num_labels: int
    pool: Literal["mean", "max", "first"] = "mean"
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SeriesRegressSpec(HeadSpec):
    """Predict `num_targets` values per series, or their distribution, optionally within a range."""

    yields = "targets"

    num_targets: int
    pool: Literal["mean", "max", "first"] = "mean"
    distribution: Literal["none", "student_t", "normal", "negative_binomial"] = "none"
    output_range: tuple[float, float] | None = None
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PatchReconstructSpec(HeadSpec):
    """Reconstruct the values of each patch, for masked pretraining."""

    yields = "patches"

    dropout: float = 0.0

"""Job `forecast`: train a forecaster of time series."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from glassformer import baselines, schema
from glassformer.bundle import Bundle, build_from_spec, load
from glassformer.core import spec as specs
from glassformer.data.readers import require_file
from glassformer.data.row_errors import RowErrors
from glassformer.data.series import SeriesSet, read_series
from glassformer.data.sources import fingerprint_files
from glassformer.data.windows import (
    KnownCovariates,
    Scaler,
    SeriesSplit,
    SplitRange,
    Windows,
    format_value,
    low_variance_series,
    split_series,
)
from glassformer.errors import ConflictError, InvalidValueError, UnsupportedError
from glassformer.families.sidecars import JobInfo
from glassformer.messages import list_some, quantity
from glassformer.metrics.forecast import ForecastScores
from glassformer.schema import setting
from glassformer.training import sections
from glassformer.training.data_cache import DataCache
from glassformer.training.hardware import Hardware
from glassformer.training.job import Job
from glassformer.training.job_spec import JobSpec
from glassformer.training.learner import SeriesLearner, count_values, point_forecast
from glassformer.training.model_setup import (
    forecaster_epochs,
    forecaster_lengths,
    forecaster_options,
    new_model_spec,
    supported_options,
)
from glassformer.training.recipe import BatchLimits
from glassformer.training.sections import Paths, TableSection
from glassformer.training.task import Sample, ValidationResult, forecast_metrics

BASELINES = {"linear": "Linear", "repeat": "RepeatLast", "seasonal": "SeasonalRepeat"}
HORIZON = 96  # steps to forecast by default
CONTEXTS = (336, 192, 96, 64, 48, 32, 24, 16, 12, 8)
SAMPLE_STEPS, SAMPLE_DIGITS = 6, 4


@dataclass(frozen=True, kw_only=True)
class SeriesData(TableSection):
    """Time series."""

    train: Paths = sections.train_files(
        "CSV or Parquet, wide (a column per series) or long (unique_id, ds, y)", "file"
    )
    time_column: str | None = setting(
        None, "time column; null detects it, and numbers the rows if there is none", unit="name"
    )
    target_columns: Paths | None = setting(
        None, "columns to forecast; null takes all numeric columns", unit="names"
    )
    known_covariates: Paths | None = setting(
        None, "columns whose future is known, e.g. prices or holidays (futr_exog_list)", unit="names"
    )
    calendar_features: (
        tuple[Literal["hour", "day_of_week", "day_of_month", "day_of_year", "month"], ...] | None
    ) = setting(None, "known covariates computed from the time column, e.g. [hour, day_of_week]")
    context_length: int | None = setting(
        None,
        "number of past steps that the model reads; null chooses it",
        interval="[1, inf)",
        unit="time steps",
    )
    horizon: int | None = setting(
        None,
        "number of steps to forecast; null: 96, or as many as the validation split has rows",
        interval="[1, inf)",
        unit="time steps",
    )
    split: tuple[float, ...] = setting(
        (0.7, 0.1, 0.2),
        "training, validation and test split in time: fractions, or the rows where they end",
        interval="[0, inf)",
        unit="fractions or rows",
        length=3,
    )
    fill_missing: Literal["linear", "last"] | None = setting(
        None, "how to fill missing rows: linear interpolation or the last value; null rejects them"
    )


class ForecastJob(Job[SeriesData]):
    """Train a forecaster; its errors are compared with those of repeating the last value."""

    unit = "values"
    count = staticmethod(count_values)
    series: SeriesSet
    parts: SeriesSplit
    scaler: Scaler
    known = KnownCovariates()
    evaluated: JobInfo | None = None  # job.json of the model to evaluate

    def adopt_base_settings(self) -> None:
        self.evaluated = self.base_info if self.base is not None else None

    def prepare_data(self) -> None:
        data, self._naive = self.data, dict[int, ForecastScores]()
        if len(data.train) != 1:
            raise InvalidValueError("data.train", list(data.train), "one file that holds all series")
        path, problems = require_file(data.train[0]), RowErrors()
        target = data.target_columns or (self.evaluated.columns if self.evaluated else None)
        info = self.base_info
        self.known = KnownCovariates(
            columns=data.known_covariates or info.known_covariates or (),
            calendar=data.calendar_features or info.calendar_features or (),  # type: ignore[arg-type]
            mean=info.covariate_mean or (),
            std=info.covariate_std or (),
        )
        settings = data.time_column, target, data.split, data.fill_missing, self.known.columns, data.encoding
        cache = DataCache(
            self.folder / "data",
            lambda stamp: (fingerprint_files([path], stamp=stamp), *settings, *data.separators),
        )
        with cache.unchanged():  # only the note is cached: the series are read each time
            self.series = series = read_series(
                path,
                errors=problems,
                time=data.time_column,
                target=target,
                covariates=self.known.columns,
                fill=data.fill_missing or info.fill_missing or "error",  # type: ignore[arg-type]
                **data.table_options,
            )
            if self.known.calendar and series.step.kind == "numbers":
                raise UnsupportedError("a time column of numbers", "data.calendar_features", "use dates")
        self._split()
        for note in filter(None, (*series.notes, problems.summary())):
            self.log(note)
        self.facts |= {
            "series": len(series),
            "columns": list(series.names),
            "rows": len(series.values),
            "step": str(series.step),
        }
        weak = low_variance_series(series, self.parts.train, self.scaler) if self.evaluated is None else []
        if weak:
            self.log(
                f"{len(weak):,} of {len(series):,} series with less than 1% of the overall variance, e.g. "
                f"'{weak[0]}', will barely be learned; rescale them or train them separately"
            )
        names, rows = list_some(series.names), quantity(len(series.values), "row")
        self.log(f"{len(series):,} series of {names} with a step of {series.step}: {rows}")

    def _split(self) -> None:
        """Split the series in time and fit the scaler; in an evaluation, use the scaler of the model."""
        if self.evaluated is not None:
            everything = SplitRange(np.zeros_like(self.series.lengths), self.series.lengths)
            self.parts = SeriesSplit(everything, everything, everything)
            if self.evaluated.mean is not None and self.evaluated.std is not None:
                self.scaler = Scaler(self.evaluated.mean, self.evaluated.std)
                return
        else:
            self.parts = split_series(self.series, self.data.split)
        self.scaler = Scaler.fit(self.series, self.parts.train)
        if not self.known.mean:
            self.known = self.known.fit(self.series, self.parts.train)

    def windows(self, part: SplitRange) -> Windows:
        """Return all windows whose future lies in a split."""
        context, horizon = self._lengths()
        known = None
        if self.known.width:
            known = self.known.transform(self.series.covariates, self.series.stamps)
        return Windows(
            series=self.series,
            part=part,
            scaler=self.scaler,
            context=context,
            horizon=horizon,
            covariates=known,
        )

    def _lengths(self) -> tuple[int, int]:
        """Return context length and horizon of the recipe, else of the base model."""
        context, horizon = self.data.context_length, self.data.horizon
        if self.base is not None:
            context, horizon = forecaster_lengths(self.base, context)
        if horizon is None:
            horizon = max(1, min(HORIZON, self._valid_rows()))
        if context is None:
            rows = int((self.parts.train.end - self.parts.train.start).max())
            context = next((n for n in CONTEXTS if 4 * (n + horizon) <= rows), CONTEXTS[-1])
        return context, horizon

    def _valid_rows(self) -> int:
        """Return the rows of the longest series in the validation split."""
        return int((self.parts.valid.end - self.parts.valid.start).max())

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        (context, horizon), rows = self._lengths(), self._valid_rows()
        if self.base is None and horizon > rows:
            longest = f"at most {rows}, the rows of the validation split"
            raise InvalidValueError("data.horizon", horizon, longest, "set it to the steps to forecast")
        self.update_data(context_length=context, horizon=horizon)
        windows, channels = self.windows(self.parts.train), len(self.series.names)
        self.windows(self.parts.valid)  # fail now, not after training, if the validation split is too short
        reasons = [f"context length {context}, horizon {horizon}: {len(windows):,} training windows"]
        batch = max(1, min(128, max(8, 896 // channels), len(windows) // 10))
        if self.preset in BASELINES:
            self.fill_model({})
            steps = {} if self.preset == "linear" else {"max_steps": 1}
            return reasons + self.fill_training(windows, batch=batch, epochs=20, lr=1e-3, **steps)
        tuning, rows = self.fine_tuning, len(windows) * channels
        options = forecaster_options(context, rows)
        self.fill_model(supported_options(self.preset, options))
        epochs, flops = forecaster_epochs(
            hardware, {**options, **self.recipe.model.overrides}, rows, horizon, context
        )
        if not tuning and not self.has_length:
            reasons.append(f"{epochs:g} epochs")
            self.training_seconds = flops / hardware.measured_flops
        return reasons + self.fill_training(
            windows, batch=batch, epochs=5 if tuning else epochs, lr=1e-4 if tuning else 1e-3
        )

    def build(self) -> Bundle:
        (context, horizon), options, channels = self._lengths(), self.recipe.model, len(self.series.names)
        sizes = {"context_length": context, "prediction_length": horizon}
        if self.base is not None:
            patches = getattr(self.base.spec, "input", None)
            expected = getattr(patches, "covariates", 0)
            if expected != self.known.width:
                raise ConflictError(
                    ("data.known_covariates", "model.folder"),
                    f"there are {self.known.width} known covariates, the model reads {expected}",
                )
            if isinstance(patches, specs.SeriesPatchesSpec) and patches.channels != channels:
                raise ConflictError(
                    ("data.target_columns", "model.folder"),
                    f"the series has {channels} columns, the model reads {patches.channels}",
                )
            bundle = self.base
        elif options.preset in BASELINES:
            kind = BASELINES[options.preset]
            fixed = {name: n for name, n in sizes.items() if name in schema.field_types(schema.KINDS[kind])}
            spec = schema.from_dict({"kind": kind, **options.overrides, **fixed}, "model")
            bundle = Bundle(model=baselines.build_baseline(spec))
        else:
            fixed = {**sizes, "channels": channels}
            if self.known.width:
                fixed["covariates"] = self.known.width
            if len(supported_options(self.preset, fixed)) < len(fixed):
                raise self.unsupported_model(f"use patchtst, {', '.join(BASELINES)}")
            bundle = Bundle(model=build_from_spec(new_model_spec(options, fixed)))
        info = JobInfo(
            name=self.recipe.job,
            columns=tuple(self.series.names),
            mean=tuple(self.scaler.mean),
            std=tuple(self.scaler.std),
            context=context,
            horizon=horizon,
            frequency=str(self.series.step),
            fill_missing=self.data.fill_missing or self.base_info.fill_missing,
            known_covariates=self.known.columns or None,
            calendar_features=self.known.calendar or None,
            covariate_mean=self.known.mean or None,
            covariate_std=self.known.std or None,
        )
        return replace(bundle, job=info)

    def train_examples(self) -> Windows:
        return self.windows(self.parts.train)

    def valid_examples(self) -> Windows:
        return self.windows(self.parts.valid)

    def learner(self, model: Any) -> SeriesLearner:
        return SeriesLearner(model)

    def validate(self, learner: SeriesLearner, valid: Windows, device: torch.device) -> ValidationResult:
        """Compute the errors on all windows, in standardized units, also of repeating the last value."""
        batch = BatchLimits(batch_size=max(256, self.recipe.training.batch_size or 0))
        loss, scores = forecast_metrics(learner, valid, device, batch=batch)
        if id(valid) not in self._naive:  # the errors of repeating the last value
            spec = baselines.spec.RepeatLastSpec(prediction_length=valid.horizon)
            repeat = SeriesLearner(baselines.build_baseline(spec))
            scored = forecast_metrics(repeat, valid, torch.device("cpu"), batch=batch)
            self._naive[id(valid)] = scored[1]
        naive = self._naive[id(valid)]
        errors = {"mse": scores.mse, "mae": scores.mae, "repeat_mse": naive.mse, "repeat_mae": naive.mae}
        by_step = enumerate(zip(scores.mse_by_step, scores.mae_by_step, strict=True), 1)
        return ValidationResult(
            metrics={"loss": loss, **errors},
            samples=self._samples(learner, valid, device),
            tables={"steps": [{"step": n, "mse": mse, "mae": mae} for n, (mse, mae) in by_step]},
        )

    def _samples(self, learner: SeriesLearner, windows: Windows, device: torch.device) -> list[Sample]:
        """Return samples of a few windows spread over a split: recent past, actual future and forecast."""
        count = min(self.recipe.training.log_samples, len(windows))
        if not count:
            return []
        rows = np.linspace(0, len(windows) - 1, count).astype(np.int64)
        arrays = windows.batch(rows)
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        output = learner.forecast(tensors["past"], tensors.get("covariates"))
        forecast = point_forecast(output).cpu().numpy()
        name, std = self.series.names[-1], self.scaler.std[-1]

        def text(values: Any) -> str:
            numbers = self.scaler.inverse(values)[:, -1]
            return " ".join(format_value(float(number), std, SAMPLE_DIGITS) for number in numbers)

        return [
            Sample(
                source=f"{name} before {self.series.timestamp(int(start))}: {text(past[-SAMPLE_STEPS:])}",
                expected=text(future[:SAMPLE_STEPS]),
                got=text(predicted[:SAMPLE_STEPS]),
            )
            for start, past, future, predicted in zip(
                windows.starts(rows), arrays["past"], arrays["future"], forecast, strict=True
            )
        ]

    def test(self, folder: Path, device: torch.device) -> dict[str, float]:
        part = self.parts.test
        if not ((part.end - part.start) >= self._lengths()[1]).any():
            return {}
        learner = SeriesLearner(load(folder, device=device).model)
        result = self.validate(learner, self.windows(part), device)
        return {name: value for name, value in result.metrics.items() if name != "loss"}


JOB = JobSpec(
    name="forecast",
    summary="Train a forecaster of time series; it is compared with repeating the last value.",
    factory=ForecastJob,
    data=SeriesData,
    metrics=("loss", "mse", "mae"),
    metric="mse",
    preset="patchtst",
    batch_unit="examples",
    r_drop=False,
)

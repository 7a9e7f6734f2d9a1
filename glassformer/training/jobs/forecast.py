"""The job that trains time-series forecasters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer import baselines
from glassformer.bundle import Bundle, build_from_spec, load, save
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
    split_by_fraction,
    split_by_rows,
)
from glassformer.errors import ConflictError, InvalidValueError, UnsupportedError
from glassformer.families.sidecars import JobInfo
from glassformer.messages import list_some
from glassformer.training.data_cache import DataCache, no_log
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.learner import SeriesLearner, count_values, point_forecast
from glassformer.training.model_setup import TIME_BUDGET, new_model_spec, supported_options
from glassformer.training.recipe import SeriesData
from glassformer.training.task import LearnerTask, Sample, ValidationResult, forecast_metrics

BASELINES = {"linear": "Linear", "repeat": "RepeatLast", "seasonal": "SeasonalRepeat"}
CONTEXTS = (336, 192, 96, 64, 48, 32, 24, 16, 12, 8)
SMALL_DATA = 1_000_000  # training values below which a small model does better
SATURATING_WIDTH = 128  # model width from which the hardware is fully used
SAMPLE_STEPS, SAMPLE_DIGITS = 6, 4


class ForecastJob(Job[SeriesData]):
    """Train a forecaster; evaluated with MSE and MAE, compared with repeating the last value."""

    default_preset = "patchtst"
    series: SeriesSet
    parts: SeriesSplit
    scaler: Scaler
    known = KnownCovariates()
    evaluated: JobInfo | None = None  # job.json of the model to evaluate

    def adopt_base_settings(self) -> None:
        self.evaluated = self.base_info if self.base is not None else None

    def prepare_data(self) -> None:
        data = self.data
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
        settings = (
            data.time_column,
            target,
            data.split,
            data.fill_missing,
            self.known.columns,
            data.encoding,
        )
        cache = DataCache(
            self.folder / "data", lambda stamp: (fingerprint_files([path], stamp=stamp), *settings)
        )
        known = cache.load(no_log)  # only the note is cached: the series are read each time
        if known is None:
            cache.start()
        self.series = series = read_series(
            path,
            errors=problems,
            time=data.time_column,
            target=target,
            covariates=self.known.columns,
            fill=data.fill_missing or "error",
            encoding=data.encoding,
        )
        if self.known.calendar and series.step.kind == "numbers":
            raise UnsupportedError("a time column of numbers", "data.calendar_features", "use dates")
        if known is None:
            cache.commit()
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
                f"{len(weak):,} of {len(series):,} series, e.g. '{weak[0]}', have less than a hundredth of "
                "the overall variance and will hardly be learned; rescale them or train them separately"
            )
        names, rows = list_some(series.names), f"{len(series.values):,} rows"
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
        if context is None:
            rows = int((self.parts.train.end - self.parts.train.start).max())
            context = next((n for n in CONTEXTS if 4 * (n + horizon) <= rows), CONTEXTS[-1])
        return context, horizon

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        context, horizon = self._lengths()
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
        options = choose_options(context, rows)
        self.fill_model(supported_options(self.preset, options))
        epochs, reason = choose_epochs(
            hardware, {**options, **self.recipe.model.overrides}, rows, horizon, context
        )
        if not tuning and not self.has_length:
            reasons.append(reason)
        return reasons + self.fill_training(
            windows, batch=batch, epochs=5 if tuning else epochs, lr=1e-4 if tuning else 1e-3
        )

    def build(self) -> Bundle:
        """Build or load the model with its columns and scaler, as it will be saved."""
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
            kind = baselines.KINDS[BASELINES[options.preset]]
            fixed = {name: n for name, n in sizes.items() if name in kind.__dataclass_fields__}
            spec = {"kind": kind.kind, **options.overrides, **fixed}
            bundle = Bundle(model=baselines.build_baseline(baselines.from_dict(spec, "model")))
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
            known_covariates=self.known.columns or None,
            calendar_features=self.known.calendar or None,
            covariate_mean=self.known.mean or None,
            covariate_std=self.known.std or None,
        )
        return replace(bundle, job=info)

    def task(self) -> LearnerTask:
        bundle = self.build()
        learner = SeriesLearner(bundle.model)
        return LearnerTask(
            learner=learner,
            train=self.windows(self.parts.train),
            unit="values",
            count=count_values,
            metric="mse",
            validate=self.validation(learner, self.windows(self.parts.valid)),
            save=partial(save, bundle),
        )

    def validation(
        self, learner: SeriesLearner, windows: Windows
    ) -> Callable[[torch.device], ValidationResult]:
        """Return a function that computes the errors on all windows, in standardized units.

        The errors of repeating the last value are included for comparison.
        """
        batch = max(256, self.recipe.training.batch or 0)
        repeat = SeriesLearner(
            baselines.build_baseline(baselines.spec.RepeatLastSpec(prediction_length=windows.horizon))
        )
        _, naive = forecast_metrics(repeat, windows, torch.device("cpu"), batch=batch)

        def validate(device: torch.device) -> ValidationResult:
            loss, scores = forecast_metrics(learner, windows, device, batch=batch)
            errors = {"mse": scores.mse, "mae": scores.mae, "repeat_mse": naive.mse, "repeat_mae": naive.mae}
            by_step = enumerate(zip(scores.mse_by_step, scores.mae_by_step, strict=True), 1)
            return ValidationResult(
                metrics={"loss": loss, **errors},
                samples=self._samples(learner, windows, device),
                tables={"steps": [{"step": n, "mse": mse, "mae": mae} for n, (mse, mae) in by_step]},
            )

        return validate

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
        if not ((part.end - part.start) >= self.data.horizon).any():
            return {}
        learner = SeriesLearner(load(folder, device=device).model)
        result = self.validation(learner, self.windows(part))(device)
        return {name: value for name, value in result.metrics.items() if name != "loss"}


def split_series(series: SeriesSet, split: tuple[float, ...]) -> SeriesSplit:
    """Split series in time, by fractions that add up to one or at row numbers."""
    if max(split) <= 1:
        return split_by_fraction(series, *split)
    return split_by_rows(series, *(int(end) for end in split))


def forecaster_lengths(bundle: Bundle, context: int | None) -> tuple[int | None, int]:
    """Return context length and horizon of a saved forecaster.

    context: returned if the model works with any context length.
    """
    spec: Any = bundle.spec
    if isinstance(spec, specs.EncoderOnlySpec) and isinstance(spec.input, specs.SeriesPatchesSpec):
        if isinstance(spec.head, specs.ForecastSpec):
            return spec.input.context_length, spec.head.prediction_length
    elif hasattr(spec, "prediction_length"):
        known = bundle.job.context
        return getattr(spec, "context_length", context or known), spec.prediction_length
    raise UnsupportedError("the model in model.folder", "forecasting")


def choose_options(context: int, rows: int) -> dict[str, Any]:
    """Choose PatchTST options. rows: number of training windows, each column counted."""
    patch = 16 if context >= 64 else max(2, context // 6)
    options: dict[str, Any] = {"patch_length": patch, "stride": max(1, patch // 2), "num_layers": 3}
    if context <= patch:
        options["norm"] = "layer"  # batch norm fails on a single window with a single patch
    if rows < SMALL_DATA:
        dropouts = dict.fromkeys(("dropout", "ffn_dropout", "embed_dropout"), 0.3)
        return options | {"d_model": 16, "num_heads": 4, "d_ff": 128, **dropouts}
    return options | {"d_model": 128, "num_heads": 16, "d_ff": 256}


def choose_epochs(
    hardware: Hardware, options: Mapping[str, Any], rows: int, horizon: int, context: int
) -> tuple[float, str]:
    """Return the number of epochs that fits the time budget (1 to 30), and the reason."""
    patches = (context - options["patch_length"]) // options["stride"] + 1
    layer = 4 * options["d_model"] ** 2 + 2 * options["d_model"] * options["d_ff"]
    weights = patches * (options["num_layers"] * layer + options["d_model"] * horizon)
    idle = max(
        1.0, SATURATING_WIDTH / options["d_model"]
    )  # small matrix multiplications do not saturate the hardware
    flops = 6 * weights * rows * idle  # per epoch
    epochs = float(f"{min(30.0, max(1.0, TIME_BUDGET * hardware.flops / flops)):.2g}")
    return epochs, f"{epochs:g} epochs, {hardware.estimate(epochs * flops)}"

"""The view of a forecaster, and how series are prepared. C channels, N and T steps, Q quantiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.observe import Record
from glassformer.data.windows import Doubles
from glassformer.errors import MissingValueError, NonFiniteError, ShapeError
from glassformer.interpret import schema
from glassformer.interpret.prepared_input import PastValues, PreparedInput
from glassformer.interpret.schema import Intervention, SeriesColumns, TraceInput
from glassformer.interpret.tokens import series_sequence
from glassformer.interpret.views.base import Result, View
from glassformer.processors.series import (
    SeriesProcessor,
    check_columns,
    forecast_steps,
    scale_of,
    series_preparation,
)
from glassformer.tasks.forecasting import LEVELS, quantiles


def prepare_series(bundle: Bundle, input: TraceInput, kind: schema.Kind) -> PreparedInput:
    """Prepare a series that is classified."""
    spec: Any = bundle.spec
    processor, names = SeriesProcessor(bundle), column_names(bundle)
    inputs = processor.collate([processor.load(_series_values(bundle, names, input))])
    if processor.preparation.difference:
        names += tuple(f"difference of {name}" for name in names)
    sequence = series_sequence(spec.input)
    return PreparedInput(kind=kind, input=input, sequences=(sequence,), inputs={**inputs}, rows=names)


def column_names(bundle: Bundle) -> tuple[str, ...]:
    """Return the columns that a model of series reads; numbers if the folder does not name them."""
    channels = series_preparation(bundle).channels
    return bundle.job.columns or tuple(f"series {n + 1}" for n in range(channels))


def _past_values(bundle: Bundle, input: TraceInput) -> PastValues:
    assert input.series is not None
    holdout = input.series.holdout or 0
    names = bundle.job.columns or tuple(input.series.columns)
    check_columns(bundle, names)
    values = _series_values(bundle, names, input)
    context, horizon = forecast_steps(bundle)
    context, end = context or 1, len(values) - holdout
    if end < context:
        raise ShapeError("the series", [end], f"at least {context} steps before the holdout")
    read = values[end - context : end]
    return PastValues(
        names=names,
        values=read,
        truth=values[end : end + horizon] if holdout else None,
        scale=scale_of(bundle, read),
        horizon=horizon,
    )


def _series_values(bundle: Bundle, names: Sequence[str], input: TraceInput) -> Doubles:
    """Return the values of the named columns: (rows, C)."""
    assert input.series is not None
    columns = input.series.columns
    for name in names:
        if name not in columns:
            raise MissingValueError(f"the column '{name}'", f"by {bundle.display_name}")
        if len(columns[name]) != len(columns[names[0]]):
            raise ShapeError(f"the column '{name}'", [len(columns[name])], f"{len(columns[names[0]])} values")
    values = np.array([columns[name] for name in names], np.float64).T
    if not np.isfinite(values).all():
        raise NonFiniteError("the series")
    return values


def waves(bundle: Bundle) -> SeriesColumns:
    """Create daily plus weekly sine waves in the units of each column; the last steps are held out."""
    read: Any = getattr(bundle.spec, "input", None)
    names, job = column_names(bundle), bundle.job
    mean, std = job.mean or [0.0] * len(names), job.std or [1.0] * len(names)
    horizon = getattr(bundle.spec.head, "prediction_length", 0)
    steps = range(read.context_length + horizon)
    columns = {
        name: tuple(
            round(mean[n] + std[n] * (math.sin(t * math.pi / 12 + n) + 0.4 * math.sin(t * math.pi / 84)), 4)
            for t in steps
        )
        for n, name in enumerate(names)
    }
    return SeriesColumns(columns=columns, holdout=horizon)


class ForecastView(View):
    """A forecaster."""

    kind, needs = "forecast", ("series",)

    def prepare(self, input: TraceInput, interventions: Sequence[Intervention] = ()) -> PreparedInput:
        spec: Any = self.bundle.spec
        past = _past_values(self.bundle, input)
        values = torch.from_numpy(past.scale.transform(past.values[None])).to(self.bundle.device)  # (1, T, C)
        return PreparedInput(
            kind=self.kind,
            input=input,
            sequences=(series_sequence(spec.input),),
            inputs={"inputs": values},
            rows=past.names,
            past=past,
        )

    def outcome(self, prepared: PreparedInput, record: Record) -> Result:
        """Convert the output (1, N, C) to a forecast in the units of the columns, with tensors (C, steps)."""
        assert prepared.past is not None
        past, output = prepared.past, record.output
        point = output if isinstance(output, Tensor) else output.mean
        arrays = {
            "past": past.values.T,
            "forecast": past.scale.inverse(point[0].float().cpu().numpy()).T,
            "persistence": np.repeat(past.values[-1:].T, past.horizon, 1),
        }
        if past.truth is not None:
            arrays["truth"] = past.truth.T
        if not isinstance(output, Tensor):
            values = quantiles(output, LEVELS)[:, 0].float().cpu().numpy()  # (Q, N, C)
            arrays["quantiles"] = past.scale.inverse(values).transpose(2, 0, 1)
        outcome = schema.ForecastOutcome(
            columns=past.names,
            horizon=past.horizon,
            past=len(past.values),
            quantiles=tuple(LEVELS) if "quantiles" in arrays else None,
            names=schema.ForecastTensors(**{name: f"forecast.{name}" for name in arrays}),
        )
        tensors = {f"forecast.{name}": torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return outcome, tensors

    def scores(self, prepared: PreparedInput, record: Record, inputs: Mapping[str, Any]) -> Tensor:
        """Return the forecasts (N, C * steps), one column after another, in standard deviations."""
        model: Any = self.bundle.model
        output = model(**inputs)
        point: Tensor = output if isinstance(output, Tensor) else output.mean
        return point.float().transpose(1, 2).flatten(1)

    def example(self) -> TraceInput:
        return TraceInput(series=waves(self.bundle))


VIEWS = (ForecastView,)

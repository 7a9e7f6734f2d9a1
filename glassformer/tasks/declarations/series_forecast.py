"""Forecast time series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from glassformer import tasks
from glassformer.tasks.registry import (
    COMMAND_ONLY,
    SERIES_TABLE,
    TaskOptions,
    TaskResult,
    TaskSpec,
    as_text,
    setting,
)

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.forecasting import Forecast

OF_A_FILE = {**COMMAND_ONLY, "of_file": True}
Fill = Literal["error", "linear", "last", "ignore"]


@dataclass(frozen=True, kw_only=True)
class ForecastOptions(TaskOptions):
    time: str | None = setting(
        None,
        "Timestamp column (default: detected, or the rows are numbered if there is none).",
        **OF_A_FILE,
    )
    columns: Sequence[str] | None = setting(
        None,
        "Columns to forecast, e.g. en,de (default: those that the model was trained on, else all numbers).",
        separated=True,
        **OF_A_FILE,
    )
    encoding: str = setting(
        "utf-8", "Encoding of text files, e.g. cp949 for a CSV from Korean Excel.", **OF_A_FILE
    )
    delimiter: str | None = setting(
        None, "Character between the cells of a CSV file, e.g. ';' (default: detected).", **OF_A_FILE
    )
    decimal: str | None = setting(
        None, "Decimal separator of the numbers in a table (default: detected).", **OF_A_FILE
    )
    fill: Fill | None = setting(None, "How to handle missing values (default: as in training, else error).")
    quantile_levels: Sequence[float] = setting(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        "Quantile levels, if the model predicts a distribution.",
        interval="[0.001, 0.999]",
        separated=True,
        max_items=19,
    )


@dataclass(frozen=True, kw_only=True)
class ForecastResult(TaskResult):
    """The forecast of a series. quantiles: predicted quantiles by column and level.

    warnings: e.g. about repaired values.
    """

    columns: list[str]
    timestamps: list[str]
    values: dict[str, list[float]]
    quantiles: dict[str, dict[str, list[float]]] | None
    warnings: list[str]

    @classmethod
    def of(cls, output: Forecast) -> ForecastResult:
        levels = output.quantile_levels  # none if the model predicts no distribution
        quantiles = {
            name: {f"{level:g}": output.quantiles[q, 0, :, n].tolist() for q, level in enumerate(levels)}
            for n, name in enumerate(output.names)
        }
        return cls(
            columns=list(output.names),
            timestamps=[output.timestamp(0, step) for step in range(output.values.shape[1])],
            values={name: output.values[0, :, n].tolist() for n, name in enumerate(output.names)},
            quantiles=quantiles if levels else None,
            warnings=list(output.notes),
        )

    @classmethod
    def column_types(cls, bundle: Bundle, options: ForecastOptions) -> Mapping[str, type]:
        return {"forecast": str, "quantiles": str}

    def cells(self) -> Mapping[str, object]:
        return {"forecast": as_text(self.values), "quantiles": as_text(self.quantiles)}


def accepts(spec: Any) -> bool:
    return bool(spec.yields == "future values")


TASK = TaskSpec(
    name="forecast",
    summary="Forecast time series.",
    description="Quantile columns such as OT_0.1 are written if the model predicts a distribution. By "
    "default all columns that the model was trained on are forecast.",
    lines="a CSV table of timestamps, means and quantiles",
    inputs=SERIES_TABLE,
    argument="series",
    options=ForecastOptions,
    result=ForecastResult,
    accepts=accepts,
    make=lambda bundle, options: tasks.Forecaster(bundle, **options.kwargs()),
    returns="Forecast",
    view=lambda spec: not (spec.inputs() and spec.inputs()[0].covariates),
    examples=("electricity.csv",),
    metric="mse",
    job="forecast",
)

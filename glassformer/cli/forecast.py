"""glassformer forecast MODEL DATA: forecast time series, as a table and a figure."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from glassformer.cli.console import message, print_json
from glassformer.cli.lines import check_output_file
from glassformer.cli.options import (
    OUTPUT_PANEL,
    Columns,
    Device,
    Dtype,
    Json,
    Model,
    Overwrite,
    Threads,
    load_model,
)
from glassformer.errors import ConflictError, InvalidValueError

if TYPE_CHECKING:
    from glassformer.tasks.forecasting import Forecast


def forecast(
    model: Model,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="CSV or Parquet file of time series.")],
    time: Annotated[str | None, typer.Option(help="Timestamp column.", show_default=False)] = None,
    columns: Columns = None,
    fill: Annotated[
        Literal["refuse", "linear", "last", "ignore"], typer.Option(help="How to handle missing values.")
    ] = "refuse",
    levels: Annotated[
        str, typer.Option(help="Quantile levels, separated by commas.")
    ] = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a CSV file, and a figure with the same name.",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Write a PNG figure.", show_default=False, rich_help_panel=OUTPUT_PANEL),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    device: Device = "auto",
    dtype: Dtype = None,
    threads: Threads = None,
) -> None:
    """Forecast time series: a CSV of timestamps (ds), means and quantiles.

    Quantile columns such as OT_0.1 are written if the model predicts a
    distribution. By default all columns that the model was trained on are
    forecast.
    """
    quantiles = _parse_levels(levels)
    figure = picture or (out.with_suffix(".png") if out is not None else None)
    for path in (out, figure):
        if path is not None:
            check_output_file(path, overwrite=overwrite, inputs=[data])
    if out is not None and out == figure:
        raise ConflictError(names=("out", "picture"), reason="both name the same file")
    bundle = load_model(model, device=device, dtype=dtype, threads=threads)
    from glassformer.tasks.forecasting import Forecaster

    names = [name.strip() for name in columns.split(",")] if columns else None
    task = Forecaster(bundle, time=time, columns=names, fill=fill, levels=quantiles)
    began = perf_counter()
    result = task(data)
    seconds = perf_counter() - began
    for note in result.notes:
        message(note)
    if as_json:
        rows = [dict(zip(result.header(), row, strict=True)) for row in result.rows()]
        print_json({"notes": list(result.notes), "rows": rows, "seconds": seconds})
    if out is not None or not as_json:
        _write_table(result, out)
    if figure is not None:
        from glassformer.plotting import save
        from glassformer.tasks.forecast_plot import plot_forecast

        save(plot_forecast(result), figure)
        message(f"wrote {figure}" + (", a figure of the first series" if len(result.ids) > 1 else ""))


def _parse_levels(text: str) -> list[float]:
    try:
        return [float(level) for level in text.split(",") if level.strip()]
    except ValueError:
        raise InvalidValueError(
            name="levels", value=text, expected="numbers between 0 and 1, e.g. 0.1,0.5,0.9"
        ) from None


def _write_table(result: Forecast, out: Path | None) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.header())
    writer.writerows(result.formatted_rows())
    if out is None:
        sys.stdout.write(text.getvalue())
        return
    from glassformer.weights.atomic_write import atomic_write

    with atomic_write(out) as file:
        file.write(text.getvalue().encode())
    message(f"wrote {result.values.shape[1]:,} steps of {len(result.ids):,} series to {out}")

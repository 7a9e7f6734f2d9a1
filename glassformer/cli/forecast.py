"""Run a forecast: a table of time series to a table and a figure."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.cli.console import message, print_json
from glassformer.cli.lines import check_output_file
from glassformer.cli.options import DeviceOptions, Json, Overwrite, output_option
from glassformer.errors import ConflictError, InvalidValueError
from glassformer.messages import quantity

if TYPE_CHECKING:
    from glassformer.cli.tasks import TaskRun
    from glassformer.tasks.forecasting import Forecast


@dataclass(kw_only=True)
class ForecastOutputOptions(DeviceOptions):
    """Output of a forecast."""

    out: Annotated[
        Path | None,
        output_option(
            help="Write the forecast to this CSV file (separators as in the input), and a plot next to it."
        ),
    ] = None
    figure: Annotated[
        Path | None,
        output_option(help="Plot the forecast to this PNG file."),
    ] = None
    overwrite: Overwrite = False
    as_json: Json = False


def run_forecast(run: TaskRun, options: ForecastOutputOptions) -> None:
    """Forecast the series of a file; print a CSV table, or write it and a figure."""
    if len(run.inputs) != 1:
        raise InvalidValueError("DATA", list(run.inputs), "one file")
    data, out = Path(run.inputs[0]), options.out
    figure = options.figure or (out.with_suffix(".png") if out is not None else None)
    for path in (out, figure):
        if path is not None:
            check_output_file(path, overwrite=options.overwrite, inputs=[data])
    if out is not None and out == figure:
        raise ConflictError(names=("out", "figure"), reason="both name the same file")
    bundle = options.load(run.model)
    task: Any = run.spec.make(bundle, run.options(bundle, brief=True))
    start = perf_counter()
    result = task(data)
    seconds = perf_counter() - start
    for note in result.notes:
        message(note)
    if options.as_json:
        rows = [dict(zip(result.header(), row, strict=True)) for row in result.rows()]
        print_json({"warnings": list(result.notes), "rows": rows, "seconds": seconds})
    if out is not None or not options.as_json:
        _write_table(result, out)
    if figure is not None:
        from glassformer.plotting import save
        from glassformer.tasks.forecast_plot import plot_forecast

        save(plot_forecast(result), figure)
        message(f"wrote {figure}" + (", a figure of the first series" if len(result.ids) > 1 else ""))


def _write_table(result: Forecast, out: Path | None) -> None:
    text = io.StringIO()
    delimiter, decimal = (",", ".") if out is None else result.past.separators
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(result.header())
    writer.writerows(result.formatted_rows(decimal))
    if out is None:
        sys.stdout.write(text.getvalue())
        return
    from glassformer.weights.atomic_write import write_file

    write_file(out, text.getvalue().encode())
    message(f"wrote {quantity(result.values.shape[1], 'step')} of {len(result.ids):,} series to {out}")

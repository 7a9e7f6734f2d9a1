"""glassformer forecast MODEL DATA: how the series of a file go on, as a table and a picture."""

from __future__ import annotations

import csv
import io
import sys
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from glassformer.cli.asking import Asked, asking
from glassformer.cli.taken import say
from glassformer.cli.target import Overwrite, check_target
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.tasks.forecast import Forecast


class Filling(StrEnum):
    """What becomes of missing values and rows."""

    refuse = "refuse"
    linear = "linear"
    last = "last"
    ignore = "ignore"


@asking(Asked)
def forecast(
    asked: Asked,
    data: Path = typer.Argument(..., metavar="DATA", help="A CSV or Parquet file of series."),
    out: Path | None = typer.Option(
        None, help="Write the table to this CSV file, and a picture beside it.", show_default=False
    ),
    picture: Path | None = typer.Option(None, help="Write the picture to this PNG file.", show_default=False),
    overwrite: Overwrite = False,
    time: str | None = typer.Option(None, help="The column of time stamps.", show_default=False),
    columns: str | None = typer.Option(
        None, help="The columns to tell, as a,b; by itself those the model learned.", show_default=False
    ),
    fill: Filling = typer.Option(Filling.refuse, help="What becomes of missing values and rows."),
    levels: str = typer.Option("0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9", help="The quantiles to tell."),
) -> None:
    """Tell how the series of a file go on: a CSV of time stamps (ds), expected values, and quantiles.

    Quantile columns (OT_0.1, OT_0.9) are there where the model tells a distribution. The table goes to
    standard output, or with --out to a file with a picture of the same name beside it.
    """
    wanted = _numbers(levels)
    drawn = picture or (out.with_suffix(".png") if out is not None else None)
    for target, option in ((out, "--out"), (drawn, "--picture")):
        if target is not None:
            check_target(target, option, overwrite=overwrite, read=[data])
    if out is not None and out == drawn:
        raise GlassformerError(f"'{out}' would be the table and the picture; give two names")
    bundle = asked.bundle()
    from glassformer.tasks.forecast import forecast as foretold

    began = perf_counter()
    told = foretold(
        bundle,
        data,
        time=time,
        columns=[name.strip() for name in columns.split(",")] if columns else None,
        fill=fill.value,
        levels=wanted,
    )
    for note in told.notes:
        say(note)
    _tell(told, out, perf_counter() - began if asked.as_json else None)
    if drawn is not None:
        _draw(told, drawn)


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise GlassformerError(
            f"--levels is '{text}'; give numbers between 0 and 1, as 0.1,0.5,0.9"
        ) from None


def _tell(told: Forecast, out: Path | None, seconds: float | None) -> None:
    """The table, or where `seconds` are given one JSON document."""
    if seconds is not None:
        from glassformer.cli.screen import print_json

        header = told.header()
        print_json(
            {
                "notes": list(told.notes),
                "rows": [dict(zip(header, row, strict=True)) for row in told.rows()],
                "seconds": seconds,
            }
        )
    if seconds is not None and out is None:
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(told.header())
    writer.writerows(told.texts())
    if out is None:
        sys.stdout.write(text.getvalue())
        return
    from glassformer.weights.replacing import replacing

    with replacing(out) as file:
        file.write(text.getvalue().encode())
    say(f"wrote {told.values.shape[1]:,} steps of {len(told.ids):,} series to {out}")


def _draw(told: Forecast, path: Path) -> None:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise GlassformerError("drawing needs matplotlib; run `pip install matplotlib`") from None
    from glassformer.plotting import save
    from glassformer.tasks.forecast_plot import plot_forecast

    save(plot_forecast(told), path)
    say(f"drew {'the first of them' if len(told.ids) > 1 else 'it'} in {path}")

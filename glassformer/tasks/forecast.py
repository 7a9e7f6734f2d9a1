"""Tell how series of numbers go on: from a CSV or Parquet file, or from a table in memory.

Letters: S series, N steps told, C columns, Q quantiles.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.row_errors import RowErrors
from glassformer.data.series import Fill, SeriesSet, read_series
from glassformer.data.stable_stats import Doubles, format_value, mean_and_std
from glassformer.data.timestamps import advance, format_timestamp
from glassformer.errors import GlassformerError
from glassformer.tasks.finite import finite
from glassformer.tasks.quantiles import LEVELS, check_levels, quantiles
from glassformer.tasks.reading import device_of, model_of, named
from glassformer.tasks.units import check_columns, scale_of

TOGETHER = 256  # series told at a time


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """How each series goes on, in its own units.

    values (S, N, C): what is expected; quantiles (Q, S, N, C) at `levels`, where the model says how sure it
    is, else none. stamps (S, N): when. past: the series it was told from. notes: what a person should know.
    """

    names: tuple[str, ...]
    ids: tuple[str, ...]
    stamps: NDArray[np.int64]
    values: Doubles
    levels: tuple[float, ...]
    quantiles: Doubles
    past: SeriesSet
    context: int
    notes: tuple[str, ...]

    def when(self, series: int, step: int) -> str:
        """The time stamp of a step."""
        return format_timestamp(
            int(self.stamps[series, step]), self.past.step.kind != "numbers", self.past.step
        )

    def header(self) -> list[str]:
        """The columns of the table: [unique_id,] ds, the series' own, and each at every level."""
        first = ["unique_id"] if len(self.ids) > 1 else []
        return [
            *first,
            "ds",
            *self.names,
            *(f"{name}_{level:g}" for name in self.names for level in self.levels),
        ]

    def rows(self) -> Iterator[list[str | float]]:
        """The table's rows, in the order of the series and of time."""
        for s, one in enumerate(self.ids):
            for n in range(self.values.shape[1]):
                first: list[str | float] = [one] if len(self.ids) > 1 else []
                sure = self.quantiles[:, s, n].T.reshape(-1).tolist()  # (C * Q,)
                yield [*first, self.when(s, n), *self.values[s, n].tolist(), *sure]

    def texts(self) -> Iterator[list[str]]:
        """The rows as they are written: seven digits of a column's swing, however high it rides."""
        rows = self.rows()
        for end in self.past.ends:
            _, swing = mean_and_std(self.past.values[end - self.context : end])  # (1, C)
            swings = [*swing[0].tolist(), *np.repeat(swing[0], len(self.levels)).tolist()]
            for row in islice(rows, self.values.shape[1]):
                words, numbers = row[: -len(swings)], row[-len(swings) :]
                yield [
                    *map(str, words),
                    *(format_value(float(x), swing) for x, swing in zip(numbers, swings, strict=True)),
                ]


def forecast(
    bundle: Bundle,
    series: str | PathLike[str] | Any,
    *,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    fill: Fill = "refuse",
    levels: Sequence[float] = LEVELS,
) -> Forecast:
    """How the series in a file, or in a table in memory (a data frame, or a dict of columns), go on.

    The columns are those the model was trained on, unless others are named; the scale it learned is put on
    and taken off again, and where it learned none the units make no difference (`verbs.units`). Quantiles
    come from a model that tells a distribution; one that tells single values gives those alone, and a note
    says so.
    """
    levels = check_levels(levels)
    context, horizon = steps_of(bundle)
    job = bundle.job
    wanted = columns if columns is not None else job.columns
    past, notes = _read(series, time, wanted, fill)
    check_columns(bundle, past.names)
    context = context or job.context or 1
    short = np.flatnonzero(past.lengths < context)
    if short.size:
        raise GlassformerError(
            f"the series '{past.ids[int(short[0])]}' has {int(past.lengths[short[0]]):,} rows, and "
            f"{named(bundle)} reads the last {context:,}; give a longer one"
        )
    step = str(past.step)
    if job.frequency not in (None, step):
        notes.append(f"the model learned steps of {job.frequency}, and these are of {step}")
    values, sure = _told(bundle, past, context, levels)
    if not len(sure):
        levels = ()
        notes.append("the model tells single values and not how sure it is, so there are no quantiles")
    ends = past.stamps[past.ends - 1]
    stamps = [[advance(int(end), past.step, n + 1) for n in range(horizon)] for end in ends]
    return Forecast(
        names=past.names,
        ids=past.ids,
        stamps=np.array(stamps, np.int64),
        values=values,
        levels=levels,
        quantiles=sure,
        past=past,
        context=context,
        notes=tuple(notes),
    )


def steps_of(bundle: Bundle) -> tuple[int | None, int]:
    """How many steps a forecaster reads (None: any number), and how many it tells."""
    spec: Any = bundle.spec
    if isinstance(spec, specs.EncoderOnly):
        if isinstance(spec.input, specs.SeriesPatches) and isinstance(spec.head, specs.Forecast):
            return spec.input.context_length, spec.head.prediction_length
    elif hasattr(spec, "prediction_length"):
        return getattr(spec, "context_length", getattr(spec, "season", None)), spec.prediction_length
    raise GlassformerError(f"{named(bundle)} forecasts nothing; give one that was trained to")


@torch.inference_mode()
def _told(bundle: Bundle, past: SeriesSet, context: int, levels: Sequence[float]) -> tuple[Doubles, Doubles]:
    """Expected values (S, N, C) and quantiles (Q, S, N, C), in the series' own units."""
    model = model_of(bundle)
    device = device_of(bundle)
    points, sure = list[Doubles](), list[Doubles]()
    for at in range(0, len(past), TOGETHER):
        ends = past.ends[at : at + TOGETHER]
        rows = past.values[ends[:, None] + np.arange(-context, 0)]  # (B, context, C)
        scale = scale_of(bundle, rows)
        told = model(torch.from_numpy(scale.transform(rows)).to(device))
        if isinstance(told, Tensor):
            points.append(scale.inverse(told.float().cpu().numpy()))
            continue
        points.append(scale.inverse(finite(bundle, told.mean.float().cpu().numpy())))
        sure.append(scale.inverse(quantiles(told, levels).float().cpu().numpy()))
    values = finite(bundle, np.concatenate(points))
    if not sure:
        return values, np.empty((0, *values.shape))
    return values, finite(bundle, np.concatenate(sure, 1))


def _read(
    series: Any, time: str | None, columns: Sequence[str] | None, fill: Fill
) -> tuple[SeriesSet, list[str]]:
    errors = RowErrors()
    name = None if isinstance(series, str | PathLike) else "the table"
    with _as_file(series) as path:
        past = read_series(path, errors=errors, time=time, target=columns, fill=fill, display_name=name)
    return past, [note for note in (*past.notes, errors.summary()) if note]


@contextmanager
def _as_file(series: Any) -> Iterator[Any]:
    """A file as it is; a table in memory written out, so that it is read with the same care."""
    if isinstance(series, str | PathLike):
        yield series
        return
    index: Any = getattr(series, "index", None)
    dated = type(index).__name__ in ("DatetimeIndex", "PeriodIndex")
    try:
        names = [str(name) for name in getattr(series, "columns", series)]
        table = {name: list(series[name]) for name in names}
    except (TypeError, KeyError, IndexError):
        raise GlassformerError(
            f"give a file of series, a data frame or a dict of columns, not {type(series).__name__}"
        ) from None
    if dated:
        table = {"ds": [str(stamp) for stamp in index], **table}
    if not table or len({len(column) for column in table.values()}) != 1:
        raise GlassformerError("the table's columns must be as long as each other, and at least one")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
        yield path

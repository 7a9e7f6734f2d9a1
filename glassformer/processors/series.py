"""Read time series and convert them to model inputs: labeled series of any length, and the past of forecasts.

A model trained on scaled values stores the scale in job.json. A model that normalizes each window adds a
small epsilon to the variance; if the values are small (returns, rates), the epsilon would dominate. So each
window is scaled to unit size first, and the forecast does not depend on the units.

Letters: S series, B windows or series, T steps read, N steps predicted, C columns or channels.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.bundle import Bundle
from glassformer.core.inputs import SeriesInputs
from glassformer.data.labeled_series import SeriesPreparation, Values, read_labeled_series
from glassformer.data.readers import UTF8, TableOptions, check_encoding
from glassformer.data.row_errors import RowErrors
from glassformer.data.series import Fill, SeriesSet, read_series
from glassformer.data.timestamps import advance
from glassformer.data.windows import Doubles, KnownCovariates, mean_and_std
from glassformer.errors import InvalidValueError, NonFiniteError, UnsupportedError
from glassformer.processors.base import ForwardInputs, Processor

SERIES_BATCH_SIZE = 256


class SeriesProcessor(Processor[Any, Values]):
    """Prepare series for a classifier: arrays (T, C) or (T,), of any length; NaN where a value is missing."""

    name = "series"

    def __init__(self, bundle: Bundle) -> None:
        if not reads_series(bundle):
            raise UnsupportedError(bundle.display_name, "classification of time series")
        self.bundle, self.preparation = bundle, series_preparation(bundle)

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, np.ndarray | torch.Tensor) and inputs.ndim < 3

    def load(self, source: Any) -> Values:
        try:
            array = np.asarray(source, np.float64)
        except (TypeError, ValueError):
            raise InvalidValueError("series", type(source).__name__, "an array (T, C)") from None
        array = array[:, None] if array.ndim == 1 else array
        self.preparation.check_one(array, "the series")
        values = np.where(np.isfinite(array), array, np.nan)
        if np.isnan(values).all(0).any():
            raise NonFiniteError("a channel of the series", "it has no value")
        return values

    def collate(self, items: Sequence[Values]) -> ForwardInputs:
        return {"inputs": torch.from_numpy(self.preparation(items)).to(self.bundle.device)}


@dataclass(frozen=True, kw_only=True)
class WindowScale:
    """Shift and divisor (`size`) of each window's columns: both (..., 1, C), float64."""

    shift: Doubles
    size: Doubles

    def transform(self, values: Doubles) -> NDArray[np.float32]:
        """Scale values (..., T, C)."""
        with np.errstate(over="ignore"):  # values far outside the training range become infinite
            return ((values - self.shift) / self.size).astype(np.float32)

    def inverse(self, values: NDArray[np.float32]) -> Doubles:
        """Convert scaled predictions (..., N, C) back to the units of the data."""
        return values.astype(np.float64) * self.size + self.shift


@dataclass(frozen=True, kw_only=True)
class PastSeries:
    """Series to forecast, and the last window of each.

    notes: messages for the user, e.g. about repaired values. values (S, T, C): in the units of the data.
    covariates (S, T + N, K): known covariates of past and future.
    """

    series: SeriesSet
    notes: tuple[str, ...]
    values: Doubles
    scale: WindowScale
    covariates: NDArray[np.float32] | None

    def split(self, size: int) -> Iterator[PastSeries]:
        """Yield parts with the windows of at most `size` series."""
        for rows in (slice(at, at + size) for at in range(0, len(self.values), size)):
            scale = WindowScale(shift=self.scale.shift[rows], size=self.scale.size[rows])
            covariates = None if self.covariates is None else self.covariates[rows]
            yield replace(self, values=self.values[rows], scale=scale, covariates=covariates)


class ForecastProcessor(Processor[Any, PastSeries]):
    """Read the series of a file or a table (a data frame, or a dict of columns), and cut their last windows.

    context: steps read. horizon: steps predicted. The other options are those of `Forecaster`.
    """

    name = "series"
    errors = ()  # a table is a single input

    def __init__(
        self,
        bundle: Bundle,
        *,
        time: str | None = None,
        columns: Sequence[str] | None = None,
        fill: Fill | None = None,
        **text: Unpack[TableOptions],
    ) -> None:
        self.bundle = bundle
        context, self.horizon = forecast_steps(bundle)
        self.context = context or bundle.job.context or 1
        check_encoding(text.get("encoding", UTF8))
        filled: Any = bundle.job.fill_missing
        self.time, self.fill, self.table_options = time, fill or filled or "error", text
        self.columns = columns if columns is not None else bundle.job.columns
        job = bundle.job
        self.known = KnownCovariates(
            columns=job.known_covariates or (),
            calendar=job.calendar_features or (),  # type: ignore[arg-type]
            mean=job.covariate_mean or (),
            std=job.covariate_std or (),
        )

    def is_single(self, inputs: Any) -> bool:
        return not isinstance(inputs, list)

    def load(self, source: Any) -> PastSeries:
        """Read and validate the series, and note what was repaired."""
        errors = RowErrors()
        name = None if isinstance(source, str | PathLike) else "the table"
        with _as_file(source) as path:
            past = read_series(
                path,
                errors=errors,
                time=self.time,
                target=self.columns,
                covariates=self.known.columns,
                fill=self.fill,
                display_name=name,
                **({} if name else self.table_options),
            )
        self._check_future(past)
        notes = [note for note in (*past.notes, errors.summary()) if note]
        check_columns(self.bundle, past.names)
        short = np.flatnonzero(past.lengths < self.context)
        if short.size:
            first = int(short[0])
            length, needed = int(past.lengths[first]), f"at least {self.context:,} rows"
            raise InvalidValueError(f"the length of series {past.ids[first]!r}", length, needed)
        step, trained = str(past.step), self.bundle.job.frequency
        if trained not in (None, step):
            notes.append(f"the model was trained on steps of {trained}, but these are steps of {step}")
        windows = past.values[past.ends[:, None] + np.arange(-self.context, 0)]  # (S, T, C)
        return PastSeries(
            series=past,
            notes=tuple(notes),
            values=windows,
            scale=scale_of(self.bundle, windows),
            covariates=self._covariates(past) if self.known.width else None,
        )

    def _check_future(self, past: SeriesSet) -> None:
        """Raise unless the known covariates are known for all steps to predict."""
        for series_id, future in zip(past.ids, past.future, strict=True) if self.known.columns else ():
            if len(future) < self.horizon:
                listed = ", ".join(self.known.columns)
                raise InvalidValueError(
                    f"the number of future rows of {listed} in series {series_id!r}",
                    len(future),
                    f"at least {self.horizon}",
                    hint="add rows with the future values of these columns and empty targets",
                )

    def _covariates(self, past: SeriesSet) -> NDArray[np.float32]:
        """Return the known covariates (S, T + N, K)."""
        parts = []
        for number, end in enumerate(past.ends.tolist()):
            stamps = past.stamps[end - self.context : end].tolist()
            stamps += [advance(stamps[-1], past.step, n + 1) for n in range(self.horizon)]
            values = None
            if past.covariates is not None:
                known = past.covariates[end - self.context : end]
                values = np.concatenate((known, past.future[number][: self.horizon]))
            parts.append(self.known.transform(values, np.array(stamps, np.int64)))
        return np.stack(parts)

    def collate(self, items: Sequence[PastSeries]) -> ForwardInputs:
        """Return the scaled windows of all series (S, T, C), and their known covariates."""
        device = self.bundle.device
        scaled = np.concatenate([item.scale.transform(item.values) for item in items])
        values = torch.from_numpy(scaled).to(device)
        known = [item.covariates for item in items if item.covariates is not None]
        if not known:
            return {"inputs": values}
        covariates = torch.from_numpy(np.concatenate(known)).to(device)
        return {"inputs": SeriesInputs(values, covariates=covariates)}


def forecast_steps(bundle: Bundle) -> tuple[int | None, int]:
    """Return the number of steps a forecaster reads (None: any number) and predicts."""
    spec: Any = bundle.spec
    if spec.yields == "future values":
        if spec.heads():
            return spec.input.context_length, spec.head.prediction_length
        return getattr(spec, "context_length", getattr(spec, "season", None)), spec.prediction_length
    raise UnsupportedError(bundle.display_name, "forecasting")


@contextmanager
def _as_file(series: Any) -> Iterator[Any]:
    """Yield a file path; write a table to a temporary file, so that it is validated in the same way."""
    if isinstance(series, str | PathLike):
        yield series
        return
    index: Any = getattr(series, "index", None)
    try:
        names = [str(name) for name in getattr(series, "columns", series)]
        table = {name: list(series[name]) for name in names}
    except (TypeError, KeyError, IndexError):
        expected = "a file, a data frame or a dict of columns"
        raise InvalidValueError("series", type(series).__name__, expected) from None
    if type(index).__name__ in ("DatetimeIndex", "PeriodIndex"):
        table = {"ds": [str(stamp) for stamp in index], **table}
    if not table or len({len(column) for column in table.values()}) != 1:
        raise InvalidValueError("series", [*table], "at least one column, all of the same length")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
        yield path


def scale_of(bundle: Bundle, windows: Doubles) -> WindowScale:
    """Return the scale for windows (..., T, C): that of the training data, else computed from the windows.

    Windows are not scaled if the model does not normalize them, or if it predicts counts, which have no
    units.
    """
    job, shape = bundle.job, (*windows.shape[:-2], 1, windows.shape[-1])
    zeros, ones = np.zeros(shape), np.ones(shape)
    if job.mean is not None and job.std is not None:
        return WindowScale(shift=zeros + np.array(job.mean), size=ones * np.array(job.std))
    read, head = (getattr(bundle.spec, name, None) for name in ("input", "head"))
    counts = (
        bundle.spec.yields == "future values" and getattr(head, "distribution", "") == "negative_binomial"
    )
    if read is not None and read.modality == "series" and not counts:
        if read.scaling == "std":  # to mean 0 and std 1; a constant column is divided by its value
            mean, spread = mean_and_std(windows)
            size = np.where(spread == 0, np.abs(mean), spread)
            return WindowScale(shift=mean, size=np.where(size == 0, 1.0, size))
        if read.scaling == "mean":  # to a mean absolute value of 1, not shifted
            size = np.abs(windows).mean(-2, keepdims=True)
            return WindowScale(shift=zeros, size=np.where(size == 0, 1.0, size))
    return WindowScale(shift=zeros, size=ones)


def check_columns(bundle: Bundle, names: Sequence[str]) -> None:
    """Raise unless there are as many columns as the model reads or was trained on."""
    read, trained = getattr(bundle.spec, "input", None), bundle.job.mean
    expected = getattr(read, "channels", len(trained) if trained else None)
    if expected is not None and len(names) != expected:
        listed = ", ".join(names[:8])
        hint = f"it reads {expected}: select with `columns`"
        raise UnsupportedError(bundle.display_name, f"a table of {len(names)} columns ({listed})", hint=hint)


def reads_series(bundle: Bundle) -> bool:
    """Return whether the model reads time series."""
    return bundle.spec.modalities == ("series",) and bool(bundle.spec.stacks())


def series_inputs(inputs: Any) -> Any:
    """Return the series of a file; arrays (B, T, C), and lists of arrays, are returned unchanged."""
    if isinstance(inputs, str | PathLike):
        return read_labeled_series(inputs, labeled=False).values  # type: ignore[arg-type]
    return inputs


def series_preparation(bundle: Bundle) -> SeriesPreparation:
    """Return how a classifier prepares series; a published folder takes them as they are."""
    read: Any = bundle.spec.inputs()[0]
    job = bundle.job
    return SeriesPreparation(
        length=read.context_length,
        difference=bool(job.difference),
        mean=job.mean or (0.0,) * read.channels,
        std=job.std or (1.0,) * read.channels,
    )

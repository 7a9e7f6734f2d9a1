"""Forecast time series from a CSV or Parquet file, or from a table in memory.

A model trained on scaled values stores the scale in job.json. A model that normalizes each window adds a
small epsilon to the variance; if the values are small (returns, rates), the epsilon would dominate. So each
window is scaled to unit size first, and the forecast does not depend on the units.

Letters: S series, B windows, T steps read, N steps predicted, C columns, Q quantiles.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from statistics import NormalDist
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.distributions import DistributionParameters, Gaussian, NegativeBinomial, StudentT
from glassformer.data.readers import UTF8, check_encoding
from glassformer.data.row_errors import RowErrors
from glassformer.data.series import Fill, SeriesSet, read_series
from glassformer.data.timestamps import advance, format_timestamp
from glassformer.data.windows import Doubles, KnownCovariates, Scaler, format_value, mean_abs, mean_and_std
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.tasks.base import NO_CALLBACKS, Callbacks, Task, check_finite, encoder_model

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SERIES_TOGETHER = 256  # series per batch
SAMPLES = 2000  # drawn from a negative binomial, with a fixed seed
_NEWTON_STEPS = 60
_NODES = 64  # of the Gauss-Legendre quadrature


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The predicted steps of each series, in the units of the data.

    values (S, N, C): the means. quantiles (Q, S, N, C) at `quantile_levels`, if the model predicts a
    distribution. stamps (S, N): timestamps. past: the input series. context: number of steps read.
    notes: messages for the user, e.g. about repaired values.
    """

    names: tuple[str, ...]
    ids: tuple[str, ...]
    stamps: NDArray[np.int64]
    values: Doubles
    quantile_levels: tuple[float, ...]
    quantiles: Doubles
    past: SeriesSet
    context: int
    notes: tuple[str, ...]

    def timestamp(self, series: int, step: int) -> str:
        """Return the timestamp of a predicted step as text."""
        return format_timestamp(
            int(self.stamps[series, step]), self.past.step.kind != "numbers", self.past.step
        )

    def header(self) -> list[str]:
        """Return the table header: [unique_id,] ds, the columns, and each column at every quantile level."""
        first = ["unique_id"] if len(self.ids) > 1 else []
        levels = (f"{name}_{level:g}" for name in self.names for level in self.quantile_levels)
        return [*first, "ds", *self.names, *levels]

    def rows(self) -> Iterator[list[str | float]]:
        """Yield the rows of the table, by series and time."""
        for s, series_id in enumerate(self.ids):
            for n in range(self.values.shape[1]):
                first: list[str | float] = [series_id] if len(self.ids) > 1 else []
                levels = self.quantiles[:, s, n].T.reshape(-1).tolist()  # (C * Q,)
                yield [*first, self.timestamp(s, n), *self.values[s, n].tolist(), *levels]

    def formatted_rows(self) -> Iterator[list[str]]:
        """Yield the rows as text, with seven digits relative to the standard deviation of a column."""
        rows = self.rows()
        for end in self.past.ends:
            _, spread = mean_and_std(self.past.values[end - self.context : end])  # (1, C)
            spreads = [*spread[0].tolist(), *np.repeat(spread[0], len(self.quantile_levels)).tolist()]
            for row in islice(rows, self.values.shape[1]):
                texts, numbers = row[: -len(spreads)], row[-len(spreads) :]
                formatted = (format_value(float(x), unit) for x, unit in zip(numbers, spreads, strict=True))
                yield [*map(str, texts), *formatted]


class Forecaster(Task[Any, Forecast]):
    """Forecast the series in a file or a table in memory (a data frame, or a dict of columns).

    time: the timestamp column. columns: columns to forecast; by default those the model was trained on.
    fill: how to handle missing values. quantile_levels: used if the model predicts a distribution.
    encoding: of a CSV file.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        time: str | None = None,
        columns: Sequence[str] | None = None,
        fill: Fill = "error",
        quantile_levels: Sequence[float] = LEVELS,
        encoding: str = UTF8,
    ) -> None:
        if not all(0.001 <= level <= 0.999 for level in quantile_levels):
            raise InvalidValueError("quantile_levels", list(quantile_levels), "numbers from 0.001 to 0.999")
        self.bundle, self.quantile_levels = bundle, tuple(sorted(set(quantile_levels)))
        context, self.horizon = forecast_steps(bundle)
        self.context = context or bundle.job.context or 1
        self.time, self.fill, self.encoding = time, fill, check_encoding(encoding)
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

    def run(self, inputs: Iterable[Any], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Forecast]:
        for series in inputs:
            past, notes = self.preprocess(series)
            yield self.postprocess(past, notes, *self.forward(past))
            callbacks.on_done(1)

    def preprocess(self, series: Any) -> tuple[SeriesSet, list[str]]:
        """Read and validate the series, and note what was repaired."""
        errors = RowErrors()
        name = None if isinstance(series, str | PathLike) else "the table"
        with _as_file(series) as path:
            past = read_series(
                path,
                errors=errors,
                time=self.time,
                target=self.columns,
                covariates=self.known.columns,
                fill=self.fill,
                display_name=name,
                encoding=UTF8 if name else self.encoding,
            )
        if self.known.columns:
            listed = ", ".join(self.known.columns)
            for series_id, future in zip(past.ids, past.future, strict=True):
                if len(future) < self.horizon:
                    raise InvalidValueError(
                        f"the number of future rows of {listed} in series {series_id!r}",
                        len(future),
                        f"at least {self.horizon}",
                        hint="add rows with the future values of these columns and empty targets",
                    )
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
        return past, notes

    @torch.inference_mode()
    def forward(self, past: SeriesSet) -> tuple[Doubles, Doubles]:
        """Predict the means (S, N, C) and quantiles (Q, S, N, C), in the units of the data."""
        model, bundle = encoder_model(self.bundle), self.bundle
        means, levels = list[Doubles](), list[Doubles]()
        for at in range(0, len(past), SERIES_TOGETHER):
            ends = past.ends[at : at + SERIES_TOGETHER]
            rows = past.values[ends[:, None] + np.arange(-self.context, 0)]  # (B, context, C)
            scale = scale_of(bundle, rows)
            options = {}
            if self.known.width:
                options["covariates"] = torch.from_numpy(self._covariates(past, at)).to(bundle.device)
            output = model(torch.from_numpy(scale.transform(rows)).to(bundle.device), **options)
            if isinstance(output, Tensor):
                means.append(scale.inverse(output.float().cpu().numpy()))
                continue
            means.append(scale.inverse(check_finite(bundle, output.mean.float().cpu().numpy())))
            levels.append(scale.inverse(quantiles(output, self.quantile_levels).float().cpu().numpy()))
        values = check_finite(bundle, np.concatenate(means))
        if not levels:
            return values, np.empty((0, *values.shape))
        return values, check_finite(bundle, np.concatenate(levels, 1))

    def _covariates(self, past: SeriesSet, first: int) -> NDArray[np.float32]:
        """Return the known covariates (B, T + N, K) of a batch of series. first: number of the first one."""
        parts = []
        for number in range(first, min(first + SERIES_TOGETHER, len(past))):
            end = int(past.ends[number])
            stamps = past.stamps[end - self.context : end].tolist()
            stamps += [advance(stamps[-1], past.step, n + 1) for n in range(self.horizon)]
            values = None
            if past.covariates is not None:
                known = past.covariates[end - self.context : end]
                values = np.concatenate((known, past.future[number][: self.horizon]))
            parts.append(self.known.transform(values, np.array(stamps, np.int64)))
        return np.stack(parts)

    def postprocess(self, past: SeriesSet, notes: list[str], values: Doubles, levels: Doubles) -> Forecast:
        """Create the forecast with its timestamps."""
        if not len(levels):
            notes = [
                *notes,
                "the model predicts single values, not a distribution, so there are no quantiles",
            ]
        ends = past.stamps[past.ends - 1]
        stamps = [[advance(int(end), past.step, n + 1) for n in range(self.horizon)] for end in ends]
        return Forecast(
            names=past.names,
            ids=past.ids,
            stamps=np.array(stamps, np.int64),
            values=values,
            quantile_levels=self.quantile_levels if len(levels) else (),
            quantiles=levels,
            past=past,
            context=self.context,
            notes=tuple(notes),
        )


def forecast_steps(bundle: Bundle) -> tuple[int | None, int]:
    """Return the number of steps a forecaster reads (None: any number) and predicts."""
    spec: Any = bundle.spec
    if isinstance(spec, specs.EncoderOnlySpec):
        if isinstance(spec.input, specs.SeriesPatchesSpec) and isinstance(spec.head, specs.ForecastSpec):
            return spec.input.context_length, spec.head.prediction_length
    elif hasattr(spec, "prediction_length"):
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


@dataclass(frozen=True, kw_only=True)
class WindowScale:
    """Shift and divisor (`size`) of each window's columns: both (..., 1, C), float64."""

    shift: Doubles
    size: Doubles

    def transform(self, values: Doubles) -> NDArray[np.float32]:
        """Scale values (..., T, C)."""
        return ((values - self.shift) / self.size).astype(np.float32)

    def inverse(self, values: NDArray[np.float32]) -> Doubles:
        """Convert scaled predictions (..., N, C) back to the units of the data."""
        return values.astype(np.float64) * self.size + self.shift


def scale_of(bundle: Bundle, windows: Doubles) -> Scaler | WindowScale:
    """Return the scale for windows (..., T, C): that of the training data, else computed from the windows.

    Windows are not scaled if the model does not normalize them, or if it predicts counts, which have no
    units.
    """
    job = bundle.job
    if job.mean is not None and job.std is not None:
        return Scaler(tuple(map(float, job.mean)), tuple(map(float, job.std)))
    read, head = (getattr(bundle.spec, name, None) for name in ("input", "head"))
    counts = isinstance(head, specs.ForecastSpec) and head.distribution == "negative_binomial"
    if isinstance(read, specs.SeriesPatchesSpec) and not counts:
        if read.scaling == "std":  # to mean 0 and std 1; a constant column is divided by its value
            mean, spread = mean_and_std(windows)
            size = np.where(spread == 0, np.abs(mean), spread)
            return WindowScale(shift=mean, size=np.where(size == 0, 1.0, size))
        if read.scaling == "mean":  # to a mean absolute value of 1, not shifted
            size = mean_abs(windows)
            return WindowScale(shift=np.zeros_like(size), size=np.where(size == 0, 1.0, size))
    count = windows.shape[-1]
    return Scaler((0.0,) * count, (1.0,) * count)


def check_columns(bundle: Bundle, names: Sequence[str]) -> None:
    """Raise unless there are as many columns as the model reads or was trained on."""
    read, trained = getattr(bundle.spec, "input", None), bundle.job.mean
    expected = (
        read.channels if isinstance(read, specs.SeriesPatchesSpec) else len(trained) if trained else None
    )
    if expected is not None and len(names) != expected:
        listed = ", ".join(names[:8])
        hint = f"it reads {expected}: select with `columns`"
        raise UnsupportedError(bundle.display_name, f"a table of {len(names)} columns ({listed})", hint=hint)


def quantiles(predicted: DistributionParameters, levels: Sequence[float]) -> Tensor:
    """Return the quantiles of the predicted distributions: (levels, *shape of the parameters), float64.

    >>> normal = Gaussian(loc=torch.zeros(1), scale=torch.ones(1))
    >>> [round(float(q), 3) for q in quantiles(normal, (0.1, 0.5, 0.9))]
    [-1.282, 0.0, 1.282]
    """
    match predicted:
        case Gaussian(loc, scale):
            return torch.stack(
                [loc.double() + scale.double() * NormalDist().inv_cdf(level) for level in levels]
            )
        case StudentT(df, loc, scale):
            return torch.stack(
                [loc.double() + scale.double() * _student_t_quantile(df.double(), level) for level in levels]
            )
        case NegativeBinomial():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                samples = predicted.distribution.sample(torch.Size((SAMPLES,))).double().sort(0).values
            return torch.stack([samples[min(SAMPLES - 1, int(level * SAMPLES))] for level in levels])


def _student_t_quantile(df: Tensor, level: float) -> Tensor:
    """Return a quantile of Student's t distribution, for degrees of freedom of any shape.

    Above the median the CDF is concave, so Newton's method converges from the normal quantile, which is too
    low, without overshooting.
    """
    if level < 0.5:
        return -_student_t_quantile(df, 1 - level)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)  # Gauss-Legendre on [-1, 1], here on [0, 1]
    quadrature = list(zip(((nodes + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))
    constant = torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * (df * math.pi).log()

    def density(x: Tensor) -> Tensor:
        return (constant - (df + 1) / 2 * torch.log1p(x.square() / df)).exp()

    x = torch.full_like(df, NormalDist().inv_cdf(level))
    for _ in range(_NEWTON_STEPS):
        inside = sum(weight * density(x * node) for node, weight in quadrature) * x
        step = (level - 0.5 - inside) / density(x)
        x = x + step
        if bool((step.abs() <= 1e-10 * x.abs().clamp_min(1.0)).all()):
            break
    return x

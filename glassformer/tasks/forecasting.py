"""Forecast time series from a CSV or Parquet file, or from a table in memory.

Letters: S series, N steps predicted, C columns, Q quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.series.distributions import DistributionParameters, Gaussian, NegativeBinomial, StudentT
from glassformer.data.readers import TableOptions
from glassformer.data.series import Fill, SeriesSet
from glassformer.data.timestamps import advance, format_timestamp
from glassformer.data.windows import Doubles, format_value, mean_and_std
from glassformer.errors import InvalidValueError
from glassformer.processors.series import SERIES_BATCH_SIZE, ForecastProcessor, PastSeries
from glassformer.tasks.base import BatchTask, check_finite, encoder_model

TIME = "ds"  # the time column of a request
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
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
        """Return the names: [unique_id,] timestamps, the columns, and each column at every quantile level."""
        first = ["unique_id"] if len(self.ids) > 1 else []
        levels = (f"{name}_{level:g}" for name in self.names for level in self.quantile_levels)
        return [*first, self.past.time_column or "ds", *self.names, *levels]

    def rows(self) -> Iterator[list[str | float]]:
        """Yield the rows of the table, by series and time."""
        for s, series_id in enumerate(self.ids):
            for n in range(self.values.shape[1]):
                first: list[str | float] = [series_id] if len(self.ids) > 1 else []
                levels = self.quantiles[:, s, n].T.reshape(-1).tolist()  # (C * Q,)
                yield [*first, self.timestamp(s, n), *self.values[s, n].tolist(), *levels]

    def formatted_rows(self, decimal: str = ".") -> Iterator[list[str]]:
        """Yield the rows as text, with seven digits relative to the standard deviation of a column."""
        rows = self.rows()
        for end in self.past.ends:
            _, spread = mean_and_std(self.past.values[end - self.context : end])  # (1, C)
            spreads = [*spread[0].tolist(), *np.repeat(spread[0], len(self.quantile_levels)).tolist()]
            for row in islice(rows, self.values.shape[1]):
                texts, numbers = row[: -len(spreads)], row[-len(spreads) :]
                formatted = (format_value(float(x), unit) for x, unit in zip(numbers, spreads, strict=True))
                yield [*map(str, texts), *(number.replace(".", decimal) for number in formatted)]


class Forecaster(BatchTask[Any, Forecast]):
    """Forecast the series in a file or a table in memory (a data frame, or a dict of columns).

    time: the timestamp column. columns: columns to forecast; by default those the model was trained on.
    fill: how to handle missing values; by default as in training, else they are an error.
    quantile_levels: used if the model predicts a distribution. text: how a CSV file is written.
    """

    read_ahead = 1
    processor: ForecastProcessor

    def __init__(
        self,
        bundle: Bundle,
        *,
        time: str | None = None,
        columns: Sequence[str] | None = None,
        fill: Fill | None = None,
        quantile_levels: Sequence[float] = LEVELS,
        **text: Unpack[TableOptions],
    ) -> None:
        if not all(0.001 <= level <= 0.999 for level in quantile_levels):
            raise InvalidValueError("quantile_levels", list(quantile_levels), "numbers from 0.001 to 0.999")
        self.bundle, self.quantile_levels = bundle, tuple(sorted(set(quantile_levels)))
        self.processor = ForecastProcessor(bundle, time=time, columns=columns, fill=fill, **text)

    def forward(self, items: Sequence[PastSeries]) -> list[tuple[Doubles, Doubles]]:
        """Predict the means (S, N, C) and quantiles (Q, S, N, C), in the units of the data."""
        return [self._predict(item) for item in items]

    def _predict(self, past: PastSeries) -> tuple[Doubles, Doubles]:
        model, bundle = encoder_model(self.bundle), self.bundle
        means, levels = list[Doubles](), list[Doubles]()
        for part in past.split(SERIES_BATCH_SIZE):
            output, scale = model(**self.processor.collate([part])), part.scale
            if isinstance(output, Tensor):
                means.append(scale.inverse(output.float().cpu().numpy()))
                continue
            means.append(scale.inverse(check_finite(bundle, output.mean.float().cpu().numpy())))
            levels.append(scale.inverse(quantiles(output, self.quantile_levels).float().cpu().numpy()))
        values = check_finite(bundle, np.concatenate(means))
        if not levels:
            return values, np.empty((0, *values.shape))
        return values, check_finite(bundle, np.concatenate(levels, 1))

    def postprocess(
        self, input: Any, item: PastSeries | None, raw: tuple[Doubles, Doubles] | None
    ) -> Forecast:
        """Create the forecast with its timestamps."""
        assert item is not None and raw is not None  # no table is rejected
        (values, levels), past, notes = raw, item.series, item.notes
        if not len(levels):
            notes += ("the model predicts single values, not a distribution, so there are no quantiles",)
        horizon, context = self.processor.horizon, self.processor.context
        ends = past.stamps[past.ends - 1]
        stamps = [[advance(int(end), past.step, n + 1) for n in range(horizon)] for end in ends]
        return Forecast(
            names=past.names,
            ids=past.ids,
            stamps=np.array(stamps, np.int64),
            values=values,
            quantile_levels=self.quantile_levels if len(levels) else (),
            quantiles=levels,
            past=past,
            context=context,
            notes=notes,
        )


def request_table(
    columns: Mapping[str, Sequence[float]], timestamps: Sequence[str] | None = None
) -> dict[str, Sequence[Any]]:
    """Return a table of columns with a time column `TIME`; without timestamps, the rows are numbered."""
    length = len(next(iter(columns.values()), ()))
    return {TIME: range(length) if timestamps is None else timestamps, **columns}


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

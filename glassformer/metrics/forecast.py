"""Forecast errors, summed exactly over batches of any size.

B forecasts, N future steps, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.errors import EmptyInputError, InvalidValueError, ShapeError


@dataclass(frozen=True, kw_only=True)
class ForecastScores:
    """Mean squared and mean absolute errors over all forecasts, steps and channels.

    mse, mae: of scaled values, as they are published
    mse_by_step, mae_by_step: the same for each future step
    mse_by_channel, mae_by_channel: the same for each channel
    mse_own_units, mae_own_units: in the units of the file, for each channel
    mase: mean absolute scaled error: relative to the seasonal naive error on the training data, averaged over
        channels; None if that was not given
    """

    forecasts: int
    mse: float
    mae: float
    mse_by_step: tuple[float, ...]
    mae_by_step: tuple[float, ...]
    mse_by_channel: tuple[float, ...]
    mae_by_channel: tuple[float, ...]
    mse_own_units: tuple[float, ...]
    mae_own_units: tuple[float, ...]
    mase: float | None = None


class ForecastErrors:
    """Errors of forecasts of scaled values, added up batch by batch in float64.

    std: the standard deviation each channel was scaled by.
    naive: the naive error of each channel on the training data (`naive_error`), in scaled units.

    >>> errors = ForecastErrors(std=[2.0])
    >>> errors.add(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[[1.0], [0.0]]]))
    >>> scores = errors.scores()
    >>> scores.mse, scores.mae, scores.mse_by_step, scores.mae_own_units
    (4.5, 1.5, (0.0, 9.0), (3.0,))
    """

    def __init__(self, *, std: Sequence[float], naive: Sequence[float] | None = None) -> None:
        self.std = torch.tensor(list(std), dtype=torch.float64)  # (C,)
        self.naive = None if naive is None else torch.tensor(list(naive), dtype=torch.float64)
        self.forecasts = 0
        self.squared: Tensor | None = None  # (N, C), summed over forecasts
        self.absolute: Tensor | None = None

    def add(self, forecast: Tensor, actual: Tensor) -> None:
        """forecast and actual (B, N, C), scaled."""
        if forecast.shape != actual.shape or forecast.dim() != 3 or forecast.shape[2] != len(self.std):
            expected = f"that of the actual values {tuple(actual.shape)}: (B, steps, {len(self.std)})"
            raise ShapeError("the forecast", forecast.shape, expected)
        off = forecast.detach().double() - actual.detach().to(forecast.device).double()
        off = off.contiguous()  # sums run in the order of memory, so equal errors give equal bits
        squared, absolute = off.square().sum(0).cpu(), off.abs().sum(0).cpu()  # only sums leave the device
        self.squared = squared if self.squared is None else self.squared + squared
        self.absolute = absolute if self.absolute is None else self.absolute + absolute
        self.forecasts += len(off)

    def scores(self) -> ForecastScores:
        """The mean errors."""
        if self.squared is None or self.absolute is None or not self.forecasts:
            raise EmptyInputError("list of forecasts")
        squared, absolute = self.squared / self.forecasts, self.absolute / self.forecasts  # (N, C)
        mase = None if self.naive is None else float((absolute.mean(0) / self.naive).mean())
        return ForecastScores(
            forecasts=self.forecasts,
            mse=float(squared.mean()),
            mae=float(absolute.mean()),
            mse_by_step=tuple(squared.mean(1).tolist()),
            mae_by_step=tuple(absolute.mean(1).tolist()),
            mse_by_channel=tuple(squared.mean(0).tolist()),
            mae_by_channel=tuple(absolute.mean(0).tolist()),
            mse_own_units=tuple((squared.mean(0) * self.std**2).tolist()),
            mae_own_units=tuple((absolute.mean(0) * self.std).tolist()),
            mase=mase,
        )


def naive_error(values: Tensor, season: int = 1) -> tuple[float, ...]:
    """The mean absolute error of repeating the value a season earlier: one series (rows, C) -> C numbers.

    >>> naive_error(torch.tensor([[1.0], [2.0], [4.0]]))
    (1.5,)
    """
    if len(values) <= season:
        raise InvalidValueError("season", season, f"less than the {len(values)} rows")
    off = (values[season:].double() - values[:-season].double()).abs().mean(0)
    return tuple(off.tolist())

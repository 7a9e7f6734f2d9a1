"""Forecast errors, summed over batches in float64.

B forecasts, N future steps, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from glassformer.errors import EmptyInputError


@dataclass(frozen=True, kw_only=True)
class ForecastScores:
    """MSE and MAE of standardized values, in total and for each future step."""

    forecasts: int
    mse: float
    mae: float
    mse_by_step: tuple[float, ...]
    mae_by_step: tuple[float, ...]


class ForecastErrors:
    """Accumulate the errors of standardized forecasts batch by batch, in float64.

    >>> import torch
    >>> errors = ForecastErrors()
    >>> errors.add(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[[1.0], [0.0]]]))
    >>> errors.scores()
    ForecastScores(forecasts=1, mse=4.5, mae=1.5, mse_by_step=(0.0, 9.0), mae_by_step=(0.0, 3.0))
    """

    def __init__(self) -> None:
        self.forecasts = 0
        self.squared: Tensor | None = None  # (N, C), summed over forecasts
        self.absolute: Tensor | None = None

    def add(self, forecast: Tensor, actual: Tensor) -> None:
        """Add the errors of a batch: forecast and actual values (B, N, C), both standardized."""
        error = forecast.detach().double() - actual.detach().to(forecast.device).double()
        error = error.contiguous()  # sums follow the memory order, so equal errors give bit-identical sums
        # only sums leave the device
        squared, absolute = error.square().sum(0).cpu(), error.abs().sum(0).cpu()
        self.squared = squared if self.squared is None else self.squared + squared
        self.absolute = absolute if self.absolute is None else self.absolute + absolute
        self.forecasts += len(error)

    def scores(self) -> ForecastScores:
        """Return the mean errors of all batches added so far."""
        if self.squared is None or self.absolute is None or not self.forecasts:
            raise EmptyInputError("list of forecasts")
        squared, absolute = self.squared / self.forecasts, self.absolute / self.forecasts  # (N, C)
        return ForecastScores(
            forecasts=self.forecasts,
            mse=float(squared.mean()),
            mae=float(absolute.mean()),
            mse_by_step=tuple(squared.mean(1).tolist()),
            mae_by_step=tuple(absolute.mean(1).tolist()),
        )

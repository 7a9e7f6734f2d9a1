"""How far forecasts are off, summed exactly over batches of any size.

B forecasts, N future steps, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.errors import GlassformerError


@dataclass(frozen=True, kw_only=True)
class ForecastScores:
    """Mean squared and mean absolute errors over all forecasts, steps and channels.

    mse, mae: of scaled values, as they are published
    mse_by_step, mae_by_step: the same for each future step
    mse_by_channel, mae_by_channel: the same for each channel
    mse_own_units, mae_own_units: of values as they stood in the file, for each channel
    mase: the mean absolute error as a multiple of what repeating the value a season earlier was off by in
    training, averaged over channels; None where that was not given
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

    std: what each channel was divided by when it was scaled.
    naive: for each channel, how far off repeating was in training (`naive_error`), in scaled units.

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

    def add(self, told: Tensor, truth: Tensor) -> None:
        """told and truth (B, N, C), scaled."""
        if told.shape != truth.shape or told.dim() != 3 or told.shape[2] != len(self.std):
            raise GlassformerError(
                f"forecasts {tuple(told.shape)} and what came {tuple(truth.shape)} must both be "
                f"(B, steps, {len(self.std)})"
            )
        off = told.detach().double() - truth.detach().to(told.device).double()
        off = off.contiguous()  # sums run in the order of memory, so equal errors give equal bits
        squared, absolute = off.square().sum(0).cpu(), off.abs().sum(0).cpu()  # only sums leave the device
        self.squared = squared if self.squared is None else self.squared + squared
        self.absolute = absolute if self.absolute is None else self.absolute + absolute
        self.forecasts += len(off)

    def scores(self) -> ForecastScores:
        """The means of all that was added."""
        if self.squared is None or self.absolute is None or not self.forecasts:
            raise GlassformerError("there is no forecast to judge")
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
    """How far off the value a season earlier is, on average: one training series (rows, C) -> C numbers.

    >>> naive_error(torch.tensor([[1.0], [2.0], [4.0]]))
    (1.5,)
    """
    if len(values) <= season:
        raise GlassformerError(f"a season of {season} steps needs more than {len(values)} rows")
    off = (values[season:].double() - values[:-season].double()).abs().mean(0)
    return tuple(off.tolist())

"""Synthetic series, and the metrics of the series model."""

import numpy as np
import pytest
import torch
from torch import nn

from experiments.pocket_series import CONTEXT, HORIZON, forecast_metrics, windows_between
from experiments.synthetic_series import generate_series
from glassformer.core.series.distributions import StudentT

SEASON = 7


class ConstantForecaster(nn.Module):
    """A forecaster that repeats the last `season` steps with a constant scale."""

    def __init__(self, season: int, width: float) -> None:
        super().__init__()
        self.season, self.width = season, nn.Parameter(torch.tensor(width))

    def forward(self, past: torch.Tensor) -> StudentT:
        predictions = past[:, CONTEXT - self.season + torch.arange(HORIZON) % self.season]
        return StudentT(torch.full_like(predictions, 5.0), predictions, self.width.expand_as(predictions))


def test_series_depend_only_on_their_seed():
    shorter, more, other = (
        generate_series(3, 20, 240),
        generate_series(3, 40, 240),
        generate_series(4, 20, 240),
    )
    for one, repeated, another in zip(shorter, more, other, strict=False):
        assert np.array_equal(one.values, repeated.values) and one.period == repeated.period
        assert not np.allclose(one.values, another.values)
    values = np.stack([one.values for one in more])
    assert np.isfinite(values).all() and (np.abs(values.mean(1)) < 1e-9).all()
    assert all(one.period >= 1 for one in more)


@pytest.mark.parametrize(("season", "name"), [(1, "to_repeat"), (SEASON, "to_season")])
def test_repeating_model_scores_like_the_repeat_baseline(season, name):
    series = np.random.default_rng(0).normal(size=(400, 3)).cumsum(0).astype(np.float32)
    windows, seasons = windows_between(series, CONTEXT, 400, SEASON)
    assert windows.shape == (3 * (400 - CONTEXT - HORIZON + 1), CONTEXT + HORIZON)
    result = forecast_metrics("walk", ConstantForecaster(season, 1.0), windows, seasons)
    assert result[f"walk_{name}"] == pytest.approx(1.0)
    past, future = windows[:, :CONTEXT].astype(float), windows[:, CONTEXT:].astype(float)
    error = np.abs(past[:, CONTEXT - season + np.arange(HORIZON) % season] - future).mean(1)
    assert result["walk_mase"] == pytest.approx((error / np.abs(np.diff(past)).mean(1)).mean(), rel=1e-4)


def test_exact_seasonal_forecast_has_no_error():
    wave = np.tile(np.arange(SEASON), 60).astype(np.float32)[:, None]
    result = forecast_metrics(
        "wave", ConstantForecaster(SEASON, 1.0), *windows_between(wave, CONTEXT, 400, 1)
    )
    assert result["wave_mase"] == 0.0 and result["wave_inside_80"] == 1.0

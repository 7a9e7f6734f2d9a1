"""Series made from a seed, and the yardsticks that the series model is measured by."""

import numpy as np
import pytest
import torch
from torch import nn

from experiments.made_series import made
from experiments.pocket_series import CONTEXT, HORIZON, judged, windows_between
from glassformer.core.distributions import StudentT

SEASON = 7


class Tells(nn.Module):
    """A forecaster that repeats the last so many steps, sure to a width."""

    def __init__(self, season: int, width: float) -> None:
        super().__init__()
        self.season, self.width = season, nn.Parameter(torch.tensor(width))

    def forward(self, past: torch.Tensor) -> StudentT:
        told = past[:, CONTEXT - self.season + torch.arange(HORIZON) % self.season]
        return StudentT(torch.full_like(told, 5.0), told, self.width.expand_as(told))


def test_series_hang_on_their_seed_alone():
    few, more, other = made(3, 20, 240), made(3, 40, 240), made(4, 20, 240)
    for one, same, another in zip(few, more, other, strict=False):
        assert np.array_equal(one.values, same.values) and one.period == same.period
        assert not np.allclose(one.values, another.values)
    values = np.stack([one.values for one in more])
    assert np.isfinite(values).all() and (np.abs(values.mean(1)) < 1e-9).all()
    assert all(one.period >= 1 for one in more)


@pytest.mark.parametrize(("season", "name"), [(1, "to_repeat"), (SEASON, "to_season")])
def test_a_model_that_repeats_is_as_good_as_repeating(season, name):
    series = np.random.default_rng(0).normal(size=(400, 3)).cumsum(0).astype(np.float32)
    windows, seasons = windows_between(series, CONTEXT, 400, SEASON)
    assert windows.shape == (3 * (400 - CONTEXT - HORIZON + 1), CONTEXT + HORIZON)
    found = judged("walk", Tells(season, 1.0), windows, seasons)
    assert found[f"walk_{name}"] == pytest.approx(1.0)
    past, future = windows[:, :CONTEXT].astype(float), windows[:, CONTEXT:].astype(float)
    error = np.abs(past[:, CONTEXT - season + np.arange(HORIZON) % season] - future).mean(1)
    assert found["walk_mase"] == pytest.approx((error / np.abs(np.diff(past)).mean(1)).mean(), rel=1e-4)


def test_a_season_told_exactly_has_no_error_and_lies_inside():
    wave = np.tile(np.arange(SEASON), 60).astype(np.float32)[:, None]
    found = judged("wave", Tells(SEASON, 1.0), *windows_between(wave, CONTEXT, 400, 1))
    assert found["wave_mase"] == 0.0 and found["wave_inside_80"] == 1.0

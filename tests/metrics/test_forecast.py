"""Forecast errors are those of the whole, however they come, in scaled and in own units."""

from __future__ import annotations

import pytest
import torch

from glassformer.errors import EmptyInputError, InvalidValueError, ShapeError
from glassformer.metrics.forecast import ForecastErrors, naive_error


def test_errors_are_those_of_the_whole_however_they_are_batched() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, std = torch.tensor([5.0, -2.0, 40.0]), torch.tensor([2.0, 0.5, 30.0])
    told, truth = (torch.randn(37, 4, 3, generator=generator) for _ in range(2))
    off = (told.double() - truth.double()).numpy()
    errors = ForecastErrors(std=std.tolist(), naive=[0.5, 1.0, 2.0])
    for a, b in zip(told.split(5), truth.split(5), strict=True):
        errors.add(a, b)
    scores = errors.scores()
    assert scores.forecasts == 37
    assert scores.mse == pytest.approx((off**2).mean(), rel=1e-12)
    assert scores.mae == pytest.approx(abs(off).mean(), rel=1e-12)
    assert scores.mse_by_step == pytest.approx((off**2).mean((0, 2)), rel=1e-12)
    assert scores.mae_by_channel == pytest.approx(abs(off).mean((0, 1)), rel=1e-12)
    own = ((told * std + mean) - (truth * std + mean)).double().numpy()
    assert scores.mse_own_units == pytest.approx((own**2).mean((0, 1)), rel=1e-5)
    assert scores.mae_own_units == pytest.approx(abs(own).mean((0, 1)), rel=1e-5)
    assert scores.mase == pytest.approx((abs(off).mean((0, 1)) / [0.5, 1.0, 2.0]).mean(), rel=1e-12)


def test_a_small_error_is_not_lost_among_many_large_ones() -> None:
    """In float32, adding 1 to 2**24 changes nothing."""
    errors = ForecastErrors(std=[1.0])
    errors.add(torch.full((1, 1, 1), 4096.0), torch.zeros(1, 1, 1))
    for _ in range(3):
        errors.add(torch.ones(1, 1, 1), torch.zeros(1, 1, 1))
    assert errors.scores().mse == (2**24 + 3) / 4


def test_repeating_a_series_is_off_by_its_own_measure() -> None:
    """A forecast that is off by exactly what repeating a season was has a MASE of 1."""
    values = torch.arange(20.0)[:, None] * torch.tensor([1.0, 3.0])
    assert naive_error(values, 4) == (4.0, 12.0)
    errors = ForecastErrors(std=[1.0, 1.0], naive=naive_error(values, 4))
    errors.add(values[None, :-4], values[None, 4:])
    assert errors.scores().mase == pytest.approx(1.0)


def test_invalid_forecasts_are_errors() -> None:
    with pytest.raises(EmptyInputError):
        ForecastErrors(std=[1.0]).scores()
    with pytest.raises(ShapeError):
        ForecastErrors(std=[1.0]).add(torch.ones(2, 3, 1), torch.ones(2, 4, 1))
    with pytest.raises(InvalidValueError):
        naive_error(torch.ones(3, 1), 3)

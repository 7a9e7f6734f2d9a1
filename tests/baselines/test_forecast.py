"""Simple forecasters: exact where a rule says so, the least squares where they learn, and savable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.baselines import build_baseline, from_dict, to_dict
from glassformer.baselines import spec as specs
from glassformer.baselines.forecast import LinearForecaster, RepeatLast, SeasonalRepeat
from glassformer.data.row_errors import RowErrors
from glassformer.data.series import read_series
from glassformer.data.windows import Scaler, Windows, split_by_rows
from glassformer.errors import ShapeError
from glassformer.metrics.forecast import ForecastErrors, ForecastScores

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))


def batches(windows: Windows, size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(windows), size):
        batch = windows.batch(np.arange(start, min(start + size, len(windows))))
        yield torch.from_numpy(batch["past"]), torch.from_numpy(batch["future"])


def scores(model: torch.nn.Module, windows: Windows) -> ForecastScores:
    errors = ForecastErrors()
    with torch.no_grad():
        for past, future in batches(windows):
            errors.add(model(past), future)
    return errors.scores()


def test_linear_fit_is_least_squares_for_any_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    past = torch.randn(90, 6, 2, generator=generator)
    future = torch.randn(90, 3, 2, generator=generator)
    linear = LinearForecaster(specs.LinearSpec(context_length=6, prediction_length=3))
    linear.fit(zip(past.split(32), future.split(32), strict=True))

    def loss() -> Tensor:
        return (linear(past) - future).square().sum()

    slopes = torch.autograd.grad(loss(), list(linear.parameters()))
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-3  # no step makes it better
    fitted = LinearForecaster(specs.LinearSpec(context_length=6, prediction_length=3))
    fitted.fit([(past, future)])
    assert torch.allclose(fitted.out.weight, linear.out.weight, atol=1e-6)


@pytest.mark.parametrize(
    "spec",
    [
        specs.RepeatLastSpec(prediction_length=5),
        specs.SeasonalRepeatSpec(prediction_length=5, season=4),
        specs.LinearSpec(context_length=8, prediction_length=5),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_forecasters_are_shift_equivariant_and_their_specs_round_trip(spec: specs.BaselineSpec) -> None:
    model = build_baseline(from_dict(to_dict(spec)))
    assert model.spec == spec
    past = torch.randn(3, 8, 2)
    assert model(past).shape == (3, 5, 2)
    assert torch.allclose(model(past + 100), model(past) + 100, atol=1e-4)  # a level is carried over


def test_seasonal_repeat_needs_a_full_season() -> None:
    with pytest.raises(ShapeError, match="9 steps"):
        SeasonalRepeat(specs.SeasonalRepeatSpec(prediction_length=3, season=9))(torch.ones(1, 8, 1))


@pytest.mark.skipif(not (DATA / "ett").is_dir(), reason="needs GLASSFORMER_DATA")
def test_forecast_errors_on_a_real_series_match_numpy() -> None:
    """Repeating, against one loop over the file; the linear fit, near the published 0.374 / 0.394."""
    path = DATA / "ett" / "ETTh1.csv.gz"
    series = read_series(path, errors=RowErrors())
    parts = split_by_rows(series, 8640, 11_520, 14_400)
    scaler = Scaler.fit(series, parts.train)
    train, test = (
        Windows(series=series, part=part, scaler=scaler, context=336, horizon=96)
        for part in (parts.train, parts.test)
    )
    rows = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, 8))
    rows = (rows - rows[:8640].mean(0)) / rows[:8640].std(0)
    off = [rows[n : n + 96] - rows[n - 1] for n in range(11_520, 14_400 - 96 + 1)]
    repeat = scores(RepeatLast(specs.RepeatLastSpec(prediction_length=96)), test)
    assert repeat.forecasts == len(off) == 2785
    assert repeat.mse == pytest.approx(np.square(off).mean(), rel=1e-5)
    assert repeat.mae == pytest.approx(np.abs(off).mean(), rel=1e-5)
    linear = LinearForecaster(specs.LinearSpec(context_length=336, prediction_length=96))
    linear.fit(batches(train))
    learned = scores(linear, test)
    assert learned.mse == pytest.approx(0.374, abs=0.01) and learned.mae == pytest.approx(0.394, abs=0.01)

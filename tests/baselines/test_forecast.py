"""Simple forecasters: exact where a rule says so, and savable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.baselines import build_baseline
from glassformer.baselines import spec as specs
from glassformer.baselines.forecast import RepeatLast, SeasonalRepeat
from glassformer.data.row_errors import RowErrors
from glassformer.data.series import read_series
from glassformer.data.windows import Scaler, Windows, split_by_rows
from glassformer.errors import ShapeError
from glassformer.metrics.forecast import ForecastErrors, ForecastScores
from glassformer.schema import from_dict, to_dict

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
    """The errors of repeating the last value, against one loop over the file."""
    path = DATA / "ett" / "ETTh1.csv.gz"
    series = read_series(path, errors=RowErrors())
    parts = split_by_rows(series, 8640, 11_520, 14_400)
    scaler = Scaler.fit(series, parts.train)
    test = Windows(series=series, part=parts.test, scaler=scaler, context=336, horizon=96)
    rows = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, 8))
    rows = (rows - rows[:8640].mean(0)) / rows[:8640].std(0)
    off = [rows[n : n + 96] - rows[n - 1] for n in range(11_520, 14_400 - 96 + 1)]
    repeat = scores(RepeatLast(specs.RepeatLastSpec(prediction_length=96)), test)
    assert repeat.forecasts == len(off) == 2785
    assert repeat.mse == pytest.approx(np.square(off).mean(), rel=1e-5)
    assert repeat.mae == pytest.approx(np.abs(off).mean(), rel=1e-5)

"""Forecasts with known covariates, from the recipe to the future rows of a file."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import glassformer
from glassformer.data.timestamps import calendar_features
from glassformer.errors import InvalidValueError, UnknownNameError
from glassformer.training.data_cache import no_log
from glassformer.training.logging.history import read_history
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import run

ROWS, HORIZON, NOISE = 700, 6, 0.1
SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1, "patch_length": 8, "stride": 4}


def table(path: Path, future: int = 0) -> NDArray[np.float64]:
    """Write y = 2 promo + price + noise, both random; return y, which the last `future` rows leave empty."""
    draw = np.random.default_rng(0)
    promo, price = draw.integers(0, 2, ROWS), draw.normal(0, 1, ROWS)
    y = 2 * promo + price + draw.normal(0, NOISE, ROWS)
    lines = ["ds,y,promo,price"]
    for n in range(ROWS):
        value = "" if n >= ROWS - future else f"{y[n]:.5f}"
        lines.append(f"{datetime(2024, 1, 1) + timedelta(hours=n)},{value},{promo[n]},{price[n]:.5f}")
    path.write_text("\n".join(lines) + "\n")
    return y


def train(file: Path, out: Path, **data: Any) -> float:
    recipe = {
        "job": "forecast",
        "data": {
            "train": [str(file)],
            "target_columns": ["y"],
            "context_length": 24,
            "horizon": HORIZON,
            **data,
        },
        "model": {**SIZES, **dict.fromkeys(("dropout", "ffn_dropout", "embed_dropout"), 0.0)},
        "training": {"max_steps": 150, "lr": 0.01, "batch_size": 32, "eval_steps": 150},
    }
    run(parse_recipe(recipe), out, log=no_log)
    mse: float = read_history(out).facts()["test mse"]
    return mse


def test_known_covariates_explain_the_future(tmp_path: Path) -> None:
    y = table(tmp_path / "all.csv")
    known = {"known_covariates": ["promo", "price"]}
    with_them = train(tmp_path / "all.csv", tmp_path / "known", **known)
    without = train(tmp_path / "all.csv", tmp_path / "plain")
    noise = (NOISE / y[: int(0.7 * ROWS)].std()) ** 2  # in standardized units
    assert with_them < 3 * noise and without > 30 * noise
    table(tmp_path / "future.csv", future=HORIZON)
    pipeline = glassformer.load(tmp_path / "known")
    forecast = pipeline.forecast(tmp_path / "future.csv")
    assert np.abs(forecast.values[0, :, 0] - y[-HORIZON:]).max() < 5 * NOISE
    assert forecast.timestamp(0, HORIZON - 1) == str(datetime(2024, 1, 1) + timedelta(hours=ROWS - 1))
    with pytest.raises(InvalidValueError) as caught:
        pipeline.forecast(tmp_path / "all.csv")  # no future rows
    assert caught.value.value == 0
    with pytest.raises(UnknownNameError):
        train(tmp_path / "all.csv", tmp_path / "wrong", known_covariates=["prize"])


def test_calendar_features_are_those_of_the_dates() -> None:
    dates = [datetime(2024, 2, 29, 18), datetime(1969, 12, 31, 6)]
    stamps = np.array([np.datetime64(date, "us").astype(np.int64) for date in dates])
    names = ("hour", "day_of_week", "day_of_month", "day_of_year", "month")
    for row, date in zip(calendar_features(stamps, names), dates, strict=True):
        days = date.timetuple().tm_yday - 1
        parts = (date.hour / 24, date.weekday() / 7, (date.day - 1) / 31, days / 366, (date.month - 1) / 12)
        angles = 2 * np.pi * np.array(parts)
        np.testing.assert_allclose(
            row.reshape(-1, 2), np.stack((np.sin(angles), np.cos(angles)), 1), atol=1e-9
        )

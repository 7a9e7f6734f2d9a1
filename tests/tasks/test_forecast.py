"""Forecasts of files and tables: the reference's numbers in the series' own units, at the right dates."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.core.distributions import Gaussian, NegativeBinomial, StudentT
from glassformer.errors import (
    GlassformerError,
    InvalidValueError,
    ShapeError,
)
from glassformer.families.sidecars import JobInfo
from glassformer.tasks.forecasting import Forecast, Forecaster, quantiles
from tests.families import harness
from tests.families.cases import _SERIES

NAMES = ["a", "b", "c"]
CONTEXT, STEPS = _SERIES["context_length"], _SERIES["prediction_length"]


def table(rows: int = 40, seed: int = 0) -> dict[str, list[Any]]:
    values = np.random.default_rng(seed).normal(5, 3, (rows, 3)).round(3)
    days = [f"2024-01-{1 + n // 24:02} {n % 24:02}:00" for n in range(rows)]
    return {"date": days, **{name: values[:, n].tolist() for n, name in enumerate(NAMES)}}


def forecast(bundle: glassformer.Bundle, series: Any, **options: Any) -> Forecast:
    return Forecaster(bundle, **options)(series)


def written(path: Path, columns: dict[str, list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def folder(path: Path, job: dict[str, Any] | None = None, **settings: Any) -> tuple[Any, glassformer.Bundle]:
    model = harness.reference("PatchTSTForPrediction", {**_SERIES, **settings})
    bundle = glassformer.load(harness.saved(model, path))
    if job is not None:
        bundle.job = JobInfo.from_dict(job)
    return model, bundle


def past_of(columns: dict[str, list[Any]]) -> torch.Tensor:
    return torch.tensor([columns[name][-CONTEXT:] for name in NAMES], dtype=torch.float32).T[None]


@pytest.mark.parametrize("settings", [{}, {"pooling_type": None, "scaling": "mean"}], ids=["mean", "flat"])
def test_values_match_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    model, bundle = folder(tmp_path, **settings)
    columns = table()
    told = forecast(bundle, written(tmp_path / "x.csv", columns))
    with torch.no_grad():
        wanted = model(past_values=past_of(columns)).prediction_outputs
    assert np.abs(told.values - wanted.numpy()).max() < 1e-4
    assert told.levels == () and any("no quantiles" in note for note in told.notes)
    assert [told.timestamp(0, n) for n in (0, 4)] == ["2024-01-02 16:00:00", "2024-01-02 20:00:00"]


def test_quantiles_match_transformers(tmp_path: Path) -> None:
    """In the units of the file, though the model reads and tells scaled values."""
    mean, std = [4.0, 5.0, 6.0], [2.0, 3.0, 0.5]
    job = {"columns": NAMES, "mean": mean, "std": std, "frequency": "1 hour"}
    model, bundle = folder(tmp_path, job, loss="nll", distribution_output="normal")
    columns = table()
    told = forecast(bundle, columns, levels=(0.9, 0.25))
    scale, shift = torch.tensor(std), torch.tensor(mean)
    with torch.no_grad():
        out = model(past_values=(past_of(columns) - shift) / scale)
    loc, spread = out.prediction_outputs
    loc, spread = loc * out.scale + out.loc, spread * out.scale  # it scales by itself too
    assert told.levels == (0.25, 0.9) and not told.notes
    for n, level in enumerate(told.levels):
        bell = torch.distributions.Normal(loc, spread).icdf(torch.tensor(level))
        assert np.abs(told.quantiles[n] - (bell * scale + shift).numpy()).max() < 1e-4
    assert np.abs(told.values - (loc * scale + shift).numpy()).max() < 1e-4
    assert told.header() == ["ds", *NAMES, "a_0.25", "a_0.9", "b_0.25", "b_0.9", "c_0.25", "c_0.9"]
    row = next(told.rows())
    assert row[4:6] == told.quantiles[:, 0, 0, 0].tolist() and row[8:] == told.quantiles[:, 0, 0, 2].tolist()


def test_quantiles_of_student_t_and_negative_binomial() -> None:
    """Against the printed tables of Student's t; and counts against their own distribution."""
    known = {(3, 0.9): 1.637744, (5, 0.9): 1.475884, (10, 0.975): 2.228139, (3, 0.999): 10.214532}
    known |= {(30, 0.9): 1.310415, (1e6, 0.975): 1.959966, (3, 0.5): 0.0, (10, 0.025): -2.228139}
    for (df, level), value in known.items():
        told = StudentT(*(torch.tensor([x], dtype=torch.float64) for x in (df, 7.0, 2.0)))
        assert float(quantiles(told, (level,))) == pytest.approx(7 + 2 * value, abs=3e-6)
    counts = NegativeBinomial(torch.tensor([4.0, 50.0]), torch.tensor([0.5, -1.0]))
    before = torch.get_rng_state()
    low, high = quantiles(counts, (0.1, 0.9))
    assert torch.equal(before, torch.get_rng_state())
    drawn = counts.distribution.sample(torch.Size((200_000,)))
    for value, level in ((low, 0.1), (high, 0.9)):
        share = (drawn <= value).double().mean(0)
        assert ((share - level) > -0.03).all() and ((drawn < value).double().mean(0) < level + 0.03).all()
    bell = Gaussian(torch.zeros(2, 3), torch.ones(2, 3))
    assert quantiles(bell, (0.1, 0.5, 0.9)).shape == (3, 2, 3)


def test_series_are_independent_and_month_ends_stay(tmp_path: Path) -> None:
    """Each from its own last rows, as if it were alone; the last day of a month stays the last."""
    _, bundle = folder(tmp_path, num_input_channels=1, scaling="std")
    days = [f"{2020 + n // 12}-{1 + n % 12:02}" for n in range(30)]
    ends = [str(np.datetime64(day) + 1) for day in days]
    ends = [str(np.datetime64(day, "D") - 1) for day in ends]
    rows = np.random.default_rng(1).normal(size=(3, 30)).round(3)
    long = {
        "unique_id": [name for name in "xyz" for _ in ends],
        "ds": ends * 3,
        "y": rows.reshape(-1).tolist(),
    }
    told = forecast(bundle, long)
    assert told.ids == ("x", "y", "z") and told.values.shape == (3, STEPS, 1)
    assert [told.timestamp(1, n) for n in range(2)] == ["2022-07-31", "2022-08-31"]
    for n, name in enumerate("xyz"):
        alone = forecast(bundle, {"ds": ends, name: rows[n].tolist()})
        assert np.abs(alone.values[0] - told.values[n]).max() < 1e-5
    assert told.header()[:3] == ["unique_id", "ds", "y"] and [row[0] for row in told.rows()][STEPS] == "y"


def test_table_gives_the_forecast_of_its_file(tmp_path: Path) -> None:
    _, bundle = folder(tmp_path)
    columns = table()
    one, other = forecast(bundle, columns), forecast(bundle, str(written(tmp_path / "x.csv", columns)))
    assert np.array_equal(one.values, other.values) and np.array_equal(one.stamps, other.stamps)

    class Frame:  # what data frames of any library have in common
        columns = ("date", *NAMES)

        def __getitem__(self, name: str) -> Any:
            return np.array(table()[name])

    assert np.array_equal(forecast(bundle, Frame()).values, one.values)


def test_baselines_forecast_too(tmp_path: Path) -> None:
    from glassformer import baselines

    spec = baselines.spec.RepeatLast(prediction_length=2)
    bundle = glassformer.Pipeline(model=baselines.build_baseline(spec))
    columns = table(5)
    last = [columns[name][-1] for name in NAMES]
    assert np.allclose(forecast(bundle, columns).values, [[last, last]])


@pytest.mark.parametrize(
    ("options", "rows", "error"),
    [
        ({"columns": ["a", "b", "odd"]}, 40, GlassformerError),
        ({"columns": ["a", "b"]}, 40, ShapeError),
        ({"levels": (2.0,)}, 40, InvalidValueError),
        ({}, 20, ShapeError),
        ({"time": "when"}, 40, GlassformerError),
    ],
    ids=str,
)
def test_impossible_requests_are_errors(
    options: dict[str, Any], rows: int, error: type[GlassformerError], tmp_path: Path
) -> None:
    with pytest.raises(error):
        forecast(folder(tmp_path)[1], table(rows), **options)

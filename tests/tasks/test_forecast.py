"""Forecasts of files and tables match transformers, in the units of the series, with the right timestamps."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.core.series.distributions import Gaussian, NegativeBinomial, StudentT
from glassformer.families.sidecars import JobInfo
from glassformer.interpret.schema import SeriesColumns, TraceInput
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import trace_model
from glassformer.tasks.forecasting import Forecast, Forecaster, quantiles
from glassformer.verify.inputs import perturb_parameters
from tests.families import harness
from tests.families.cases import _SERIES

NAMES = ["a", "b", "c"]
CONTEXT, STEPS = _SERIES["context_length"], _SERIES["prediction_length"]


def random_table(rows: int = 40, seed: int = 0) -> dict[str, list[Any]]:
    values = np.random.default_rng(seed).normal(5, 3, (rows, 3)).round(3)
    days = [f"2024-01-{1 + n // 24:02} {n % 24:02}:00" for n in range(rows)]
    return {"date": days, **{name: values[:, n].tolist() for n, name in enumerate(NAMES)}}


def forecast(bundle: glassformer.Bundle, series: Any, **options: Any) -> Forecast:
    return Forecaster(bundle, **options)(series)


def write_csv(path: Path, columns: dict[str, list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def folder(path: Path, job: dict[str, Any] | None = None, **settings: Any) -> tuple[Any, glassformer.Bundle]:
    model = harness.reference("PatchTSTForPrediction", {**_SERIES, **settings})
    bundle = glassformer.load(harness.save_reference(model, path))
    if job is not None:
        bundle.job = JobInfo.from_dict(job)
    return model, bundle


def past_of(columns: dict[str, list[Any]]) -> torch.Tensor:
    return torch.tensor([columns[name][-CONTEXT:] for name in NAMES], dtype=torch.float32).T[None]


@pytest.mark.parametrize("settings", [{}, {"pooling_type": None, "scaling": "mean"}], ids=["mean", "flat"])
def test_values_match_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    model, bundle = folder(tmp_path, **settings)
    columns = random_table()
    result = forecast(bundle, write_csv(tmp_path / "x.csv", columns))
    with torch.no_grad():
        expected = model(past_values=past_of(columns)).prediction_outputs
    assert np.abs(result.values - expected.numpy()).max() < 1e-4
    assert result.quantile_levels == () and any("no quantiles" in note for note in result.notes)
    assert [result.timestamp(0, n) for n in (0, 4)] == ["2024-01-02 16:00:00", "2024-01-02 20:00:00"]


def test_quantiles_match_transformers(tmp_path: Path) -> None:
    """In the units of the file, although the model reads and predicts scaled values."""
    mean, std = [4.0, 5.0, 6.0], [2.0, 3.0, 0.5]
    job = {"columns": NAMES, "mean": mean, "std": std, "frequency": "1 hour"}
    model, bundle = folder(tmp_path, job, loss="nll", distribution_output="normal")
    columns = random_table()
    result = forecast(bundle, columns, quantile_levels=(0.9, 0.25))
    scale, shift = torch.tensor(std), torch.tensor(mean)
    with torch.no_grad():
        out = model(past_values=(past_of(columns) - shift) / scale)
    loc, spread = out.prediction_outputs
    loc, spread = loc * out.scale + out.loc, spread * out.scale  # the model also scales its inputs
    assert result.quantile_levels == (0.25, 0.9) and not result.notes
    for n, level in enumerate(result.quantile_levels):
        bell = torch.distributions.Normal(loc, spread).icdf(torch.tensor(level))
        assert np.abs(result.quantiles[n] - (bell * scale + shift).numpy()).max() < 1e-4
    assert np.abs(result.values - (loc * scale + shift).numpy()).max() < 1e-4
    assert result.header() == ["date", *NAMES, "a_0.25", "a_0.9", "b_0.25", "b_0.9", "c_0.25", "c_0.9"]
    row = next(result.rows())
    assert (
        row[4:6] == result.quantiles[:, 0, 0, 0].tolist() and row[8:] == result.quantiles[:, 0, 0, 2].tolist()
    )


def test_quantiles_of_student_t_and_negative_binomial() -> None:
    """Student's t against published tables, the negative binomial against samples."""
    known = {(3, 0.9): 1.637744, (5, 0.9): 1.475884, (10, 0.975): 2.228139, (3, 0.999): 10.214532}
    known |= {(30, 0.9): 1.310415, (1e6, 0.975): 1.959966, (3, 0.5): 0.0, (10, 0.025): -2.228139}
    for (df, level), value in known.items():
        student_t = StudentT(*(torch.tensor([x], dtype=torch.float64) for x in (df, 7.0, 2.0)))
        assert float(quantiles(student_t, (level,))) == pytest.approx(7 + 2 * value, abs=3e-6)
    counts = NegativeBinomial(torch.tensor([4.0, 50.0]), torch.tensor([0.5, -1.0]))
    before = torch.get_rng_state()
    low, high = quantiles(counts, (0.1, 0.9))
    assert torch.equal(before, torch.get_rng_state())
    samples = counts.distribution.sample(torch.Size((200_000,)))
    for value, level in ((low, 0.1), (high, 0.9)):
        share = (samples <= value).double().mean(0)
        assert ((share - level) > -0.03).all() and ((samples < value).double().mean(0) < level + 0.03).all()
    bell = Gaussian(torch.zeros(2, 3), torch.ones(2, 3))
    assert quantiles(bell, (0.1, 0.5, 0.9)).shape == (3, 2, 3)


def test_series_are_independent_and_month_ends_stay(tmp_path: Path) -> None:
    """Each series is forecast from its own last rows; timestamps at month ends stay at month ends."""
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
    result = forecast(bundle, long)
    assert result.ids == ("x", "y", "z") and result.values.shape == (3, STEPS, 1)
    assert [result.timestamp(1, n) for n in range(2)] == ["2022-07-31", "2022-08-31"]
    for n, name in enumerate("xyz"):
        alone = forecast(bundle, {"ds": ends, name: rows[n].tolist()})
        assert np.abs(alone.values[0] - result.values[n]).max() < 1e-5
    assert result.header()[:3] == ["unique_id", "ds", "y"] and [row[0] for row in result.rows()][STEPS] == "y"


def test_table_gives_the_forecast_of_its_file(tmp_path: Path) -> None:
    _, bundle = folder(tmp_path)
    columns = random_table()
    from_table, from_file = (
        forecast(bundle, columns),
        forecast(bundle, str(write_csv(tmp_path / "x.csv", columns))),
    )
    assert np.array_equal(from_table.values, from_file.values) and np.array_equal(
        from_table.stamps, from_file.stamps
    )

    class Frame:  # what data frames of any library have in common
        columns = ("date", *NAMES)

        def __getitem__(self, name: str) -> Any:
            return np.array(random_table()[name])

    assert np.array_equal(forecast(bundle, Frame()).values, from_table.values)


def test_baseline_forecasts(tmp_path: Path) -> None:
    from glassformer import baselines

    spec = baselines.spec.RepeatLastSpec(prediction_length=2)
    bundle = glassformer.Pipeline(model=baselines.build_baseline(spec))
    columns = random_table(5)
    last = [columns[name][-1] for name in NAMES]
    assert np.allclose(forecast(bundle, columns).values, [[last, last]])


UNITS = [1e-100, 1e-15, 1e-6, 1e-4, 0.003, 0.1, 10.0, 1e6, 1e100]
MODELS = ["pocket-series"] + [
    f"{kind} {by}" for kind in ("none", "normal", "student_t") for by in ("std", "mean")
]


@cache
def model(name: str) -> glassformer.Bundle:
    """A shipped model, or a tiny one by its distribution and scaling."""
    if name == "pocket-series":
        return glassformer.load(name)
    distribution, scaling = name.split()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"context_length": 96, "prediction_length": 24, "patch_length": 8, "stride": 4, "channels": 1}
        patchtst = glassformer.tiny("patchtst", **sizes, distribution=distribution, scaling=scaling)
    perturb_parameters(patchtst)
    return glassformer.Pipeline(model=patchtst.eval(), family="patchtst")


def waves(height: float = 2.0) -> np.ndarray:
    """A noisy daily cycle of 24 steps with a standard deviation near 1: (120,)."""
    steps = np.arange(120)
    return height + np.sin(steps * 2 * np.pi / 24) + np.random.default_rng(0).normal(0, 0.3, 120)


def forecast_of(bundle: glassformer.Bundle, values: np.ndarray) -> Forecast:
    return forecast(bundle, {"ds": list(range(len(values))), "y": values.tolist()})


def gap(actual: Forecast, expected: Forecast, unit: float) -> float:
    """The difference of forecasts in two units, relative to the range of values."""
    pairs = ((actual.values, expected.values), (actual.quantiles, expected.quantiles))
    ends = np.concatenate([expected.values.ravel(), expected.quantiles.ravel()])
    worst = max(float(np.abs(a / unit - b).max(initial=0)) for a, b in pairs)
    return worst / float(np.ptp(ends))


@pytest.mark.parametrize("name", MODELS)
def test_units_do_not_change_the_forecast(name: str) -> None:
    bundle = model(name)
    base = forecast_of(bundle, waves())
    for unit in UNITS:
        assert gap(forecast_of(bundle, unit * waves()), base, unit) < 1e-4
    doubled = forecast_of(bundle, 2.0**-20 * waves().astype(np.float32).astype(float))
    exact = forecast_of(bundle, waves().astype(np.float32).astype(float))
    assert np.array_equal(doubled.values * np.float32(2**20), exact.values)


@pytest.mark.parametrize("offset", [1e7, 1e9, -1e12])
@pytest.mark.parametrize("name", ["pocket-series", "normal std"])
def test_offset_is_added_to_the_forecast(name: str, offset: float) -> None:
    """Formatted rows have enough digits to distinguish steps and quantiles."""
    bundle = model(name)
    base, shifted = forecast_of(bundle, waves()), forecast_of(bundle, offset + waves())
    assert not shifted.notes
    for actual, expected in ((shifted.values, base.values), (shifted.quantiles, base.quantiles)):
        assert np.abs(actual - offset - expected).max() < 1e-3
    for text, row in zip(shifted.formatted_rows(), base.rows(), strict=True):
        gaps = [float(x) - offset - float(y) for x, y in zip(text[1:], row[1:], strict=True)]
        assert np.abs(gaps).max() < 2e-3


@pytest.mark.parametrize("name", MODELS)
def test_forecast_matches_the_model_output(name: str) -> None:
    bundle, values = model(name), 30 * waves(1.0)
    past = torch.tensor(values[-96:], dtype=torch.float32)[None, :, None]
    with torch.no_grad():
        output: Any = bundle.model(past)
    expected = output if isinstance(output, torch.Tensor) else output.mean
    assert np.abs(forecast_of(bundle, values).values - expected.numpy()).max() < 2e-5 * float(values.std())


@pytest.mark.parametrize("name", MODELS)
def test_constant_series_stay_near_their_value_in_any_unit(name: str) -> None:
    """Also with rounding noise; a series of zeros gives finite numbers."""
    bundle, constant = model(name), np.full(120, 7.0)
    base = forecast_of(bundle, constant)
    noisy = constant + np.where(np.arange(120) % 2, 8.9e-16, 0)
    for unit in UNITS:
        for values in (constant, noisy):
            result = forecast_of(bundle, unit * values)
            assert gap(result, base, unit) < 1e-2
            assert np.isfinite(result.values).all() and np.isfinite(result.quantiles).all()
    if name == "pocket-series":
        assert np.abs(base.values - 7).max() < 0.1 and np.ptp(base.quantiles) < 0.7
    zeros = forecast_of(bundle, np.zeros(120))
    assert np.isfinite(zeros.values).all() and np.isfinite(zeros.quantiles).all()


@pytest.mark.parametrize("unit, offset", [(1e-6, 0.0), (1.0, 0.0), (1.0, 1e9), (1e100, 0.0)])
def test_explorer_shows_the_same_forecast(unit: float, offset: float) -> None:
    bundle, values = model("pocket-series"), unit * waves() + offset
    trace = trace_model(bundle, TraceInput(series=SeriesColumns(columns={"y": tuple(values.tolist())})))
    result = forecast_of(bundle, values)
    expected = {"forecast": result.values[0].T, "quantiles": result.quantiles[:, 0].transpose(2, 0, 1)}
    for name, tensor in expected.items():
        derived, sent = (
            trace.derived[f"forecast.{name}"].numpy(),
            read_tensor(trace, f"forecast.{name}").data(),
        )
        assert np.allclose(derived - offset, tensor - offset, rtol=1e-5, atol=1e-6 * unit)
        assert np.array_equal(np.frombuffer(sent, "<f8").reshape(derived.shape), derived)

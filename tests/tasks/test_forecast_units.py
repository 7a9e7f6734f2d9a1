"""A forecast does not depend on the units of its series, and the explorer shows the same one."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.interpret.schema import SeriesColumns, TraceInput
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import trace_model
from glassformer.tasks import Forecast, Forecaster
from glassformer.verify.inputs import stir

UNITS = [1e-300, 1e-15, 1e-6, 1e-4, 0.003, 0.1, 10.0, 1e6, 1e300]
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
        made = glassformer.tiny("patchtst", **sizes, distribution=distribution, scaling=scaling)
    stir(made)
    return glassformer.Pipeline(model=made.eval(), family="patchtst")


def waves(height: float = 2.0) -> np.ndarray:
    """Days of 24 steps with noise, of a spread near 1: (120,)."""
    steps = np.arange(120)
    return height + np.sin(steps * 2 * np.pi / 24) + np.random.default_rng(0).normal(0, 0.3, 120)


def forecast_of(bundle: glassformer.Bundle, values: np.ndarray) -> Forecast:
    return Forecaster(bundle)({"ds": list(range(len(values))), "y": values.tolist()})


def gap(ours: Forecast, theirs: Forecast, unit: float) -> float:
    """The difference of forecasts in two units, relative to the range of values."""
    pairs = ((ours.values, theirs.values), (ours.quantiles, theirs.quantiles))
    ends = np.concatenate([theirs.values.ravel(), theirs.quantiles.ravel()])
    off = max(float(np.abs(a / unit - b).max(initial=0)) for a, b in pairs)
    return off / float(np.ptp(ends))


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
    """Formatted rows keep enough digits to tell steps and quantiles apart."""
    bundle = model(name)
    base, told = forecast_of(bundle, waves()), forecast_of(bundle, offset + waves())
    assert not told.notes
    for ours, theirs in ((told.values, base.values), (told.quantiles, base.quantiles)):
        assert np.abs(ours - offset - theirs).max() < 1e-3
    for text, row in zip(told.formatted_rows(), base.rows(), strict=True):
        assert (
            np.abs([float(x) - offset - float(y) for x, y in zip(text[1:], row[1:], strict=True)]).max()
            < 2e-3
        )


@pytest.mark.parametrize("name", MODELS)
def test_series_of_ordinary_size_match_the_model(name: str) -> None:
    bundle, values = model(name), 30 * waves(1.0)
    past = torch.tensor(values[-96:], dtype=torch.float32)[None, :, None]
    with torch.no_grad():
        plain: Any = bundle.model(past)
    wanted = plain if isinstance(plain, torch.Tensor) else plain.mean
    assert np.abs(forecast_of(bundle, values).values - wanted.numpy()).max() < 2e-5 * float(values.std())


@pytest.mark.parametrize("name", MODELS)
def test_constant_series_stay_near_their_value_in_any_unit(name: str) -> None:
    """Also with rounding noise; a series of zeros gives finite numbers."""
    bundle, still = model(name), np.full(120, 7.0)
    base = forecast_of(bundle, still)
    trembling = still + np.where(np.arange(120) % 2, 8.9e-16, 0)
    for unit in UNITS:
        for values in (still, trembling):
            told = forecast_of(bundle, unit * values)
            assert gap(told, base, unit) < 1e-2
            assert np.isfinite(told.values).all() and np.isfinite(told.quantiles).all()
    if name == "pocket-series":
        assert np.abs(base.values - 7).max() < 0.1 and np.ptp(base.quantiles) < 0.7
    nothing = forecast_of(bundle, np.zeros(120))
    assert np.isfinite(nothing.values).all() and np.isfinite(nothing.quantiles).all()


@pytest.mark.parametrize("unit, offset", [(1e-6, 0.0), (1.0, 0.0), (1.0, 1e9), (1e300, 0.0)])
def test_explorer_shows_the_same_forecast(unit: float, offset: float) -> None:
    bundle, values = model("pocket-series"), unit * waves() + offset
    trace = trace_model(bundle, TraceInput(series=SeriesColumns(columns={"y": tuple(values.tolist())})))
    told = forecast_of(bundle, values)
    for name, wanted in (
        ("forecast", told.values[0].T),
        ("quantiles", told.quantiles[:, 0].transpose(2, 0, 1)),
    ):
        kept, sent = trace.derived[f"forecast.{name}"].numpy(), read_tensor(trace, f"forecast.{name}").data()
        assert np.allclose(kept - offset, wanted - offset, rtol=1e-5, atol=1e-6 * unit)
        assert np.array_equal(np.frombuffer(sent, "<f8").reshape(kept.shape), kept)

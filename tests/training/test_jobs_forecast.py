"""Forecasting, from a file of series to a folder that transformers loads too."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.errors import GlassformerError, InvalidValueError
from glassformer.training.data_cache import no_log
from glassformer.training.logging.history import read_history
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import run

COLUMNS = 8
SIZES: dict[str, float] = {
    "patch_length": 8,
    "stride": 4,
    "d_model": 32,
    "num_heads": 4,
    "d_ff": 64,
    "num_layers": 1,
}
SIZES |= dict.fromkeys(("dropout", "ffn_dropout", "embed_dropout"), 0.0)


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steep waves on trends, each column with a period of its own: too many for one linear map."""
    draw, time = np.random.default_rng(0), np.arange(500)
    columns = []
    for _ in range(COLUMNS):
        wave = np.sin(2 * np.pi * time / draw.uniform(8, 40) + draw.uniform(0, 6))
        columns.append(np.tanh(4 * wave) + time * draw.uniform(-0.004, 0.004) + draw.normal(0, 0.03, 500))
    return table(tmp_path_factory.mktemp("series") / "waves.csv", np.stack(columns, 1))


def table(path: Path, values: Any, left_out: int | None = None) -> Path:
    lines = ["date," + ",".join(f"c{n}" for n in range(values.shape[1]))]
    for n, row in enumerate(values):
        if n != left_out:
            when = datetime(2024, 1, 1) + timedelta(hours=n)
            lines.append(f"{when:%Y-%m-%d %H:%M:%S}," + ",".join(f"{value:.4f}" for value in row))
    path.write_text("\n".join(lines) + "\n")
    return path


def forecast(file: Path, out: Path, model: Any, **training: Any) -> dict[str, float]:
    """Train; the figures on the test part, which neither training nor choosing has seen."""
    data = {"train": [str(file)], "context_length": 48, "horizon": 12}
    options = {"max_steps": 160, "lr": 0.003, "batch_size": 32, "eval_steps": 160, **training}
    recipe = {"job": "forecast", "data": data, "model": model, "training": options}
    run(parse_recipe(recipe), out, log=no_log)
    facts = read_history(out).facts()
    return {name.removeprefix("test "): facts[name] for name in facts if name.startswith("test ")}


def test_transformer_beats_the_baselines_and_matches_transformers(waves: Path, tmp_path: Path) -> None:
    repeat = forecast(waves, tmp_path / "repeat", "repeat", optimizer="adam")  # no parameters
    linear = forecast(waves, tmp_path / "linear", "linear", lr=0.01)
    result = forecast(waves, tmp_path / "patches", SIZES)
    assert repeat["mse"] == repeat["repeat_mse"] == linear["repeat_mse"] == result["repeat_mse"]
    assert result["mse"] < 0.8 * linear["mse"] < 0.8 * repeat["mse"]
    assert result["mae"] < linear["mae"] < repeat["mae"]
    for name in ("repeat", "linear", "patches"):
        bundle = glassformer.load(tmp_path / name / "model")
        about = bundle.job.to_dict()
        assert about["columns"] == [f"c{n}" for n in range(COLUMNS)] and about["frequency"] == "1 hour"
        assert (about["context"], about["horizon"]) == (48, 12)
        assert len(about["mean"]) == len(about["std"]) == COLUMNS
        past = torch.randn(2, 48, COLUMNS)
        with torch.no_grad():
            forecast_output = bundle.model(past)
        assert forecast_output.shape == (2, 12, COLUMNS)
    theirs = pytest.importorskip("transformers").PatchTSTForPrediction.from_pretrained(
        tmp_path / "patches/model"
    )
    with torch.no_grad():
        assert torch.allclose(forecast_output, theirs.eval()(past).prediction_outputs, atol=1e-4)


def test_scaler_knows_only_the_training_rows(tmp_path: Path) -> None:
    """Later rows have another level and spread, which no forecaster may know."""
    values = np.random.default_rng(0).normal(3, 2, (200, 2)).round(4)
    values[140:] = (values[140:] * 50 + 1000).round(4)
    forecast(table(tmp_path / "x.csv", values), tmp_path / "run", "repeat", max_steps=1)
    job = glassformer.load(tmp_path / "run/model").job
    assert np.allclose(job.mean, values[:140].mean(0)) and np.allclose(job.std, values[:140].std(0))


def test_filled_gaps_are_filled_again_when_forecasting(tmp_path: Path) -> None:
    file = table(tmp_path / "x.csv", np.random.default_rng(0).normal(size=(200, 2)), left_out=50)
    data = {"train": [str(file)], "context_length": 24, "horizon": 6}
    training = {"max_steps": 1, "device": "cpu"}
    recipe: dict[str, Any] = {"job": "forecast", "model": "repeat", "training": training}
    model = glassformer.train({**recipe, "data": {**data, "fill_missing": "linear"}}, tmp_path / "run")
    model.forecast(file)
    with pytest.raises(GlassformerError):
        model.forecast(file, fill="error")


def test_negative_losses_of_a_density_are_not_outliers(waves: Path, tmp_path: Path) -> None:
    options = {**SIZES, "distribution": "student_t"}
    result = forecast(waves, tmp_path / "run", options, eval_steps=40)
    history = read_history(tmp_path / "run")
    assert history.validations[-1]["metrics"]["loss"] < history.validations[0]["metrics"]["loss"]
    assert result["mse"] < 0.5 * result["repeat_mse"]
    assert history.facts()["skipped steps"] == 0
    forecast_output = glassformer.load(tmp_path / "run/model").model(torch.randn(2, 48, COLUMNS))
    assert forecast_output.df.shape == forecast_output.mean.shape == (2, 12, COLUMNS) and bool(
        (forecast_output.scale > 0).all()
    )


def test_forecasts_do_not_depend_on_units(tmp_path: Path) -> None:
    """Returns of 1e-6 and loads of 1e6 come to the same scores, and to forecasts of their own size."""
    time, draw = np.arange(300), np.random.default_rng(0)
    values = np.tanh(2 * np.sin(time / 3)) + draw.normal(0, 0.1, 300)
    scores, forecast_output = [], []
    for unit in (1.0, 1e-6, 1e6):
        file, out = tmp_path / f"{unit:g}.csv", tmp_path / f"{unit:g}"
        file.write_text("ds,y\n" + "".join(f"{n},{unit * value:.8g}\n" for n, value in enumerate(values)))
        scores.append(forecast(file, out, SIZES | {"distribution": "student_t"}, max_steps=12))
        messages = glassformer.load(out / "model").forecast(file)
        forecast_output.append(np.concatenate([messages.values[None], messages.quantiles]) / unit)
    for n in (1, 2):
        assert scores[n] == pytest.approx(scores[0], rel=1e-3)
        assert (
            np.abs(forecast_output[n] - forecast_output[0]).max() < 0.02
        )  # Adam's first steps blow up what rounding leaves


def test_series_of_much_smaller_variance_are_logged(tmp_path: Path) -> None:
    sizes = {"large": 1000.0, "small": 2.0, "middle": 90.0, "still": 0.0}
    rows = [
        f"{name},{n},{5 + size * np.sin(n / 3):.6f}\n" for name, size in sizes.items() for n in range(200)
    ]
    (tmp_path / "long.csv").write_text("unique_id,ds,y\n" + "".join(rows))
    data = {"train": [str(tmp_path / "long.csv")], "context_length": 48, "horizon": 12}
    recipe = {"job": "forecast", "data": data, "model": "repeat", "training": {"max_steps": 1}}
    messages: list[str] = []
    run(parse_recipe(recipe), tmp_path / "out", log=messages.append)
    assert [line for line in messages if "1 of 4 series" in line and "'small'" in line]


def test_fine_tuning_keeps_context_and_horizon(waves: Path, tmp_path: Path) -> None:
    forecast(waves, tmp_path / "first", SIZES, max_steps=40)
    before = read_history(tmp_path / "first").validations[-1]["metrics"]
    data = {"train": [str(waves)], "context_length": None, "horizon": 96}  # which the model knows better
    model = {"folder": str(tmp_path / "first/model")}
    options = {"max_steps": 1, "lr": 1e-7, "batch_size": 32}
    run(
        parse_recipe({"job": "forecast", "data": data, "model": model, "training": options}),
        tmp_path / "again",
        log=no_log,
    )
    after = read_history(tmp_path / "again").validations[-1]["metrics"]
    # the weights barely move in one such step; the running means of its norms do, towards better ones
    assert after["repeat_mse"] == before["repeat_mse"] > 3 * before["mse"]
    assert after["mse"] < 1.05 * before["mse"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"fill_missing": "linear", "split": [0.5, 0.5]},
        {"fill_missing": "linear", "horizon": 400},
        {"fill_missing": "linear", "target_columns": ["nothing"]},
    ],
    ids=["gap", "split", "horizon", "column"],
)
def test_unusable_series_and_settings_are_errors(change: dict[str, Any], tmp_path: Path) -> None:
    file = table(tmp_path / "gap.csv", np.random.default_rng(0).normal(size=(400, 2)), left_out=300)
    recipe = {"job": "forecast", "data": {"train": [str(file)], "horizon": 12, **change}}
    with pytest.raises(GlassformerError):
        run(parse_recipe(recipe), tmp_path / "run", log=no_log)


def test_horizon_longer_than_the_validation_split_is_named(waves: Path, tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"job": "forecast", "data": {"train": [str(waves)], "horizon": 96}}
    with pytest.raises(InvalidValueError) as error:  # of 500 rows, 50 are for validation
        run(parse_recipe(recipe), tmp_path / "run", log=no_log)
    assert (error.value.name, error.value.value) == ("data.horizon", 96) and "50" in error.value.expected

    # the default fits the data
    recipe |= {"data": {"train": [str(waves)]}, "training": {"max_steps": 1, "device": "cpu"}}
    run(parse_recipe(recipe), tmp_path / "default", log=no_log)
    assert glassformer.load(tmp_path / "default").spec.head.prediction_length == 50


def test_series_of_six_rows_with_a_single_patch_can_be_trained(tmp_path: Path) -> None:
    table = tmp_path / "six.csv"
    table.write_text("date,y\n" + "".join(f"2024-01-0{n},{n % 3}\n" for n in range(1, 7)))
    recipe = parse_recipe(
        {
            "job": "forecast",
            "data": {"train": str(table), "horizon": 1, "context_length": 2},
            "training": {"device": "cpu", "max_steps": 2},
        }
    )
    run(recipe, tmp_path / "run", log=no_log)
    assert (tmp_path / "run" / "model" / "job.json").is_file()

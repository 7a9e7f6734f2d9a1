"""The verb forecast: a table in, a table out, and a picture."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import glassformer
from tests.families import harness
from tests.families.cases import _SERIES
from tests.tasks.test_forecast import NAMES, STEPS, table, written


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = harness.reference("PatchTSTForPrediction", {**_SERIES, "loss": "nll"})
    return harness.saved(made, tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def quiet(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What saving the reference prints is none of ours."""
    capsys.readouterr()


def test_the_table_is_what_python_tells(run: Any, model: Path, tmp_path: Path) -> None:
    data = written(tmp_path / "data.csv", table())
    told = glassformer.load(model).forecast(data)
    done = run("forecast", model, data, "--out", tmp_path / "next.csv", "--threads", 1)
    assert done.code == 0 and not done.out
    text = (tmp_path / "next.csv").read_text()
    header, *rows = csv.reader(io.StringIO(text))
    assert header == told.header() and header[4:6] == ["a_0.1", "a_0.2"] and len(rows) == STEPS
    assert [float(x) for x in rows[2][1:4]] == pytest.approx(told.values[0, 2].tolist(), rel=1e-6)
    low = [float(row[header.index("b_0.1")]) for row in rows]
    high = [float(row[header.index("b_0.9")]) for row in rows]
    assert all(one < other for one, other in zip(low, high, strict=True))
    assert (tmp_path / "next.png").read_bytes().startswith(b"\x89PNG")
    assert run("forecast", model, data).out == text
    told = json.loads(run("forecast", model, data, "--json", "--levels", "0.5").out)
    rows = told["rows"]
    assert 0 < told["seconds"] < 60
    assert list(rows[0]) == ["ds", *NAMES, "a_0.5", "b_0.5", "c_0.5"] and len(rows) == STEPS


def test_a_picture_of_many_columns_with_odd_names(run: Any, tmp_path: Path) -> None:
    names = ["$price$", "가격", "a very long name of a column indeed", *(f"c{n}" for n in range(8))]
    made = harness.reference("PatchTSTForPrediction", {**_SERIES, "num_input_channels": len(names)})
    harness.saved(made, tmp_path / "model")
    rows = table()
    data = written(tmp_path / "d.csv", {"date": rows["date"], **dict.fromkeys(names, rows["a"])})
    done = run("forecast", tmp_path / "model", data, "--picture", tmp_path / "p.png")
    assert done.code == 0 and (tmp_path / "p.png").stat().st_size > 10_000 and "no quantiles" in done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["DATA", "--columns", "a,odd,c"], "no column 'odd'"),
        (["DATA", "--levels", "much"], "--levels is 'much'"),
        (["DATA", "--out", "nowhere/next.csv"], "cannot be written"),
        (["DATA", "--out", "DATA"], "is the file being read"),
        (["nowhere.csv"], "'nowhere.csv' does not exist"),
        (["DATA", "--dtype", "int8"], "leave out int8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_a_sentence(
    args: list[str], said: str, run: Any, model: Path, tmp_path: Path
) -> None:
    data = written(tmp_path / "data.csv", table())
    done = run("forecast", model, *(str(data) if word == "DATA" else word for word in args))
    assert done.code == 2 and said in done.err and len(done.err.splitlines()) == 1 and not done.out


def test_a_bad_table_is_told_with_the_options_of_the_verb(run: Any, model: Path, tmp_path: Path) -> None:
    """A recipe's keys are nothing to somebody who has no recipe."""
    good = table()
    count = len(good["a"])
    for name, bad, option in (
        ("words", {**good, "a": ["Rome"] * count}, "--columns (`columns`)"),
        ("a missing value", {**good, "b": ["", *good["b"][1:]]}, "--fill (`fill`) linear or last"),
        ("a missing row", {key: [*all_[:9], *all_[10:]] for key, all_ in good.items()}, "--fill (`fill`)"),
        ("a stamp twice", {key: [*all_[:9], *all_[8:]] for key, all_ in good.items()}, "--fill (`fill`)"),
        ("no time", {"a": ["x"] * count, "b": good["b"], "c": good["c"]}, "--time (`time`)"),
    ):
        done = run("forecast", model, written(tmp_path / "bad.csv", bad))
        assert done.code == 2 and f"with {option}" in done.err, (name, done.err)
        assert "data." not in done.err and "target" not in done.err

"""`glassformer forecast`: from a table to a table and a figure."""

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
from tests.tasks.test_forecast import NAMES, STEPS, random_table, write_csv

pytestmark = pytest.mark.usefixtures("quiet")


def test_table_matches_the_library(run: Any, folders: dict[str, Path], tmp_path: Path) -> None:
    model = folders["forecast"]
    data = write_csv(tmp_path / "data.csv", random_table())
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
    told = json.loads(run("forecast", model, data, "--json", "--quantile-levels", "0.5").out)
    rows = told["rows"]
    assert 0 < told["seconds"] < 60
    assert list(rows[0]) == ["date", *NAMES, "a_0.5", "b_0.5", "c_0.5"] and len(rows) == STEPS


def test_forecast_is_separated_as_the_input(run: Any, folders: dict[str, Path], tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", random_table())
    other = tmp_path / "other.csv"
    other.write_text(data.read_text().replace(",", ";").replace(".", ","))
    for file, out in ((data, "a.csv"), (other, "b.csv")):
        assert run("forecast", folders["forecast"], file, "--out", tmp_path / out).code == 0
    text = (tmp_path / "a.csv").read_text()
    header, rows = text.split("\n", 1)
    expected = header.replace(",", ";") + "\n" + rows.replace(",", ";").replace(".", ",")
    assert (tmp_path / "b.csv").read_text() == expected
    assert run("forecast", folders["forecast"], other).out == text


def test_figure_of_many_columns_with_odd_names(run: Any, tmp_path: Path) -> None:
    names = ["$price$", "가격", "a very long name of a column indeed", *(f"c{n}" for n in range(8))]
    made = harness.reference("PatchTSTForPrediction", {**_SERIES, "num_input_channels": len(names)})
    harness.save_reference(made, tmp_path / "model")
    rows = random_table()
    data = write_csv(tmp_path / "d.csv", {"date": rows["date"], **dict.fromkeys(names, rows["a"])})
    done = run("forecast", tmp_path / "model", data, "--figure", tmp_path / "p.png")
    assert done.code == 0 and (tmp_path / "p.png").stat().st_size > 10_000

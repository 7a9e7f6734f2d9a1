"""The experiment on the UCR and UEA archives: its files, and its summary."""

from pathlib import Path

import numpy as np

from experiments.ucr import summarize, write_ts
from experiments.ucr_baselines import table
from glassformer.data.labeled_series import read_labeled_series


def test_written_series_are_read_back(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    values[1, :, 3:] = np.nan  # a shorter series
    write_ts(tmp_path / "a.ts", values, np.array([1, 0], np.int16))
    series = read_labeled_series(tmp_path / "a.ts")
    assert series.labels == ["1", "0"] and [len(one) for one in series.values] == [5, 3]
    np.testing.assert_array_equal(series.values[1].astype(np.float32), values[1, :, :3].T)


def test_summary_and_table() -> None:
    runs = [
        {"set": "A", "seed": 1, "accuracy": 0.5, "probabilities": [[0.9, 0.1], [0.6, 0.4]]},
        {"set": "A", "seed": 2, "accuracy": 1.0, "probabilities": [[0.9, 0.1], [0.1, 0.9]]},
    ]
    summary = summarize([{**one, "classes": [0, 1], "truth": [0, 1]} for one in runs])
    assert summary["mean"] == 0.75 and summary["sets"]["A"]["ensemble"] == 1.0
    found = {"A/dtw": 0.5, **{f"A/rocket-{seed}": 0.75 for seed in (1, 2, 3)}}
    assert table(found, summary).splitlines()[-1] == "| mean | **50.0** | **75.0** | **75.0** | **100.0** |"

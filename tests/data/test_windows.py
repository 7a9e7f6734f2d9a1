"""Windows: each future in one part only, the published counts, the scale of the training part alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.row_errors import RowErrors
from glassformer.data.series import SeriesSet, read_series
from glassformer.data.timestamps import TimeStep
from glassformer.data.windows import (
    Scaler,
    SeriesSplit,
    Windows,
    split_by_fraction,
    split_by_rows,
)
from glassformer.errors import InvalidValueError

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))
PLAIN = Scaler((0.0, 0.0), (1.0, 1.0))


def series_of(*lengths: int) -> SeriesSet:
    """Values that tell their place: row of the series, and number of the series."""
    parts = [np.stack([np.arange(n), np.full(n, s)], -1) for s, n in enumerate(lengths)]
    return SeriesSet(
        values=np.concatenate(parts).astype(np.float64),
        stamps=np.concatenate([np.arange(n) for n in lengths]),
        ends=np.cumsum(lengths),
        ids=tuple(f"s{n}" for n in range(len(lengths))),
        names=("row", "series"),
        step=TimeStep(kind="numbers", size=1),
    )


def windows_of(
    series: SeriesSet, parts: SeriesSplit, part: str, context: int, horizon: int
) -> Windows | None:
    try:
        return Windows(
            series=series, part=getattr(parts, part), scaler=PLAIN, context=context, horizon=horizon
        )
    except InvalidValueError:
        return None


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=4),
    context=st.integers(1, 12),
    horizon=st.integers(1, 12),
    train=st.floats(0.4, 0.8),
)
def test_every_window_occurs_once_with_its_future_in_its_split(
    lengths: list[int], context: int, horizon: int, train: float
) -> None:
    series = series_of(*lengths)
    parts = split_by_fraction(series, train, 0.9 - train, 0.1)
    for name in ("train", "valid", "test"):
        part = getattr(parts, name)
        expected = [
            (number, first)
            for number, length in enumerate(lengths)
            for first in range(context, length - horizon + 1)
            if part.start[number] <= first and first + horizon <= part.end[number]
        ]
        windows = windows_of(series, parts, name, context, horizon)
        if windows is None:
            assert not expected
            continue
        assert len(windows) == len(expected)
        batch = windows.batch(np.arange(len(windows)), epoch=0)
        for n, (number, first) in enumerate(expected):
            assert batch["past"][n].tolist() == [[first - context + k, number] for k in range(context)]
            assert batch["future"][n].tolist() == [[first + k, number] for k in range(horizon)]


def test_fractions_follow_the_published_rounding() -> None:
    """Train and test are rounded down, validation gets the rest: 7,588 rows give 5,311, 760 and 1,517."""
    parts = split_by_fraction(series_of(7588))
    assert [int(p.end[0] - p.start[0]) for p in (parts.train, parts.valid, parts.test)] == [5311, 760, 1517]


def test_window_counts_match_the_published_ones() -> None:
    series = series_of(17_420)
    parts = split_by_rows(series, 8640, 11_520, 14_400)
    for horizon, count in ((96, 2785), (192, 2689), (336, 2545), (720, 2161)):
        test = windows_of(series, parts, "test", 336, horizon)
        valid = windows_of(series, parts, "valid", 336, horizon)
        train = windows_of(series, parts, "train", 336, horizon)
        assert test and valid and train
        assert len(test) == len(valid) == count and len(train) == 8640 - 336 - horizon + 1
        first = test.batch(np.array([0]))["past"][0, :, 0]
        assert first[0] == 11_520 - 336 and first[-1] == 11_519  # the past reaches back, the future does not
        assert test.batch(np.array([count - 1]))["future"][0, -1, 0] == 14_399


def test_scaler_is_fitted_on_the_training_split_and_invertible() -> None:
    rng = np.random.default_rng(0)
    series = series_of(50, 70)
    values = rng.normal(1e12, 3, (120, 2))
    values[:, 1] = 7.7  # never changes
    series = SeriesSet(**{**vars(series), "values": values})
    parts = split_by_fraction(series, 0.6, 0.2, 0.2)
    scaler = Scaler.fit(series, parts.train)
    learned = np.concatenate([values[:30], values[50:92]])
    assert np.allclose(scaler.mean, learned.mean(0)) and np.allclose(scaler.std[0], learned[:, 0].std())
    large = replace(series, values=values * 2.0**300)
    assert Scaler.fit(large, parts.train).std[0] == scaler.std[0] * 2.0**300
    assert scaler.std[1] == 1.0
    values[30:50] = values[92:] = 1e9  # what is not learned from changes nothing
    assert Scaler.fit(series, parts.train) == scaler
    scaled = scaler.transform(values[:30])
    assert np.abs(scaler.inverse(scaled) - values[:30]).max() < 1e-3 and np.abs(scaled[:, 1]).max() < 1e-5


def test_windows_and_splits_that_do_not_fit_are_errors() -> None:
    series = series_of(40)
    parts = split_by_rows(series, 20, 30, 40)
    with pytest.raises(InvalidValueError):
        Windows(series=series, part=parts.test, scaler=PLAIN, context=4, horizon=11)
    with pytest.raises(InvalidValueError):
        split_by_rows(series, 20, 30, 41)
    with pytest.raises(InvalidValueError):
        split_by_fraction(series, 0.9, 0.2, 0.2)


@pytest.mark.skipif(not (DATA / "ett").is_dir(), reason="needs GLASSFORMER_DATA")
def test_real_training_windows_are_standardized() -> None:
    series = read_series(DATA / "ett" / "ETTh1.csv.gz", errors=RowErrors())
    parts = split_by_rows(series, 8640, 11_520, 14_400)
    scaled = Scaler.fit(series, parts.train).transform(series.values[:8640])
    assert np.abs(scaled.mean(0, dtype=np.float64)).max() < 1e-5
    assert np.abs(scaled.std(0, dtype=np.float64) - 1).max() < 1e-5

"""The ETT row: every window counts once; the published figures leave out the last ones."""

import numpy as np
import torch

from experiments.ett import batches, measured
from experiments.rows import ROWS
from glassformer.baselines import spec as forecast_spec
from glassformer.baselines.forecast import RepeatLast
from glassformer.data.series import SeriesSet
from glassformer.data.timestamps import TimeStep
from glassformer.data.windows import Scaler, Windows, split_by_rows

CPU = torch.device("cpu")
CONTEXT, HORIZON, ROWS_LONG = 5, 3, 700


def windows(part: str) -> Windows:
    """Two walks, cut at 100 and 400 rows."""
    values = np.random.default_rng(1).normal(size=(ROWS_LONG, 2)).cumsum(0).astype(np.float32)
    series = SeriesSet(
        values=values,
        stamps=np.arange(ROWS_LONG),
        ends=np.array([ROWS_LONG]),
        ids=("walks",),
        names=("a", "b"),
        step=TimeStep(kind="numbers", size=1),
    )
    parts = split_by_rows(series, 100, 400, ROWS_LONG)
    return Windows(
        series=series,
        part=getattr(parts, part),
        scaler=Scaler.fit(series, parts.train),
        context=CONTEXT,
        horizon=HORIZON,
    )


def test_metrics_average_over_all_windows_and_over_full_batches_of_128():
    test = windows("test")
    learned = test.series.values[:100].astype(np.float64)
    scaled = (test.series.values - learned.mean(0)) / learned.std(0)
    off = np.array(
        [scaled[at : at + HORIZON] - scaled[at - 1] for at in range(400, ROWS_LONG - HORIZON + 1)]
    )  # every future whose steps all lie in the last part, less the value before it
    assert len(off) == 298
    result = measured(RepeatLast(forecast_spec.RepeatLastSpec(prediction_length=HORIZON)), test, CPU)
    for name, some in (("", off), ("_published", off[:256])):
        np.testing.assert_allclose(result[f"mse{name}"], np.square(some).mean(), rtol=1e-5)
        np.testing.assert_allclose(result[f"mae{name}"], np.abs(some).mean(), rtol=1e-5)


def test_batches_yield_every_window_once_in_order(monkeypatch):
    monkeypatch.setattr("experiments.ett.TOGETHER", 64)
    train = windows("train")
    futures = torch.cat([future for _, future in batches(train, CPU)])
    expected = train.batch(np.arange(len(train)))["future"]
    assert np.array_equal(futures.numpy(), expected)


def test_every_cell_has_the_model_and_both_simple_forecasters():
    cells = {name.rpartition("/")[0] for name in ROWS["ett"].runs}
    assert len(cells) == 16
    for cell in cells:
        assert {f"{cell}/{kind}" for kind in ("1", "linear", "repeat")} <= set(ROWS["ett"].runs)

"""The forecaster that ships with the package: trained on synthetic series and weekly US flu counts.

It is evaluated on unseen series: synthetic ones of another seed, the last weeks of the flu counts, and the
hourly loads of a power transformer, none of which was in training. MASE is the mean absolute error of the
24 predicted steps, divided by the mean absolute one-step difference of the 96 steps before. The baselines
repeat the last value, or the last season, whose length they are given and the model is not.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.paths import Workspace
from experiments.records import note
from experiments.synthetic_series import generate_series
from experiments.training_runs import train
from glassformer import api
from glassformer.data.row_errors import RowErrors
from glassformer.data.series import read_series
from glassformer.families.sidecars import JobInfo
from glassformer.tasks.forecasting import quantiles
from glassformer.training.hardware import device_for

ROW = "pocket-series"
CONTEXT, HORIZON = 96, 24
SERIES, STEPS, HELD_OUT = 8_000, 240, 2_000
FLU, FLU_LEARNED, FLU_TIMES, YEAR = "national_illness.csv.gz", 676, 5, 52  # weeks learned: the first 7 in 10
LOADS, LOADS_START, LOADS_END, DAY = "ETTh1.csv.gz", 11_520, 14_400, 24  # the rows others are tested on
TOGETHER = 1024
LEARNED = ("columns", "mean", "std", "frequency")  # what a model remembers of the series it learned from
EVEN = 1e-3  # windows that barely move have no error to be measured by

Floats = NDArray[np.float32]


def run(workspace: Workspace, name: str) -> None:
    """Train with the seed in the run's name, and measure."""
    flu_file, _ = _paths(workspace)
    path = _learned(workspace, flu_file)
    result = train(
        workspace, ROW, name, "pocket-series", seed=int(name), of="loss", changes=[f"data.train=[{path}]"]
    )
    folder = for_any_series(result.model, result.folder / ROW)
    figures = measure(folder, workspace)
    note(workspace, ROW, name, seed=int(name), trained=result, figures=figures)


def measure(folder: Path, workspace: Workspace) -> dict[str, float]:
    """Errors on unseen synthetic series, on the last weeks of the flu and on the loads."""
    flu_file, loads_file = _paths(workspace)
    model = api.load(folder, device=device_for(workspace.device)).model.eval()
    figures: dict[str, float] = {}
    held = generate_series(2, HELD_OUT, CONTEXT + HORIZON)
    seasons = np.array([min(one.period, CONTEXT) for one in held])
    figures |= forecast_metrics(
        "made", model, np.stack([one.values for one in held]).astype(np.float32), seasons
    )
    flu = _columns(flu_file)
    figures |= forecast_metrics("flu", model, *windows_between(flu, FLU_LEARNED, len(flu), YEAR))
    loads = _columns(loads_file)
    return figures | forecast_metrics("etth1", model, *windows_between(loads, LOADS_START, LOADS_END, DAY))


def for_any_series(trained: Path, folder: Path) -> Path:
    """The trained model without column names, scaler and time step, so that it accepts any series."""
    bundle = api.load(trained, device="cpu")
    about = {key: value for key, value in bundle.job.to_dict().items() if key not in LEARNED}
    api.save(replace(bundle, job=JobInfo.from_dict(about)), folder)
    return folder


def _paths(workspace: Workspace) -> tuple[Path, Path]:
    """The tables of the flu and of the loads; fails before a run starts if one is missing."""
    result = workspace.data / "forecast-extra" / FLU, workspace.data / "ett" / LOADS
    for path in result:
        path.stat()
    return result


def _learned(workspace: Workspace, flu_file: Path) -> Path:
    """The synthetic series and the first weeks of flu counts in long form, each standardized."""
    path = workspace.prepared(ROW) / "learned.csv"
    if path.exists():
        return path
    series = {f"made-{n}": one.values for n, one in enumerate(generate_series(1, SERIES, STEPS))}
    flu = _columns(flu_file)[:FLU_LEARNED].astype(np.float64)
    scaled = (flu - flu.mean(0)) / flu.std(0)
    for column in range(scaled.shape[1]):  # repeated, since there are many more synthetic series
        series |= {f"flu-{column}-{time}": scaled[:, column] for time in range(FLU_TIMES)}
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("unique_id", "ds", "y"))
        for name, values in series.items():
            writer.writerows((name, n, f"{value:.5g}") for n, value in enumerate(values))
    part.rename(path)
    return path


def _columns(path: Path) -> Floats:
    """All columns of a table of series: (rows, C)."""
    return read_series(path, errors=RowErrors()).values.astype(np.float32)


def windows_between(values: Floats, start: int, end: int, season: int) -> tuple[Floats, NDArray[np.int64]]:
    """Every window whose future lies between two rows, of every column, as (windows, 120); its seasons."""
    steps = CONTEXT + HORIZON
    starts = np.arange(start - CONTEXT, end - steps + 1)
    cut = values[starts[:, None] + np.arange(steps)]  # (W, 120, C)
    flat = cut.transpose(0, 2, 1).reshape(-1, steps)
    return flat, np.full(len(flat), season)


@torch.inference_mode()
def forecast_metrics(
    name: str, model: torch.nn.Module, windows: Floats, seasons: NDArray[np.int64]
) -> dict[str, float]:
    """MASE, the same as a multiple of each repeat's, and how often the truth lay in the middle 80 %."""
    past, future = windows[:, :CONTEXT], windows[:, CONTEXT:]
    size = np.abs(np.diff(past, axis=1)).mean(1)
    moving = size > EVEN * past.std(1).clip(1e-9)
    past, future, size, seasons = past[moving], future[moving], size[moving, None], seasons[moving, None]
    device = next(model.parameters()).device
    predictions, inside = [], 0
    for at in range(0, len(past), TOGETHER):
        some = slice(at, at + TOGETHER)
        result = model(torch.from_numpy(past[some, :, None]).to(device))
        low, high = (one.cpu().numpy()[..., 0] for one in quantiles(result, (0.1, 0.9)))
        predictions.append(result.mean.cpu().numpy()[..., 0])
        inside += int(((low <= future[some]) & (future[some] <= high)).sum())
    again = CONTEXT - seasons + np.arange(HORIZON) % seasons
    error, last, season = (
        float((np.abs(one - future) / size).mean())
        for one in (np.concatenate(predictions), past[:, -1:], np.take_along_axis(past, again, 1))
    )
    return {
        f"{name}_mase": error,
        f"{name}_to_repeat": error / last,
        f"{name}_to_season": error / season,
        f"{name}_inside_80": inside / future.size,
    }

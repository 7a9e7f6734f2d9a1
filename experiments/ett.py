"""Oil temperatures and loads of two power transformers: PatchTST, a linear map and repeating the last value.

Each data set is split at 12, 16 and 20 months of 30 days; later rows are not used. Values are standardized
by the mean and std of the first 12 months, and errors are of scaled values, over all 7 columns. Published
figures leave out the last windows that do not fill a batch of 128, which are often the hardest:
`mse_published` and `mae_published` do the same, `mse` and `mae` are of every window.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from experiments.paths import Workspace
from experiments.records import note
from experiments.training_runs import Trained, train
from glassformer import api, baselines
from glassformer.baselines.forecast import LinearForecaster, RepeatLast
from glassformer.data.row_errors import RowErrors
from glassformer.data.series import SeriesSet, read_series
from glassformer.data.windows import Scaler, SeriesSplit, Windows, split_by_rows
from glassformer.metrics.forecast import ForecastErrors, ForecastScores
from glassformer.training.hardware import device_for

ROW = "ett"
FILES = {"etth1": "ETTh1", "etth2": "ETTh2", "ettm1": "ETTm1", "ettm2": "ETTm2"}
CONTEXTS = (336, 512)  # as in PatchTST/42 and /64; a cell keeps the one better in validation
TOGETHER = 512  # windows per batch
HOURLY = (8_640, 11_520, 14_400)  # rows at which training, validation and test end

# Beyond the recipe, which is for the hourly sets: the published sizes for those with four rows an hour.
QUARTERS = (
    *("model.d_model=128", "model.num_heads=16", "model.d_ff=256"),
    *("model.dropout=0.2", "model.ffn_dropout=0.2", "model.embed_dropout=0.2"),
    *("training.batch_size=128", "training.max_steps=2000", "training.eval_steps=200"),
)

# ETTm2 overfits within 200 of those steps: the published rate, a shorter run, validated more often
SLOWER = ("training.lr=0.0001", "training.max_steps=1000", "training.eval_steps=50")

Predictor = Callable[[Tensor], Tensor]  # past (B, L, C) -> future (B, N, C)


def run(workspace: Workspace, name: str) -> None:
    """A run is a set, a horizon and a seed, as "etth1/96/1", or in place of the seed a simple forecaster."""
    which, horizon, kind = name.split("/")
    if kind in ("linear", "repeat"):
        _simple(workspace, name, which, int(horizon), kind)
    else:
        _patchtst(workspace, name, which, int(horizon), int(kind))


def _patchtst(workspace: Workspace, name: str, which: str, horizon: int, seed: int) -> None:
    """Train with each context length; the one with the smaller final validation error is measured.

    The model has the weights of the last step. `mse_published_early` is the error of the step with the
    smallest validation error, which the page shows. The choice between the two was made after seeing the test
    errors of both, and the page says so.
    """
    trained_models: dict[int, Trained] = {}
    for context in CONTEXTS:
        changes = [
            f"data.train=[{_path(workspace, which)}]",
            f"data.split={list(_borders(which))}",
            f"data.context_length={context}",
            f"data.horizon={horizon}",
            *(QUARTERS if _quarters(which) else ()),
            *(SLOWER if which == "ettm2" else ()),
        ]
        trained_models[context] = train(
            workspace, ROW, f"{name}/{context}", "forecast-ett", seed=seed, of="mse", changes=changes
        )
    ended = {context: one.curve[-1][1] for context, one in trained_models.items()}
    context = min(ended, key=ended.__getitem__)
    device, test = device_for(workspace.device), _windows(workspace, which, context, horizon, "test")
    last, early = (
        measured(api.load(folder, device=device).model.eval(), test, device)
        for folder in (trained_models[context].model, trained_models[context].folder / "best")
    )
    note(
        workspace,
        ROW,
        name,
        seed=seed,
        trained=replace(trained_models[context], seconds=sum(one.seconds for one in trained_models.values())),
        figures={
            **last,
            **{f"{kind}_early": early[kind] for kind in ("mse_published", "mse")},
            **{"context": context, **{f"valid_mse_{one}": ended[one] for one in trained_models}},
        },
    )


def _simple(workspace: Workspace, name: str, which: str, horizon: int, kind: str) -> None:
    """The linear model in closed form, with the better context length, or repeating the last value."""
    device, began = device_for(workspace.device), time.monotonic()
    best: dict[int, tuple[float, nn.Module]] = {}
    for context in CONTEXTS if kind == "linear" else CONTEXTS[:1]:
        model = _linear(workspace, which, context, horizon, device) if kind == "linear" else _repeat(horizon)
        valid = forecast_errors(model, _windows(workspace, which, context, horizon, "valid"), device)
        best[context] = (valid.mse, model)
    context = min(best, key=lambda one: best[one][0])
    model = best[context][1]
    figures = measured(model, _windows(workspace, which, context, horizon, "test"), device)
    trained = Trained(
        folder=workspace.run(ROW, name),
        seconds=time.monotonic() - began,
        parameters=sum(weight.numel() for weight in model.parameters()),
        of="mse",
        curve=[],
    )
    best_context = {"context": context, **{f"valid_mse_{one}": valid for one, (valid, _) in best.items()}}
    note(workspace, ROW, name, seed=0, trained=trained, figures={**figures, **best_context})


def _repeat(horizon: int) -> nn.Module:
    return RepeatLast(baselines.spec.RepeatLastSpec(prediction_length=horizon))


def _linear(workspace: Workspace, which: str, context: int, horizon: int, device: torch.device) -> nn.Module:
    model = LinearForecaster(baselines.spec.LinearSpec(context_length=context, prediction_length=horizon)).to(
        device
    )
    fit_least_squares(model, batches(_windows(workspace, which, context, horizon, "train"), device))
    return model


@torch.no_grad()
def fit_least_squares(model: LinearForecaster, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
    """Fit the weights to (past, future) batches by least squares, exactly and in one pass.

    Only the normal equations are kept in memory, about (L + 1)² numbers for any number of batches.
    """
    context, horizon = model.spec.context_length, model.spec.prediction_length
    gram = torch.zeros(context + 1, context + 1, dtype=torch.float64)
    products = torch.zeros(context + 1, horizon, dtype=torch.float64)
    for past, future in batches:
        last = past[:, -1:].double()
        inputs = (past.double() - last).transpose(1, 2).flatten(0, 1)  # (B*C, L)
        inputs = torch.cat((inputs, torch.ones_like(inputs[:, :1])), 1)
        targets = (future.double() - last).transpose(1, 2).flatten(0, 1)  # (B*C, N)
        gram += (inputs.T @ inputs).cpu()
        products += (inputs.T @ targets).cpu()
    # the last step minus itself is 0, so the system is singular: gelsd finds the minimum-norm solution
    solution = torch.linalg.lstsq(gram, products, driver="gelsd").solution  # (L + 1, N)
    model.out.weight.copy_(solution[:-1].T)
    model.out.bias.copy_(solution[-1])


def measured(model: Predictor, windows: Windows, device: torch.device) -> dict[str, float]:
    """The errors over all windows, and as they are published, without the last that fill no batch."""
    # Many published results leave out the last windows that do not fill a batch of 128.
    limits = (len(windows), len(windows) // 128 * 128)
    every, published = (forecast_errors(model, windows, device, limit) for limit in limits)
    return {
        "mse_published": published.mse,
        "mae_published": published.mae,
        "mse": every.mse,
        "mae": every.mae,
    }


@torch.inference_mode()
def forecast_errors(
    model: Predictor, windows: Windows, device: torch.device, limit: int | None = None
) -> ForecastScores:
    """The errors of a forecaster over the first `limit` windows."""
    errors = ForecastErrors()
    for past, future in batches(windows, device, limit):
        errors.add(model(past), future)
    return errors.scores()


def batches(
    windows: Windows, device: torch.device, limit: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The windows in the order of time: past (B, L, C) and future (B, N, C)."""
    count = len(windows) if limit is None else limit
    for at in range(0, count, TOGETHER):
        arrays = windows.batch(np.arange(at, min(at + TOGETHER, count)))
        past, future = (torch.from_numpy(arrays[part]).to(device) for part in ("past", "future"))
        yield past, future


def _windows(workspace: Workspace, which: str, context: int, horizon: int, part: str) -> Windows:
    """All windows of a part of a set: train, valid or test."""
    series, parts = cut(_path(workspace, which), _borders(which))
    return Windows(
        series=series,
        part=getattr(parts, part),
        scaler=Scaler.fit(series, parts.train),
        context=context,
        horizon=horizon,
    )


def cut(path: Path, borders: tuple[int, int, int]) -> tuple[SeriesSet, SeriesSplit]:
    series = read_series(path, errors=RowErrors())
    return series, split_by_rows(series, *borders)


def _quarters(which: str) -> bool:
    """Whether a data set has four rows per hour."""
    return which.startswith("ettm")


def _borders(which: str) -> tuple[int, int, int]:
    train_end, valid_end, test_end = (4 * row if _quarters(which) else row for row in HOURLY)
    return train_end, valid_end, test_end


def _path(workspace: Workspace, which: str) -> Path:
    path = workspace.data / "ett" / f"{FILES[which]}.csv.gz"
    path.stat()  # fail before a run starts, not during it
    return path

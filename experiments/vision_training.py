"""Train a vision model for a given time: the learning rate follows the clock, not the steps.

The model, the loss, the augmentation and the metrics are those of `glassformer train`; only the loop differs,
so that a run on any machine ends in time with a small learning rate. The model is saved even if it fails.
"""

from __future__ import annotations

import math
import tarfile
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.paths import Workspace
from experiments.records import RunRecord, hardware, keep
from glassformer.data import Batches, DataPosition
from glassformer.data.annotations import find_annotations
from glassformer.training.data_loader import DataLoader
from glassformer.training.datasets import to_device
from glassformer.training.hardware import Hardware, device_for
from glassformer.training.job import create_job
from glassformer.training.model_setup import select_trainable
from glassformer.training.optimizer import ExponentialMovingAverage, build_optimizer
from glassformer.training.recipe import TrainingOptions, parse_recipe, with_overrides
from glassformer.training.task import TrainingPlan

VALIDATIONS = 6  # along the run, besides the one at its end
WARMUP = 0.04  # share of the time
VALIDATION_TIME = 0.1  # share of the time that validations may take; then fewer are made


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """A finished run. curve: (step, metric) of the validations; metrics: of the last one."""

    seconds: float
    steps: int
    parameters: int
    curve: list[tuple[int, float]]
    metrics: Mapping[str, float]


def train_for(
    plan: TrainingPlan, options: TrainingOptions, *, seconds: float, seed: int, device: torch.device, of: str
) -> TimedRun:
    """Train for a time; the learner ends with the averaged weights.

    options: lr, weight_decay, betas, eps, ema, max_grad_norm, batch_size, lr_factors, freeze, drop_path_rate
    and compile are used.
    of: the metric of the curve.
    """
    assert options.batch_size and plan.count and plan.validate and not hasattr(plan.train, "dataset")
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    learner = plan.learner.to(device)
    select_trainable(learner.model, options)
    on_gpu = device.type == "cuda"
    if on_gpu and options.compile != "off":
        learner.model.compile()
    named = {name: p for name, p in learner.model.named_parameters() if p.requires_grad}
    optimizer = build_optimizer(named, options)
    peaks = [group["lr"] for group in optimizer.param_groups]
    average = ExponentialMovingAverage(named, options.ema or 0.999)
    examples: Any = plan.train
    batches = Batches(data=examples, tokens=options.batch_size, seed=seed)
    loader = DataLoader(batches=batches, examples=examples, count=plan.count, pin_memory=on_gpu)
    began, step, curve, validating = time.monotonic(), 0, [], 0.0
    due, shown = 1, 0.0
    with loader.open(DataPosition()) as batches_ahead:
        for batch in batches_ahead:
            elapsed = time.monotonic() - began
            done = elapsed / seconds
            if done >= 1:
                break
            factor = min(done / WARMUP, 0.5 * (1 + math.cos(math.pi * done)))
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * max(factor, 1e-3)
            micro = batch.batches[0]
            learner.train()
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                loss = learner(**to_device(micro.inputs, device)) / max(1, micro.units or 1)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(named.values()), options.max_grad_norm or math.inf)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            average.update(step)
            if elapsed >= shown:
                print(f"{elapsed:6.1f} s  step {step:6,}  loss {float(loss.detach()):.4f}", flush=True)
                shown = elapsed + max(5.0, seconds / 40)
            if done * (VALIDATIONS + 1) >= due:
                due = int(done * (VALIDATIONS + 1)) + 1
                if validating < VALIDATION_TIME * seconds:
                    start = time.monotonic()
                    curve.append((step, _validate(plan, average, device)[of]))
                    validating += time.monotonic() - start
                    print(f"{elapsed:6.1f} s  step {step:6,}  {of} {curve[-1][1]:.4f}", flush=True)
    run_time = time.monotonic() - began
    metrics = _validate(plan, average, device)
    curve.append((step, metrics[of]))
    average._swap()  # the averaged weights stay in the model
    return TimedRun(
        seconds=run_time,
        steps=step,
        parameters=sum(p.numel() for p in learner.parameters()),
        curve=curve,
        metrics=metrics,
    )


@torch.no_grad()
def _validate(
    plan: TrainingPlan, average: ExponentialMovingAverage, device: torch.device
) -> Mapping[str, float]:
    """Return the metrics of the averaged weights."""
    assert plan.validate is not None
    plan.learner.eval()
    with average.applied(), torch.compiler.set_stance("force_eager"):
        return plan.validate(device).metrics


def extract(workspace: Workspace, row: str, archive: str) -> Path:
    """Unpack a tar archive of the data folder; return the folder with its content."""
    folder = workspace.prepared(row)
    target = folder / Path(archive).name.split(".")[0]
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as part, tarfile.open(workspace.data / archive) as file:
            file.extractall(part, filter="data")
            with suppress(OSError):  # a concurrent run was faster
                Path(part, target.name).rename(target)
    return target


class TrainedRecipe(NamedTuple):
    """A trained recipe: its job, and the plan with the trained learner."""

    job: Any
    plan: TrainingPlan
    run: TimedRun


def train_recipe(
    workspace: Workspace, row: str, name: str, recipe: Mapping[str, Any], *, of: str, seconds: float
) -> TrainedRecipe:
    """Train a recipe for a time, and save the model in the folder of the run.

    recipe: plain data, as in a file. of: the metric of the curve.
    """
    seed, folder, device = int(name.split("/")[-1]), workspace.run(row, name), device_for(workspace.device)
    parsed = parse_recipe(with_overrides({**recipe, "seed": seed}, workspace.changes))
    job: Any = create_job(parsed, folder, _log)
    job.prepare_data()
    job.choose_defaults(Hardware(device=device))
    torch.manual_seed(seed)
    plan = job.plan()
    limit = workspace.seconds or seconds
    try:
        trained = train_for(plan, job.recipe.training, seconds=limit, seed=seed, device=device, of=of)
    finally:
        plan.save(folder / "model")
    return TrainedRecipe(job, plan, trained)


def run_recipe(
    workspace: Workspace,
    row: str,
    name: str,
    recipe: Mapping[str, Any],
    *,
    of: str,
    seconds: float,
    split: str,
) -> None:
    """Train a recipe of detection or segmentation for a time, then measure a split of its data."""
    job, plan, trained = train_recipe(workspace, row, name, recipe, of=of, seconds=seconds)
    figures = {f"valid {key}": value for key, value in trained.metrics.items()}
    examples = job.examples(find_annotations(job.data.train[0], split), None)
    plan.learner.eval()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        result = job.validate(plan.learner, examples, device_for(workspace.device))
    print(*result.tables["classes"], sep="\n", flush=True)
    record(workspace, row, name, trained, of, {**figures, **result.metrics})


def record(
    workspace: Workspace, row: str, name: str, trained: TimedRun, of: str, figures: Mapping[str, float]
) -> None:
    """Write the figures of a run."""
    keep(
        workspace,
        RunRecord(
            row=row,
            name=name,
            seed=int(name.split("/")[-1]),
            parameters=trained.parameters,
            seconds=round(trained.seconds, 1),
            figures={key: round(float(v), 6) for key, v in figures.items() if not math.isnan(v)},
            of=of,
            curve=[(step, round(value, 6)) for step, value in trained.curve],
            hardware=hardware(workspace.device),
            torch=torch.__version__,
            concurrent_runs=workspace.concurrent_runs,
            date=time.strftime("%Y-%m-%d"),
        ),
    )


def _log(message: str) -> None:
    print(message, flush=True)

"""Run a training from a recipe to a model folder: start it, or resume it from the run folder.

runs/x/
  recipe.yaml        all settings, with the defaults filled in; reproduces the training
  request.json       the recipe as requested, to recognize the same command
  data/ tokenizer/   the prepared data                checkpoints/   to resume from
  prepared.json      what the data was made from      model/         the result, as `load` reads it
  best/ averaged/ snapshots/   model folders saved along the way
  train.log metrics.jsonl report.html curves.png
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glassformer.bundle import Bundle, load
from glassformer.errors import GlassformerError
from glassformer.pretrained import MODEL, RECIPE, REQUEST, is_run
from glassformer.training.callbacks import TrainerCallback
from glassformer.training.data_cache import Log, no_log
from glassformer.training.distributed import Parallel
from glassformer.training.hardware import Hardware
from glassformer.training.job import Job, create_job
from glassformer.training.logging.console import silence_stderr
from glassformer.training.logging.trackers import make_trackers
from glassformer.training.recipe import Recipe, parse_recipe, read_recipe, read_recipe_dict
from glassformer.training.session import (
    RESUMABLE,
    check_unchanged,
    first_difference,
    has_results,
    open_session,
)
from glassformer.training.signals import Interrupted, StopSignals
from glassformer.training.trainer import RunResult, Trainer
from glassformer.weights.atomic_write import write_file


def log_to_stderr(message: str) -> None:
    """Print a message to standard error; a closed pipe does not end the run."""
    try:
        print(message, file=sys.stderr, flush=True)
    except BrokenPipeError:
        silence_stderr()


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    folder: str | Path,
    *,
    log: Log = log_to_stderr,
    callbacks: Sequence[TrainerCallback] = (),
) -> Bundle:
    """Train in a run folder and load the resulting model; see `glassformer.train`."""
    if isinstance(recipe, str | Path):
        recipe = read_recipe(recipe)
    elif not isinstance(recipe, Recipe):
        recipe = parse_recipe(recipe)
    result = run(recipe, folder, log=log, callbacks=callbacks)
    result.raise_signal()
    return load(result.folder / MODEL)


def run(
    request: Recipe, folder: str | Path, *, log: Log, callbacks: Sequence[TrainerCallback] = ()
) -> RunResult:
    """Train to the end, starting or resuming from the current state of the folder."""
    root = Path(folder)
    make_trackers(request.training.report_to)  # a missing package is an error before the data is prepared
    with open_session(root, request.training) as session:
        main = session.parallel.main
        if main and not (root / REQUEST).is_file():
            _write_request(request, root)
        try:
            job = _prepare_in_turn(
                session.parallel,
                session.signals,
                lambda: prepare_job(
                    request,
                    root,
                    session.parallel.device,
                    log if main else no_log,
                    ranks=session.parallel.ranks,
                ),
            )
        except Interrupted:
            return RunResult(outcome="interrupted", folder=root, exit_code=session.signals.exit_code)
        torch.manual_seed(job.recipe.seed)
        trainer = Trainer.of_plan(
            job.plan(),
            job.recipe.training,
            seed=job.recipe.seed,
            folder=root,
            callbacks=[*job.callbacks, _TestSplit(job), *callbacks],
            facts={"job": job.recipe.job, **job.facts},
        )
        return trainer.train_in(session)


class _TestSplit(TrainerCallback):
    """Evaluate the final model on the test split of a job, if it has one."""

    def __init__(self, job: Job[Any]) -> None:
        self.job = job

    @torch.no_grad()
    def on_train_end(self, trainer: Trainer) -> None:
        if not trainer.is_main:
            return
        metrics = self.job.test(trainer.folder / MODEL, trainer.device)
        if metrics:
            trainer.log.facts({f"test {name}": value for name, value in metrics.items()})
            listed = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            trainer.log.message(f"test split: {listed}")


def _prepare_in_turn(parallel: Parallel, signals: StopSignals, prepare: Callable[[], Job[Any]]) -> Job[Any]:
    """Prepare the run on rank 0, then on the other ranks, which reuse its files.

    A signal stops the preparation immediately.
    """
    job = None
    try:
        if parallel.main:
            with signals.immediate(
                "stopped while preparing the data; run the same command again to continue"
            ):
                prepared = prepare()
            job = prepared
    finally:
        failed = parallel.any(parallel.main and job is None)
    if failed:
        raise Interrupted if signals.received else GlassformerError("rank 0 could not prepare the run")
    return job or prepare()


def prepare_job(request: Recipe, root: Path, device: torch.device, log: Log, *, ranks: int = 1) -> Job[Any]:
    """Prepare the data of a job, fill in all settings, and save the recipe in the folder `root`."""
    known = resumed_recipe(request, root)
    job = create_job(known or _round_accumulation(request, ranks, log), root, log)
    if known is None:
        job.check_model()
    job.prepare_data()
    if known is None:
        reasons = job.choose_defaults(Hardware(device=device))
        for reason in reasons:
            log(reason)
        job.facts["chosen"] = reasons
        _write_request(request, root)
        _write(root / RECIPE, job.recipe.to_yaml())
    elif known != saved_recipe(root):  # resumed with more steps, or on another device
        _write(root / RECIPE, known.to_yaml())
    return job


def _round_accumulation(request: Recipe, ranks: int, log: Log) -> Recipe:
    """Return the recipe with the gradient accumulation steps rounded up to a multiple of the ranks."""
    steps = -(-request.training.gradient_accumulation_steps // ranks) * ranks
    if steps != request.training.gradient_accumulation_steps:
        log(f"training.gradient_accumulation_steps raised to {steps}, a multiple of the {ranks} processes")
    return replace(request, training=replace(request.training, gradient_accumulation_steps=steps))


def saved_recipe(root: Path) -> Recipe:
    """Return the recipe of the run in a folder; it may have been started by a former version."""
    return parse_recipe(read_recipe_dict(root / RECIPE), warn=False)


def resumed_recipe(request: Recipe, root: Path) -> Recipe | None:
    """Return the recipe of the run in the folder, if it matches the request; None if there is no run.

    A run with other settings raises an error, unless it has no checkpoint or model yet.
    """
    if not is_run(root):
        return None
    content, now = saved_recipe(root).to_dict(), request.to_dict()
    before = content
    if (root / REQUEST).is_file():
        request_file = json.loads((root / REQUEST).read_text(encoding="utf-8"))
        before = parse_recipe(request_file, warn=False).to_dict()
    if first_difference(now, before) and first_difference(now, content):
        if not has_results(root):
            return None
        check_unchanged(root, now, before)
    training, changes = content["training"], now["training"]
    epochs = training["epochs"]
    training |= {name: changes[name] for name in RESUMABLE if changes[name] is not None}
    training["time_limit"] = changes["time_limit"]  # of each command
    if epochs and changes["max_steps"] is None and training["epochs"] != epochs:
        training["max_steps"] = math.ceil(training["max_steps"] * training["epochs"] / epochs)
    return parse_recipe(content)


def _write_request(request: Recipe, root: Path) -> None:
    _write(root / REQUEST, json.dumps(request.to_dict(), ensure_ascii=False, indent=2))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, text.encode())

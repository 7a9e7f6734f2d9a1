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
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from glassformer.bundle import Bundle, load
from glassformer.errors import ConflictError, GlassformerError
from glassformer.pretrained import BEST, MODEL, RECIPE, REQUEST, check_run_folder, is_run
from glassformer.training.checkpoint import CheckpointManager, average_folders, recover_folder, replace_folder
from glassformer.training.data_cache import Log, no_log
from glassformer.training.distributed import Parallel, parallel_from_environment
from glassformer.training.hardware import configure_torch, device_for, dtype_of, measure_hardware, peak_flops
from glassformer.training.jobs import JOBS
from glassformer.training.jobs.base import Job
from glassformer.training.learner import enable_gradient_checkpointing
from glassformer.training.lock import RunLock
from glassformer.training.logging.console import format_number, silence_stderr
from glassformer.training.logging.report import write_report
from glassformer.training.logging.run_log import RunLog
from glassformer.training.recipe import Recipe, parse_recipe, read_recipe
from glassformer.training.signals import Interrupted, StopSignals
from glassformer.training.trainer import Outcome, Trainer
from glassformer.weights.atomic_write import atomic_write

# Training settings that may change when a run is resumed.
RESUMABLE = frozenset(
    """
    max_steps epochs early_stopping_patience eval_steps save_steps logging_steps save_total_limit
    snapshots log_samples device compile parallel gradient_checkpointing max_skipped_steps
    """.split()
)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended; `exit_code` is 0, or 128 plus the signal that stopped it."""

    outcome: Outcome
    folder: Path
    exit_code: int = 0


def log_to_stderr(message: str) -> None:
    """Print a message to standard error; a closed pipe does not end the run."""
    try:
        print(message, file=sys.stderr, flush=True)
    except BrokenPipeError:
        silence_stderr()


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path, folder: str | Path, *, log: Log = log_to_stderr
) -> Bundle:
    """Train in a run folder and load the resulting model; see `glassformer.train`."""
    if isinstance(recipe, str | Path):
        recipe = read_recipe(recipe)
    elif not isinstance(recipe, Recipe):
        recipe = parse_recipe(recipe)
    result = run(recipe, folder, log=log)
    if result.exit_code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if result.exit_code:
        raise SystemExit(result.exit_code)
    return load(result.folder / MODEL)


def run(request: Recipe, folder: str | Path, *, log: Log) -> RunResult:
    """Train to the end, starting or resuming from the current state of the folder."""
    root = Path(folder)
    device = device_for(request.training.device)
    parallel = parallel_from_environment(request.training.parallel, device)
    log = log if parallel.main else no_log
    try:
        if parallel.main:
            check_run_folder(root)
        with RunLock(root) if parallel.main else nullcontext(), StopSignals(main=parallel.main) as signals:
            if parallel.main and not (root / REQUEST).is_file():
                _write_request(request, root)
            result = _run(request, root, parallel, signals, log)
        parallel.barrier()
        return result
    except Interrupted:
        return RunResult(outcome="interrupted", folder=root, exit_code=signals.exit_code)
    finally:
        parallel.close()


def _run(request: Recipe, root: Path, parallel: Parallel, signals: StopSignals, log: Log) -> RunResult:
    job = _prepare_in_turn(
        parallel, signals, lambda: prepare_job(request, root, parallel.device, log, ranks=parallel.ranks)
    )
    options = job.recipe.training
    batches = options.gradient_accumulation_steps
    if batches % parallel.ranks:
        raise ConflictError(
            ("training.gradient_accumulation_steps", "the number of processes"),
            f"{batches} batches per step cannot be divided among {parallel.ranks} processes",
            "resume with a number of processes that divides it",
        )
    configure_torch(options, parallel.device)
    with _trainer(job, root, parallel, signals) as trainer:
        outcome = trainer.run()
        state, run_log = trainer.state, trainer.log
        if outcome == "interrupted":
            progress = f"step {state.step:,} of {trainer.max_steps:,}"
            run_log.message(f"stopped at {progress}; run the same command again to resume")
            return RunResult(outcome=outcome, folder=root, exit_code=signals.exit_code)
        if outcome == "early stop":
            run_log.message(
                f"early stop at step {state.step:,}: best {trainer.metric} at step {state.best_step:,}"
            )
        write_final_model(trainer, root)
        with torch.no_grad():
            metrics = job.test(root / MODEL, parallel.device) if parallel.main else {}
        if metrics:
            run_log.facts({f"test {name}": value for name, value in metrics.items()})
            listed = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            run_log.message(f"test split: {listed}")
        run_log.facts({"skipped steps": state.skipped, "seconds waiting for data": trainer.data_seconds})
    if parallel.main:
        try:
            log(f"wrote {' and '.join(map(str, write_report(root)))}")
        except GlassformerError as error:  # the model is saved, so a failed report is not fatal
            log(str(error))
    return RunResult(outcome=outcome, folder=root)


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
    for name in (BEST, MODEL, "tokenizer"):
        recover_folder(root / name)
    known = resumed_recipe(request, root)
    job = JOBS[request.job](known or _round_accumulation(request, ranks, log), root, log)
    if known is None:
        job.check_model()
    job.prepare_data()
    if known is None:
        reasons = job.choose_defaults(measure_hardware(device))
        for reason in reasons:
            log(reason)
        job.facts["chosen"] = reasons
        _write_request(request, root)
        _write(root / RECIPE, job.recipe.to_yaml())
    elif known != read_recipe(root / RECIPE):  # resumed with more steps, or on another device
        _write(root / RECIPE, known.to_yaml())
    return job


def _round_accumulation(request: Recipe, ranks: int, log: Log) -> Recipe:
    """Return the recipe with the gradient accumulation steps rounded up to a multiple of the ranks."""
    steps = -(-request.training.gradient_accumulation_steps // ranks) * ranks
    if steps != request.training.gradient_accumulation_steps:
        log(f"training.gradient_accumulation_steps raised to {steps}, a multiple of the {ranks} processes")
    return replace(request, training=replace(request.training, gradient_accumulation_steps=steps))


def resumed_recipe(request: Recipe, root: Path) -> Recipe | None:
    """Return the recipe of the run in the folder, if it matches the request; None if there is no run.

    A run with other settings raises an error, unless it has no checkpoint or model yet.
    """
    if not is_run(root):
        return None
    content, now = read_recipe(root / RECIPE).to_dict(), request.to_dict()
    before = content
    if (root / REQUEST).is_file():
        before = json.loads((root / REQUEST).read_text(encoding="utf-8"))
    differs = first_difference(now, before)
    if differs and first_difference(now, content):
        if not any((root / name).exists() for name in ("checkpoints", MODEL)):
            return None
        setting, new, old = differs
        raise ConflictError(
            (setting, str(root)),
            f"the folder contains a run that was started with {_describe(old)}, not {_describe(new)}",
            "use another folder, or delete this one to start from scratch",
        )
    training, changes = content["training"], now["training"]
    epochs = training["epochs"]
    training |= {name: changes[name] for name in RESUMABLE if changes[name] is not None}
    if epochs and changes["max_steps"] is None and training["epochs"] != epochs:
        training["max_steps"] = math.ceil(training["max_steps"] * training["epochs"] / epochs)
    return parse_recipe(content)


def first_difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return name, new value and old value of the first changed setting that must not change, or None."""
    new, old = _flat(now), _flat(before)
    for name in {**new, **old}:
        if name.removeprefix("training.") not in RESUMABLE and new.get(name) != old.get(name):
            return name, new.get(name), old.get(name)
    return None


def _describe(value: Any) -> str:
    return "the default" if value is None else f"{value!r:.60}"


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten settings to `section.name` keys."""
    sections = {name: value for name, value in content.items() if isinstance(value, Mapping)}
    inner = {f"{section}.{key}": item for section, value in sections.items() for key, item in value.items()}
    return {name: value for name, value in content.items() if name not in sections} | inner


@contextmanager
def _trainer(job: Job[Any], root: Path, parallel: Parallel, signals: StopSignals) -> Iterator[Trainer]:
    """Open the log and yield the trainer, restored from the newest checkpoint."""
    recipe, options = job.recipe, job.recipe.training
    torch.manual_seed(recipe.seed)
    task = job.task()
    if options.gradient_checkpointing:
        enable_gradient_checkpointing(task.learner)
    checkpoint = CheckpointManager(root / "checkpoints", parallel, keep=options.save_total_limit).newest()
    step = checkpoint.step if checkpoint is not None else 0
    assert options.max_steps is not None
    peak = peak_flops(parallel.device, dtype_of(options, parallel.device))
    with RunLog(
        root,
        total_steps=options.max_steps,
        from_step=step,
        unit=task.unit,
        every=options.logging_steps or 1,
        peak_flops=peak and peak * parallel.ranks,
        main=parallel.main,
    ) as log:
        weights = sum(p.numel() for p in task.learner.parameters())
        log.facts({"job": recipe.job, "parameters": weights, "device": str(parallel.device), **job.facts})
        trainer = Trainer(
            task, options, seed=recipe.seed, folder=root, parallel=parallel, log=log, signals=signals
        )
        if checkpoint is None:
            log.message(f"{weights:,} parameters, {options.max_steps:,} steps on {parallel.device}")
        else:
            for reason in checkpoint.damaged:
                log.message(f"skipped a damaged checkpoint: {reason}")
            trainer.restore(checkpoint)
            verb = "finished at" if step >= options.max_steps else "resuming from"
            log.message(f"{verb} step {step:,} of {options.max_steps:,}")
        yield trainer


def write_final_model(trainer: Trainer, root: Path) -> None:
    """Write the model folder with averaged, best or last weights, as the recipe specifies."""
    options, state, log, main = trainer.options, trainer.state, trainer.log, trainer.parallel.main
    model = root / MODEL
    if options.average_checkpoints and state.averaged:
        steps = [step for step, _ in state.averaged]
        if main:
            folders = [trainer.averaged_folder(step) for step in steps]
            replace_folder(model, lambda path: average_folders(folders, path))
        listed = ", ".join(f"{step:,}" for step in sorted(steps))
        which = f", the best by {trainer.metric}" if options.average_selection == "best" else ""
        log.message(f"wrote {model}, the average of steps {listed}{which}")
    elif options.load_best_model_at_end and (root / BEST).is_dir():
        if main:
            replace_folder(model, lambda path: shutil.copytree(root / BEST, path))
        score = "" if state.best is None else f", {trainer.metric} {format_number(state.best)}"
        log.message(f"wrote {model}, the best weights (step {state.best_step:,}{score})")
    else:
        with torch.no_grad(), trainer.evaluating():
            if main:
                replace_folder(model, trainer.task.save)
        log.message(f"wrote {model}, the weights of the last step")


def _write_request(request: Recipe, root: Path) -> None:
    _write(root / REQUEST, json.dumps(request.to_dict(), ensure_ascii=False, indent=2))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())

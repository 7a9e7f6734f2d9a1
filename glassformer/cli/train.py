"""glassformer train: train a model from a recipe or from data files, or resume a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli.console import console, format_bytes, message
from glassformer.cli.options import Settings
from glassformer.errors import FileMissingError, MissingValueError
from glassformer.training.jobs import current_name, job_names

if TYPE_CHECKING:
    from glassformer.training.recipe import Recipe
    from glassformer.training.trainer import Trainer

TIMED_STEPS = 4  # of a dry run; the first is warm-up


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|JOB",
            help=f"Recipe file, recipe name (see `glassformer recipes`), or job: {', '.join(job_names())}.",
        ),
    ],
    files: Annotated[list[str] | None, typer.Option("--train", help="Training file. Repeatable.")] = None,
    valid: Annotated[
        list[str] | None,
        typer.Option(
            "--valid",
            help="Validation file, or the fraction to hold out, e.g. 0.01. Repeatable. "
            "(default: the val split of annotated images, or a fraction)",
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="Folder of the images, for contrastive, and for detect and segment with COCO JSON."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder (default: runs/ and the name of the recipe or file).")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Number of passes over the training data, instead of max_steps.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Maximum number of examples per batch and device, in every job."),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(help="Maximum number of tokens per batch and device, padding included, in a text job."),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(help="Stop after e.g. 90s, 30m or 1h30m, and save; the same command resumes."),
    ] = None,
    settings: Settings = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan and the estimated training time, without training."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Fail unless there is a run to resume.")] = False,
) -> None:
    """Train a model, or resume a run: the same command continues it.

    Settings that the recipe leaves open are chosen for the data and saved
    in the run folder. Ctrl-C saves a checkpoint.
    """
    from glassformer.pretrained import is_run
    from glassformer.training.recipe import parse_recipe, with_overrides
    from glassformer.training.run import log_to_stderr, run

    flags = {
        **{"epochs": epochs, "lr": lr, "time_limit": time_limit},
        **{"batch_size": batch_size, "batch_tokens": batch_tokens},
    }
    data = _recipe_data(recipe, files or [], valid or [])
    if images is not None:
        data = with_overrides(data, [f"data.images={json.dumps(images)}"])
    parsed = parse_recipe(with_overrides(_with_flags(data, flags), settings or []))
    folder = out or Path("runs") / _run_name(recipe, parsed.data.train[0])
    if resume and not is_run(folder):
        raise FileMissingError(path=folder, kind="run", hint="start one without --resume")
    if dry_run:
        _estimate(parsed)
        return
    outcome = run(parsed, folder, log=log_to_stderr)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def _with_flags(data: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with the training settings of the command line. flags: by key; None if not given."""
    changes = {name: value for name, value in flags.items() if value is not None}
    if "epochs" in changes:
        changes["max_steps"] = None  # of the recipe, which would take precedence
    return {**data, "training": {**(data.get("training") or {}), **changes}} if changes else data


def _recipe_data(recipe: str, files: list[str], valid: list[str]) -> dict[str, Any]:
    """Read a recipe file, or build a recipe from a job and files."""
    from glassformer.recipes import recipe_path
    from glassformer.training.recipe import read_recipe_dict

    is_file = Path(recipe).is_file()
    if is_file or (recipe not in job_names() and recipe == current_name(recipe, warn=False)[0]):
        data = read_recipe_dict(Path(recipe) if is_file else recipe_path(recipe, alternatives=job_names()))
    elif files:
        data = {"job": recipe, "data": {}}
    else:
        raise MissingValueError(name="files", needed_for=f"to train a {recipe} model")
    if files or valid:
        section = dict(data["data"]) if isinstance(data.get("data"), dict) else {}
        section |= {"train": files} if files else {}
        section |= {"valid": _fraction(valid)} if valid else {}
        data = {**data, "data": section}
    return data


def _fraction(valid: list[str]) -> float | list[str]:
    """Return the validation fraction if `valid` is a single number such as 0.01, else the files."""
    try:
        (fraction,) = map(float, valid)
        return fraction
    except ValueError:
        return valid


def _run_name(recipe: str, file: str) -> str:
    """Name a run after the recipe, or after the job and its first file."""
    stem = Path(recipe).name.removesuffix(".yaml").removesuffix(".yml")
    if Path(recipe).is_file() or stem != recipe or not file:
        return stem
    return f"{stem}-{Path(file).name.split('.')[0]}"


def _estimate(recipe: Recipe) -> None:
    """Set up training in a temporary folder, run a few steps, and print the estimate."""
    import torch

    from glassformer.bundle import Bundle
    from glassformer.cli.model_summary import draw_model, summarize_model
    from glassformer.core.model import DecoderOnly, EncoderDecoder, EncoderOnly
    from glassformer.training.distributed import SingleProcess
    from glassformer.training.hardware import configure_torch, device_for
    from glassformer.training.logging.console import format_duration
    from glassformer.training.logging.run_log import RunLog, peak_memory
    from glassformer.training.run import prepare_job
    from glassformer.training.signals import StopSignals
    from glassformer.training.trainer import Trainer

    screen = console()
    with TemporaryDirectory(prefix="glassformer-") as name:
        folder = Path(name)
        device = device_for(recipe.training.device)
        job = prepare_job(recipe, folder, device, message)
        settings = job.recipe.training
        configure_torch(settings, device)
        torch.manual_seed(job.recipe.seed)
        plan = job.plan()
        assert settings.max_steps is not None
        screen.print("[bold]Recipe[/]")
        screen.print(job.recipe.to_yaml(), markup=False)
        model = plan.learner.model
        if isinstance(model, EncoderDecoder | EncoderOnly | DecoderOnly):
            summary = summarize_model(Bundle(model=model), batch=2)
            screen.print(draw_model(model.spec, summary, screen.width), "", sep="\n")
        with RunLog(folder, total_steps=settings.max_steps, main=False) as log:
            trainer = Trainer.of_plan(plan, settings, seed=job.recipe.seed, folder=folder)
            trainer.start(
                parallel=SingleProcess(device=device),
                log=log,
                signals=StopSignals(),  # not entered: there is nothing to save on Ctrl-C
            )
            seconds = _step_seconds(trainer, min(TIMED_STEPS, settings.max_steps))
        count = sum(p.numel() for p in plan.learner.parameters())
        screen.print("[bold]Estimate from a few steps[/]")
        screen.print(f"  parameters  {count:,}")
        screen.print(f"  steps       {settings.max_steps:,} on {device}")
        screen.print(f"  memory      {format_bytes(peak_memory())} at peak so far")
        total = format_duration(job.run_seconds(seconds, count))
        screen.print(f"  time        {seconds:.2f} s per step: {total} with validations and saves")


def _step_seconds(trainer: Trainer, steps: int) -> float:
    """Return the median seconds per training step, with the time to load its data."""
    import torch

    from glassformer.data import DataPosition

    if not trainer.parameters:
        return 0.0
    trainer.learner.train()
    batches = trainer.loader.steps(DataPosition())
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        trainer.train_step(next(batches))
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        times.append(time.perf_counter() - start)
        trainer.state.step += 1
    return median(times[1:] or times)

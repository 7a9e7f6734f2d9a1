"""train --dry-run: print the recipe, the model, and an estimate from a few timed steps."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from glassformer.cli.console import console, format_bytes, message
from glassformer.training.recipe import Recipe

if TYPE_CHECKING:
    from glassformer.training.trainer import Trainer

STEPS = 4  # the first is warm-up


def dry_run(recipe: Recipe) -> None:
    """Set up training in a temporary folder, run a few steps, and print the estimate."""
    import torch

    from glassformer.bundle import Bundle
    from glassformer.cli.model_summary import draw_model, summarize_model
    from glassformer.core.model import DecoderOnly, EncoderDecoder, EncoderOnly
    from glassformer.training.distributed import SingleProcess
    from glassformer.training.hardware import configure_torch, device_for
    from glassformer.training.logging.run_log import RunLog, peak_memory
    from glassformer.training.model_setup import format_minutes
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
        task = job.task()
        assert settings.steps is not None
        screen.print("[bold]Recipe[/]")
        screen.print(job.recipe.to_yaml(), markup=False)
        model = task.learner.model
        if isinstance(model, EncoderDecoder | EncoderOnly | DecoderOnly):
            summary = summarize_model(Bundle(model=model), batch=2)
            screen.print(draw_model(model.spec, summary, screen.width), "", sep="\n")
        with RunLog(folder, total_steps=settings.steps, main=False) as log:
            trainer = Trainer(
                task,
                settings,
                seed=job.recipe.seed,
                folder=folder,
                parallel=SingleProcess(device=device),
                log=log,
                signals=StopSignals(),  # not entered: there is nothing to save on Ctrl-C
            )
            seconds = _step_seconds(trainer, min(STEPS, settings.steps))
        count = sum(p.numel() for p in task.learner.parameters())
        screen.print("[bold]Estimate from a few steps[/]")
        screen.print(f"  parameters  {count:,}")
        screen.print(f"  steps       {settings.steps:,} on {device}")
        screen.print(f"  memory      {format_bytes(peak_memory())} at peak so far")
        total = format_minutes(seconds * settings.steps)
        screen.print(f"  time        {seconds:.2f} s per step: {total}, without validation")


def _step_seconds(trainer: Trainer, steps: int) -> float:
    """Median seconds per training step."""
    import torch

    from glassformer.data import DataPosition

    if not trainer.parameters:
        return 0.0
    trainer.learner.train()
    steps_of_data = trainer.loader.steps(DataPosition())
    times = []
    for _ in range(steps):
        batch = next(steps_of_data)
        began = time.perf_counter()
        trainer.train_step(batch)
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        times.append(time.perf_counter() - began)
        trainer.state.step += 1
    return median(times[1:] or times)

"""What `train --dry-run` shows: the recipe, the model, and what a few timed steps cost."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from glassformer.cli.screen import bytes_text, console
from glassformer.training.recipe import Recipe

if TYPE_CHECKING:
    from glassformer.training.trainer import Trainer

STEPS = 4  # the first warms up


def rehearse(asked: Recipe) -> None:
    """Prepare everything in a folder that is thrown away, do a few steps, and print what was found."""
    import torch

    from glassformer.bundle import Bundle
    from glassformer.cli.drawing import drawing
    from glassformer.cli.stations import report
    from glassformer.core.model import DecoderOnly, EncoderDecoder, EncoderOnly
    from glassformer.training.distributed import SingleProcess
    from glassformer.training.hardware import configure_torch, device_for
    from glassformer.training.logging.run_log import RunLog, peak_memory
    from glassformer.training.model_setup import format_minutes
    from glassformer.training.run import prepare_job
    from glassformer.training.signals import StopSignals
    from glassformer.training.trainer import Trainer

    out = console()
    with TemporaryDirectory(prefix="glassformer-") as name:
        folder = Path(name)
        device = device_for(asked.training.device)
        job = prepare_job(asked, folder, device, lambda sentence: print(sentence, file=sys.stderr))
        words = job.recipe.training
        configure_torch(words, device)
        torch.manual_seed(job.recipe.seed)
        task = job.task()
        assert words.steps is not None
        out.print("[bold]Recipe[/]")
        out.print(job.recipe.to_yaml(), markup=False)
        model = task.learner.model
        if isinstance(model, EncoderDecoder | EncoderOnly | DecoderOnly):
            bundle = Bundle(model=model)
            out.print(drawing(bundle.spec, report(bundle, 2, None), out.width), "", sep="\n")
        with RunLog(folder, total_steps=words.steps, main=False) as log:
            loop = Trainer(
                task,
                words,
                seed=job.recipe.seed,
                folder=folder,
                parallel=SingleProcess(device=device),
                log=log,
                signals=StopSignals(),  # not entered: there is nothing to save, and Ctrl-C ends it
            )
            seconds = _seconds_a_step(loop, min(STEPS, words.steps))
        count = sum(p.numel() for p in task.learner.parameters())
        out.print("[bold]Reckoned from a few steps[/]")
        out.print(f"  parameters  {count:,}")
        out.print(f"  steps       {words.steps:,} on {device}")
        out.print(f"  memory      {bytes_text(peak_memory())} at most so far")
        out.print(
            f"  time        {seconds:.2f} s a step: {format_minutes(seconds * words.steps)}, validation apart"
        )


def _seconds_a_step(loop: Trainer, steps: int) -> float:
    """Seconds a step takes, from a few that are done and not kept."""
    import torch

    from glassformer.data import DataPosition

    if not loop.parameters:
        return 0.0
    loop.learner.train()
    portions = loop.loader.steps(DataPosition())
    times = []
    for _ in range(steps):
        portion = next(portions)
        began = time.perf_counter()
        loop.train_step(portion)
        if loop.device.type == "cuda":
            torch.cuda.synchronize(loop.device)
        times.append(time.perf_counter() - began)
        loop.state.step += 1
    return median(times[1:] or times)

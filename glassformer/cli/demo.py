"""`glassformer demo`: build the paper's Transformer, teach it a small translation, look inside."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from glassformer.cli.dates import Seen

STEPS = 400


@dataclass
class SoFar:
    """What was done, told to a person who stops the demo."""

    text: str = "nothing was trained and nothing was written"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the trained model.")] = Path(
        "demo_out"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Training steps; 400 take about 20 seconds.")] = STEPS,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**32 - 1, help="Draws the first weights and the dates kept for the test."),
    ] = 0,
) -> None:
    """Train a small Transformer on the spot and see what it looks at."""
    from rich.console import Console

    console = Console(highlight=False)
    so_far = SoFar()
    try:
        _run(console, out, steps, seed, so_far)
    except KeyboardInterrupt:
        console.print(f"\nstopped: {so_far.text}", markup=False)
        raise typer.Exit(130) from None


def _run(console: Console, out: Path, steps: int, seed: int, so_far: SoFar) -> None:
    import torch

    from glassformer.api import save
    from glassformer.cli import dates
    from glassformer.core.errors import GlassformerError

    if out.exists() and not out.is_dir():
        raise GlassformerError(f"'{out}' is a file; give a folder with --out")
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(there, os.W_OK | os.X_OK):  # better known now than after the training
        raise GlassformerError(f"'{there}' cannot be written to; give another folder with --out")
    torch.set_num_threads(1)  # matrices this small gain nothing from more
    learn, held_out = dates.split(seed=seed)
    bundle = dates.fresh(seed)
    count = sum(p.numel() for p in bundle.model.parameters())
    console.print("[bold]The Transformer of the paper, at a small size[/]")
    console.print(f"  2 + 2 layers, 4 heads, d_model 64: {count:,} parameters")
    console.print(f"  task: {held_out[0][0]} -> {held_out[0][1]}, letter by letter")
    console.print(f"  {len(learn):,} dates to learn from, {len(held_out):,} others kept for the test\n")
    began = time.perf_counter()
    with progress(console, steps) as report:

        def note(step: int, loss: float) -> None:
            so_far.text = f"{step} of {steps} training steps were done and nothing was written"
            report(step, loss)

        dates.train(bundle, learn, steps=steps, report=note)
    console.print(f"trained in {time.perf_counter() - began:.0f} s\n")

    answers = dates.translate(bundle, [source for source, _ in held_out])
    right = sum(answer == wanted for answer, (_, wanted) in zip(answers, held_out, strict=True))
    console.print("[bold]Dates it has never seen[/]")
    for (source, wanted), answer in list(zip(held_out, answers, strict=True))[:5]:
        mark = "[green]right[/]" if answer == wanted else f"[red]wrong[/], it is {wanted}"
        console.print(f"  {source} -> {answer:<18} {mark}")
    console.print(f"  {right} of {len(held_out)} exactly right ({right / len(held_out):.1%})\n")

    seen = dates.look(bundle)
    _look(console, seen)
    for picture in pictures(seen, out):
        so_far.text = f"the model was trained and {picture} drawn, but the model was not saved"
    save(bundle, out / "model")
    so_far.text = f"everything was done and written to {out}"
    console.print("[bold]Written[/]")
    console.print(f"  {out}/: attention.png, heads.png, model/\n", markup=False, soft_wrap=True)
    console.print("[bold]Try next[/]")
    for verb in ("explore", "inspect", "verify"):
        line = shlex.join((*_command(), verb, str(out / "model")))
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _look(console: Console, seen: Seen) -> None:
    """The alignment in the terminal: the mean of the heads."""
    from glassformer import draw

    console.print("[bold]What it looks at[/]: a row for each letter it writes, a column for each it reads")
    console.print("  (cross-attention of the last layer, mean of its 4 heads; fuller is more)\n")
    plain = not console.encoding.lower().startswith("utf")
    width = console.width - 2
    text = draw.attention_text(seen.heads.mean(0), seen.written, seen.read, width=width, ascii_only=plain)
    for line in text.split("\n"):
        console.print("  ", line, sep="", soft_wrap=True)
    console.print()


def pictures(seen: Seen, folder: Path) -> Iterator[Path]:
    """Draw the alignment into a folder: the mean of the heads, then every head alone."""
    from glassformer import draw

    figure = draw.attention_map(
        seen.heads.mean(0),
        queries=seen.written,
        keys=seen.read,
        title=seen.title,
        query_name="written",
        key_name="read",
    )
    yield draw.save(figure, folder / "attention.png")
    title = "The last cross-attention, head by head"
    figure = draw.attention_grid(seen.heads, queries=seen.written, keys=seen.read, title=title)
    yield draw.save(figure, folder / "heads.png")


@contextmanager
def progress(console: Console, steps: int) -> Iterator[Callable[[int, float], None]]:
    """A bar on a terminal; elsewhere ten plain lines."""
    if not console.is_terminal:

        def line(step: int, loss: float) -> None:
            if step % max(1, steps // 10) == 0:
                console.print(f"  step {step:>4} of {steps}   loss {loss:.4f}")
                sys.stdout.flush()

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("  training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=steps, loss=float("nan"))
        yield lambda step, loss: bar.update(task, completed=step, loss=loss)


def _command() -> list[str]:
    """How the command line is called from here, so that what is printed can be pasted."""
    if shutil.which("glassformer"):
        return ["glassformer"]
    python, here = Path(sys.executable), Path.cwd()
    script = python.with_name("glassformer")
    program = script if script.is_file() else python
    shown = str(program.relative_to(here) if program.is_relative_to(here) else program)
    return [shown] if program is script else [shown, "-m", "glassformer"]

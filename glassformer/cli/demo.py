"""`glassformer demo`: translate with the model that comes along, see how it did it, and watch one learn."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from glassformer.bundle import Bundle

MODEL = "pocket"
LANGUAGES = {"de": "German", "fr": "French", "ko": "Korean"}
SENTENCES = (
    "I would like to learn how it works.",
    "Click the button to save the file.",
    "My brother bought a new car yesterday.",
)
LEARNING = {  # what `glassformer train translate` would choose is made for longer runs
    "tokenizer.kind": "char",
    "model.preset": "original",
    "model.d_model": 64,
    "model.num_heads": 4,
    "model.d_ff": 256,
    "model.num_layers": 2,
    "model.dropout": 0.0,
    "training.batch": 2048,
    "training.lr": 0.003,
    "training.schedule": "cosine",
    "training.label_smoothing": 0.0,
    "training.snapshots": 8,
    "training.samples": 1,
    "training.max_valid": 200,
    "training.metric": "exact",
}


@dataclass
class SoFar:
    """What was done, told to a person who stops the demo."""

    text: str = "nothing was written"


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the page, the pictures and the trained model.")
    ] = Path("demo_out"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps; 600 take about half a minute.")] = 600,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where the explorer is served.")] = 8017,
) -> None:
    """Translate real sentences, look inside, and watch a small Transformer learn.

    On a terminal it asks for a sentence of yours and ends with the explorer in the browser; elsewhere it asks
    nothing, writes the explorer's page to a file, and ends by itself.
    """
    from rich.console import Console

    console = Console(highlight=False)
    so_far = SoFar()
    try:
        _check(out)
        chosen = _translations(console)
        _page(console, chosen, out, so_far)
        _learning(console, out, steps, so_far)
        _next(console, out, chosen, port)
    except KeyboardInterrupt:
        console.print(f"\nstopped: {so_far.text}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The translation that is looked into; of several sentences the first, for each is read alone."""

    bundle: Bundle
    text: str
    to: str

    @property
    def given(self) -> dict[str, Any]:
        from glassformer.interpret.inputs import split_sentences

        return {"text": split_sentences(self.bundle, self.text, self.to)[0], "to": self.to}


def _check(out: Path) -> None:
    """What is wrong with the folder is better known now than after the training."""
    from glassformer.errors import GlassformerError

    if out.exists() and not out.is_dir():
        raise GlassformerError(f"'{out}' is a file; give a folder with --out")
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise GlassformerError(f"'{there}' cannot be written to; give another folder with --out")


def _translations(console: Console) -> Chosen:
    """Translate our sentences and a person's own; the last one is looked into."""
    from glassformer.bundle import load

    bundle = load(MODEL)
    count = sum(p.numel() for p in bundle.model.parameters())
    console.print(
        f"[bold]1. Translation[/]: the model '{MODEL}', {count / 1e6:.0f} million weights, offline\n"
    )
    for text in SENTENCES:
        _translate(console, bundle, text)
    chosen = Chosen(bundle=bundle, text=SENTENCES[-1], to="de")
    while sys.stdin.isatty() and console.is_terminal:
        try:
            text = console.input("  [bold]yours[/] (Enter goes on) > ").strip()
        except EOFError:
            console.print()
            break
        if not text:
            break
        if _translate(console, bundle, text, shown=False):
            chosen = Chosen(bundle=bundle, text=text, to=_targets(text)[0])
    return chosen


def _targets(text: str) -> tuple[str, ...]:
    """Korean goes into English; anything else is taken for English and goes into all three.

    >>> _targets("안녕하세요"), _targets("hello")
    (('en',), ('de', 'fr', 'ko'))
    """
    korean = any("가" <= letter <= "힣" for letter in text)
    return ("en",) if korean else tuple(LANGUAGES)


def _translate(console: Console, bundle: Bundle, text: str, *, shown: bool = True) -> bool:
    """Whether it could be read."""
    from glassformer.errors import GlassformerError
    from glassformer.tasks.text_generation import warning_message
    from glassformer.tasks.translation import Translator

    if shown:
        console.print(f"  {text}", markup=False)
    try:
        for to in _targets(text):
            result = Translator(bundle, to=to)(text)
            console.print(f"    {LANGUAGES.get(to, 'English'):8} {result.text}", markup=False, soft_wrap=True)
        for warning in result.warnings:  # about the input, so the same for every language
            console.print(f"    note: {warning_message(bundle, warning, 1)}", markup=False, soft_wrap=True)
        return True
    except GlassformerError as error:  # a person's text that cannot be read is no reason to end
        console.print(f"    {error}", markup=False)
        return False
    finally:
        console.print()


def _page(console: Console, chosen: Chosen, out: Path, so_far: SoFar) -> None:
    """Show in the terminal what was looked at, and write the whole translation as a page to open."""
    from glassformer.explorer.static_export import export_page
    from glassformer.interpret.inputs import emoji_note
    from glassformer.interpret.schema import TraceInput
    from glassformer.interpret.trace import trace_model
    from glassformer.weights.replacing import replacing

    given = chosen.given
    console.print("[bold]2. How it did it[/]: ", end="")
    console.print(given["text"], markup=False, soft_wrap=True)
    if (why := emoji_note(chosen.bundle, given["text"], given["to"])) is not None:
        console.print(f"  note: {why}", markup=False, soft_wrap=True)
    console.print("  a row for each piece it wrote, a column for each it read; fuller is more\n")
    _look(console, trace_model(chosen.bundle, TraceInput(**given)))
    out.mkdir(parents=True, exist_ok=True)
    page = out / "translation.html"
    with replacing(page) as file:
        file.write(export_page(chosen.bundle, TraceInput(**given), name=MODEL).encode())
    so_far.text = f"{page} was written"
    console.print(f"  all of it, head by head: open {page} in a browser\n", markup=False, soft_wrap=True)


def _look(console: Console, trace: Any) -> None:
    """The alignment: the last cross-attention, the mean of its heads."""
    from glassformer import plotting as draw

    name = [one.name for one in trace.attentions() if one.name.endswith("cross_attn")][-1]
    read = [token.piece for token in trace.sequence("source").tokens]
    # each row writes the piece after the one it reads
    written = [*(token.piece for token in trace.sequence("target").tokens[1:]), "end"]
    weights = trace.record.weights(name)[0].mean(0)  # (T, S)
    plain = not console.encoding.lower().startswith("utf")
    text = draw.attention_text(weights, written, read, width=console.width - 2, ascii_only=plain)
    for line in text.split("\n"):
        console.print("  ", line, sep="", soft_wrap=True)
    console.print()


def _learning(console: Console, out: Path, steps: int, so_far: SoFar) -> None:
    """Train a tiny Transformer from nothing, with the command that a person would type."""
    import torch

    from glassformer.cli import dates
    from glassformer.training.recipe import with_overrides
    from glassformer.training.run import train

    learn, held_out = dates.split()
    table, test, run = out / "dates.tsv", out / "dates-test.tsv", out / "dates"
    if (run / "model").exists():  # an earlier demo's; one that was stopped is gone on with
        shutil.rmtree(run, ignore_errors=True)
    if not (run / "recipe.yaml").exists():
        dates.write(table, learn)
        dates.write(test, held_out)
    console.print("[bold]3. Learning[/]: a Transformer from nothing learns to write dates in words\n")
    asked = {"job": "translate", "data": {"train": [str(table)], "valid": [str(test)]}}
    settings = {**LEARNING, "training.steps": steps, "training.validate_every": max(1, steps // 6)}
    so_far.text += "; the same command goes on with the training"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small gain nothing from more
    bundle = train(with_overrides(asked, [f"{key}={value}" for key, value in settings.items()]), run)
    torch.set_num_threads(threads)
    _tested(console, bundle, held_out)
    so_far.text = f"everything was done and written to {out}"


def _tested(console: Console, bundle: Bundle, held_out: list[tuple[str, str]]) -> None:
    said = bundle.translate([read for read, _ in held_out], num_beams=1)
    right = sum(one == wanted for one, (_, wanted) in zip(said, held_out, strict=True))
    console.print(f"\n  {held_out[0][0]} -> {said[0]}", markup=False)
    console.print(f"  {right} of {len(held_out)} dates it has never seen are exactly right\n")


def _next(console: Console, out: Path, chosen: Chosen, port: int) -> None:
    """What to type next; on a terminal the explorer opens and stays until Ctrl-C."""
    command = shlex.join(_command())
    console.print("[bold]Now yours[/]: a table with a sentence and its translation in each row")
    for line in (
        "train translate --train pairs.tsv --out runs/mine",
        f'translate {MODEL} --to ko "{SENTENCES[-1]}"',
        f"explore {MODEL} {out / 'dates'}",
    ):
        console.print(f"  {command} {line}", markup=False, soft_wrap=True)
    if not (sys.stdin.isatty() and console.is_terminal):
        return
    from glassformer.cli.explore import explore
    from glassformer.errors import GlassformerError

    console.print("\n[bold]The explorer[/], on your translation and on the run that learned")
    sys.stdout.flush()
    try:
        explore(models=[MODEL, str(out / "dates")], text=chosen.text, to=chosen.to, port=port)
    except GlassformerError as error:  # all else was done; a port that is taken should not hide it
        console.print(f"  {error}", markup=False)


def _command() -> list[str]:
    """How the command line is called from here, so that what is printed can be pasted."""
    if shutil.which("glassformer"):
        return ["glassformer"]
    python, here = Path(sys.executable), Path.cwd()
    script = python.with_name("glassformer")
    program = script if script.is_file() else python
    shown = str(program.relative_to(here) if program.is_relative_to(here) else program)
    return [shown] if program is script else [shown, "-m", "glassformer"]

"""glassformer demo: translate with a shipped model, look inside, and train a small Transformer on dates.

The training task is to write dates in words, "2024-03-17" to "march 17, 2024": small enough to train in half
a minute, but still a translation task, with reordering and its own vocabulary.
"""

from __future__ import annotations

import random
import shutil
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli.lines import check_output_folder
from glassformer.errors import GlassformerError
from glassformer.json_text import parse_json
from glassformer.pretrained import REQUEST

if TYPE_CHECKING:
    from rich.console import Console

    from glassformer.api import Pipeline

MODEL = "pocket"
LANGUAGES = {"de": "German", "fr": "French", "ko": "Korean"}
SENTENCES = (
    "I would like to learn how it works.",
    "Click the button to save the file.",
    "My brother bought a new car yesterday.",
)
MONTHS = "january february march april may june july august september october november december".split()
FIRST_DATE, LAST_DATE = date(1900, 1, 1), date(2099, 12, 31)
RECIPE = {  # the defaults of `glassformer train translate` are for longer runs
    "tokenizer.kind": "char",
    "model.preset": "original",
    "model.d_model": 64,
    "model.num_heads": 4,
    "model.d_ff": 256,
    "model.num_layers": 2,
    "model.dropout": 0.0,
    "training.batch_tokens": 2048,
    "training.lr": 0.003,
    "training.lr_scheduler": "cosine",
    "training.label_smoothing": 0.0,
    "training.snapshots": 8,
    "training.log_samples": 1,
    "training.max_generate_samples": 200,
    "training.metric_for_best_model": "exact",
}


def demo(
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("demo_out"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps; 600 take about half a minute.")] = 600,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the explorer.")] = 8017,
) -> None:
    """Translate, look inside, and train a small Transformer.

    In a terminal, you can enter your own sentences, and the explorer opens
    in the browser at the end.
    """
    from glassformer.cli.console import console

    check_output_folder(out, overwrite=_is_demo(out), hint="choose another folder")
    screen = console()
    status = ["nothing was written"]
    try:
        bundle, text, to = _translate_examples(screen)
        page = _write_page(screen, bundle, text, to, out)
        status[0] = f"{page} was written; run the same command to resume training"
        _train_on_dates(screen, out, steps)
        status[0] = f"all results were written to {out}"
        _print_next_steps(screen, out, text, to, port)
    except KeyboardInterrupt:
        screen.print(f"\nstopped: {status[0]}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None


def _is_demo(out: Path) -> bool:
    """Whether an earlier demo wrote the folder."""
    try:
        (file,) = parse_json((out / "dates" / REQUEST).read_bytes())["data"]["train"]
        return Path(file).name == "dates.tsv"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _translate_examples(screen: Console) -> tuple[Pipeline, str, str]:
    """Translate the examples and the user's own sentences; return the last text and its language."""
    from glassformer.api import load

    bundle = load(MODEL)
    count = sum(p.numel() for p in bundle.model.parameters())
    screen.print(f"[bold]1. Translation[/] with the model '{MODEL}', {count / 1e6:.0f} million parameters\n")
    for text in SENTENCES:
        screen.print(f"  {text}", markup=False)
        _translate(screen, bundle, text)
    text, to = SENTENCES[-1], "de"
    while sys.stdin.isatty() and screen.is_terminal:
        try:
            entered = screen.input("  [bold]your sentence[/] (Enter to continue) > ").strip()
        except EOFError:
            screen.print()
            break
        if not entered:
            break
        if _translate(screen, bundle, entered):
            text, to = entered, _target_languages(entered)[0]
    return bundle, text, to


def _target_languages(text: str) -> tuple[str, ...]:
    """Return the target languages: English for Korean text, else all other languages.

    >>> _target_languages("안녕하세요"), _target_languages("hello")
    (('en',), ('de', 'fr', 'ko'))
    """
    return ("en",) if any("가" <= letter <= "힣" for letter in text) else tuple(LANGUAGES)


def _translate(screen: Console, bundle: Pipeline, text: str) -> bool:
    """Print the translations of a text; return whether it could be translated."""
    from glassformer.tasks.text_generation import warning_message
    from glassformer.tasks.translation import Translator

    try:
        for to in _target_languages(text):
            result = Translator(bundle, to=to)(text)
            screen.print(f"    {LANGUAGES.get(to, 'English'):8} {result.text}", markup=False, soft_wrap=True)
        for warning in result.warnings:  # about the source, so the same for every language
            screen.print(f"    note: {warning_message(bundle, warning, 1)}", markup=False, soft_wrap=True)
        return True
    except GlassformerError as error:  # the next sentence may work
        screen.print(f"    {error}", markup=False)
        return False
    finally:
        screen.print()


def _write_page(screen: Console, bundle: Pipeline, text: str, to: str, out: Path) -> Path:
    """Print the attention of a translation, and write the full trace as a page."""
    from glassformer.explorer import export_page
    from glassformer.interpret.schema import TraceInput
    from glassformer.interpret.trace import trace_model
    from glassformer.interpret.views import view_of
    from glassformer.weights.atomic_write import write_file

    first = view_of(bundle).split(text, to)[0]
    inputs = TraceInput(text=first, to=to)
    screen.print("[bold]2. Attention[/]: ", end="")
    screen.print(first, markup=False, soft_wrap=True)
    screen.print(
        "  cross-attention of the last layer, averaged over heads:\n"
        "  one row per output token, one column per input token\n"
    )
    _print_attention(screen, trace_model(bundle, inputs))
    out.mkdir(parents=True, exist_ok=True)
    page = out / "translation.html"
    write_file(page, export_page(bundle, inputs, name=MODEL).encode())
    screen.print(f"  open {page} in a browser to see every layer and head\n", markup=False, soft_wrap=True)
    return page


def _print_attention(screen: Console, trace: Any) -> None:
    from glassformer.plotting import attention_text

    name = [attention.name for attention in trace.attentions() if attention.name.endswith("cross_attn")][-1]
    source = [token.piece for token in trace.sequence("source").tokens]
    # each row predicts the token after the one it reads
    target = [*(token.piece for token in trace.sequence("target").tokens[1:]), "end"]
    weights = trace.record.weights(name)[0].mean(0)  # (T, S)
    ascii_only = not screen.encoding.lower().startswith("utf")
    text = attention_text(weights, target, source, width=screen.width - 2, ascii_only=ascii_only)
    for line in text.split("\n"):
        screen.print("  ", line, sep="", soft_wrap=True)
    screen.print()


def date_pairs(valid_size: int = 500) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return training and validation pairs ("2024-03-07", "march 7, 2024") of all dates of two centuries."""
    days = [FIRST_DATE + timedelta(n) for n in range((LAST_DATE - FIRST_DATE).days + 1)]
    random.Random(0).shuffle(days)
    pairs = [(day.isoformat(), f"{MONTHS[day.month - 1]} {day.day}, {day.year}") for day in days]
    return pairs[valid_size:], pairs[:valid_size]


def _train_on_dates(screen: Console, out: Path, steps: int) -> None:
    import torch

    from glassformer.api import train
    from glassformer.training.recipe import with_overrides

    run, (training, valid) = out / "dates", date_pairs()
    files = {"train": out / "dates.tsv", "valid": out / "dates-valid.tsv"}
    if (run / "model").exists():  # of an earlier demo; an interrupted one is resumed
        shutil.rmtree(run, ignore_errors=True)
    if not (run / "recipe.yaml").exists():
        for path, pairs in zip(files.values(), (training, valid), strict=True):
            path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    screen.print("[bold]3. Training[/]: a Transformer learns to write dates in words\n")
    recipe = {"job": "translate", "data": {name: [str(path)] for name, path in files.items()}}
    settings = {**RECIPE, "training.max_steps": steps, "training.eval_steps": max(1, steps // 6)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads are no faster for small matrices
    bundle = train(with_overrides(recipe, [f"{key}={value}" for key, value in settings.items()]), run)
    torch.set_num_threads(threads)
    outputs = bundle.translate([source for source, _ in valid], num_beams=1)
    correct = sum(output == target for output, (_, target) in zip(outputs, valid, strict=True))
    screen.print(f"\n  {valid[0][0]} -> {outputs[0]}", markup=False)
    screen.print(f"  correct on the validation set: {correct} of {len(outputs)}\n")


def _print_next_steps(screen: Console, out: Path, text: str, to: str, port: int) -> None:
    """Print commands to try; in a terminal, open the explorer until Ctrl-C."""
    command = "glassformer" if shutil.which("glassformer") else f"{sys.executable} -m glassformer"
    screen.print(
        "[bold]Next steps[/]: train on your own data (one sentence pair per line, separated by a tab), or try"
    )
    for arguments in (
        "train translate --train pairs.tsv --out runs/mine",
        f'translate {MODEL} --to ko "{SENTENCES[-1]}"',
        f"explore {MODEL} {out / 'dates'}",
    ):
        screen.print(f"  {command} {arguments}", markup=False, soft_wrap=True)
    if not (sys.stdin.isatty() and screen.is_terminal):
        return
    from glassformer.cli.explore import explore

    screen.print("\n[bold]Explorer[/]: your translation and the training run")
    sys.stdout.flush()
    try:
        explore(models=[MODEL, str(out / "dates")], text=text, to=to, port=port)
    except GlassformerError as error:  # e.g. the port is in use; everything else is done
        screen.print(f"  {error}", markup=False)

"""glassformer evaluate MODEL DATA...: how good a saved model is on files it has not seen."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from glassformer.cli.language import spelt_by
from glassformer.cli.screen import console, print_json
from glassformer.cli.source import named
from glassformer.cli.target import Overwrite, check_target
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.training.evaluation import Evaluation

TOLD_EVERY = 15.0  # seconds
LEARNING = ("recut", "hide", "guess", "flip", "shift", "rotate", "erase", "cutmix")  # for training alone
# settings of the data that do nothing here, and why
IDLE = {
    **dict.fromkeys(("train", "valid"), "the files to measure on are arguments"),
    **dict.fromkeys(("max_len", "horizon"), "the model's own length holds"),
    **dict.fromkeys(LEARNING, "nothing is learnt"),
    "split": "all rows are measured",
}
REWRITES = ("translate", "restore")  # jobs whose answers are texts to be compared


class Words(StrEnum):
    """How BLEU cuts texts into words."""

    standard = "13a"
    intl = "intl"
    char = "char"
    zh = "zh"
    none = "none"
    ko = "ko-mecab"
    ja = "ja-mecab"


def evaluate(
    model: str = typer.Argument(
        ..., metavar="MODEL", help="A model folder, as runs/x/model, or a model that comes along: pocket."
    ),
    data: list[str] = typer.Argument(..., metavar="DATA...", help="Files as its training took them."),
    job: str | None = typer.Option(
        None, help="What it does, where its folder does not say: translate, lm, ..."
    ),
    columns: str | None = typer.Option(None, help="Names or numbers of the columns in tables, as en,de."),
    to: str | None = typer.Option(
        None, help="The language of all the targets, for a model that is told which to write, as de."
    ),
    tokenize: Words = typer.Option(Words.standard, help="How BLEU cuts words; char for Korean or Chinese."),
    lowercase: bool = typer.Option(
        False, "--lowercase", help="Let BLEU and chrF take capitals for small letters."
    ),
    changes: list[str] = typer.Option([], "--set", help="How data is read: --set data.unit=line."),
    out: Path | None = typer.Option(None, help="Write what the model answered here, one a line."),
    overwrite: Overwrite = False,
    batch: int | None = typer.Option(None, min=1, help="The most one batch holds, as training.batch."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:1."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Measure a model on files: every figure is exact over all that they hold.

    translate: loss, perplexity, BLEU, chrF. restore: the same, and exact matches. lm: loss, perplexity,
    bits a character. classify and images: accuracy, F1, every class. forecast: squared and absolute errors
    beside those of repeating the last value.
    """
    if out is not None:
        check_target(out, "--out", overwrite=overwrite, read=data)
    _refuse_idle(changes)
    from glassformer.training.evaluation import evaluate_files

    where = named(model)
    names = [name.strip() for name in columns.split(",")] if columns else []
    with _alive(f"measuring {model}"), TemporaryDirectory(prefix="glassformer-") as place:
        files, settings = data, changes
        if to is not None:
            files, names, settings = _in_language(where, data, to, names, changes, Path(place))
        judged = evaluate_files(
            where,
            files,
            job=job,
            columns=names,
            overrides=settings,
            batch=batch,
            device=device,
            log=_say,
        )
    metrics, signatures = dict(judged.validation.metrics), dict(judged.validation.signatures)
    if judged.job in REWRITES:
        if tokenize is not Words.standard or lowercase:
            scores, signatures = _likeness(judged, tokenize, lowercase)
            metrics |= scores
    elif tokenize is not Words.standard or lowercase:
        raise GlassformerError(f"--tokenize and --lowercase are for BLEU, which {judged.job} does not have")
    if out is not None:
        _write_answers(out, judged)
    if as_json:
        print_json(
            {
                "model": model,
                "job": judged.job,
                "data": list(data),
                "metrics": metrics,
                "signatures": signatures,
                **judged.validation.tables,
            }
        )
        return
    _show(model, judged, metrics, signatures)


def _refuse_idle(changes: Sequence[str]) -> None:
    """Settings of the data that a measure has no use for must not seem to have changed it."""
    for change in changes:
        section, _, name = change.partition("=")[0].strip().partition(".")
        if section == "data" and name in IDLE:
            raise GlassformerError(f"data.{name} changes nothing here, for {IDLE[name]}; leave it out")


def _in_language(
    model: Path, data: Sequence[str], to: str, names: Sequence[str], changes: Sequence[str], place: Path
) -> tuple[list[str], list[str], list[str]]:
    """Files, columns and settings with which pairs of one language are read as the model's training was."""
    import glassformer
    from glassformer.data.readers import LANGUAGE_COLUMN, parse_columns
    from glassformer.data.row_errors import RowErrors
    from glassformer.data.sources import PAIR_FIELDS, write_pairs_with_language

    for change in changes:
        if change.partition("=")[0].strip() in ("data.to", "data.columns"):
            raise GlassformerError(f"'{change}' and --to are two ways to say it; name columns with --columns")
    language, problems = spelt_by(glassformer.load(model), to), RowErrors()
    table = place / "pairs.jsonl"
    write_pairs_with_language(data, language, table, columns=parse_columns(names) or None, errors=problems)
    if problems.count:
        _say(problems.summary())
    return [str(table)], list(PAIR_FIELDS), [*changes, f"data.to={LANGUAGE_COLUMN}"]


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


@contextmanager
def _alive(doing: str) -> Iterator[None]:
    """Say now and then how long it has been going on; what is soon done is done without a word."""
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(TOLD_EVERY):
            _say(f"{doing}: {time.monotonic() - began:.0f} s so far")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _likeness(
    judged: Evaluation, tokenize: Words, lowercase: bool
) -> tuple[dict[str, float], dict[str, str]]:
    """BLEU and chrF of the answers, reckoned otherwise than a validation does."""
    from glassformer.metrics.bleu import bleu, chrf

    got = [sample.got for sample in judged.validation.samples]
    expected = [sample.expected for sample in judged.validation.samples]
    words = bleu(got, expected, tokenize=tokenize.value, case="lower" if lowercase else "mixed")
    letters = chrf(got, expected, case="lower" if lowercase else "mixed")
    if words.note:
        _say(words.note)
    return (
        {"bleu": words.score, "chrf": letters.score},
        {"bleu": words.signature, "chrf": letters.signature},
    )


def _write_answers(out: Path, judged: Evaluation) -> None:
    from glassformer.weights.replacing import replacing

    answers = [" ".join(sample.got.split()) for sample in judged.validation.samples]
    if not answers:
        raise GlassformerError(f"{judged.job} gives figures but no answers to write; leave --out out")
    with replacing(out) as file:
        file.write("".join(f"{answer}\n" for answer in answers).encode())
    _say(f"wrote {len(answers):,} answers to {out}")


def _show(model: str, judged: Evaluation, metrics: dict[str, float], signatures: dict[str, str]) -> None:
    screen = console()
    screen.print(f"[bold]{model}[/]  {judged.job}", soft_wrap=True)
    width = max(map(len, metrics))
    for name, value in metrics.items():
        screen.print(
            f"  {name:<{width}}  {value:>10.4f}  {signatures.get(name, '')}".rstrip(), soft_wrap=True
        )
    if "classes" in judged.validation.tables:  # a table of steps is for programs
        _show_table(screen, "classes", judged.validation.tables["classes"])


def _show_table(screen: Any, name: str, rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title=name, title_justify="left", box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row.values()))
    screen.print(table)

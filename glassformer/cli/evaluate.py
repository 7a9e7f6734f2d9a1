"""glassformer evaluate MODEL DATA...: how good a saved model is on files it has not seen."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from glassformer.cli.screen import console, print_json
from glassformer.cli.source import named
from glassformer.core.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.training.judging import Judged

TOLD_EVERY = 15.0  # seconds
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
    tokenize: Words = typer.Option(Words.standard, help="How BLEU cuts words; char for Korean or Chinese."),
    lowercase: bool = typer.Option(
        False, "--lowercase", help="Let BLEU and chrF take capitals for small letters."
    ),
    changes: list[str] = typer.Option([], "--set", help="How data is read: --set data.unit=line."),
    out: Path | None = typer.Option(None, help="Write what the model answered here, one a line."),
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
        _check_out(out)
    from glassformer.training.judging import judge

    with _alive(f"measuring {model}"):
        judged = judge(
            named(model),
            data,
            job=job,
            columns=[name.strip() for name in columns.split(",")] if columns else (),
            changes=changes,
            batch=batch,
            device=device,
            say=_say,
        )
    metrics, signatures = dict(judged.found.metrics), dict(judged.found.signatures)
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
                **judged.found.tables,
            }
        )
        return
    _show(model, judged, metrics, signatures)


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


def _likeness(judged: Judged, tokenize: Words, lowercase: bool) -> tuple[dict[str, float], dict[str, str]]:
    """BLEU and chrF of the answers, reckoned otherwise than a validation does."""
    from glassformer.evaluation.bleu import bleu, chrf

    got = [sample.got for sample in judged.found.samples]
    expected = [sample.expected for sample in judged.found.samples]
    words = bleu(got, expected, tokenize=tokenize.value, case="lower" if lowercase else "mixed")
    letters = chrf(got, expected, case="lower" if lowercase else "mixed")
    if words.note:
        _say(words.note)
    return (
        {"bleu": words.score, "chrf": letters.score},
        {"bleu": words.signature, "chrf": letters.signature},
    )


def _check_out(out: Path) -> None:
    """Better known now than after the answers were worked out."""
    if out.is_dir():
        raise GlassformerError(f"'{out}' is a folder; give a file to write answers to with --out")
    if not out.parent.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise GlassformerError(f"'{out}' cannot be written to; give another file with --out")


def _write_answers(out: Path, judged: Judged) -> None:
    from glassformer.weights.replacing import replacing

    answers = [" ".join(sample.got.split()) for sample in judged.found.samples]
    if not answers:
        raise GlassformerError(f"{judged.job} gives figures but no answers to write; leave --out out")
    with replacing(out) as file:
        file.write("".join(f"{answer}\n" for answer in answers).encode())
    _say(f"wrote {len(answers):,} answers to {out}")


def _show(model: str, judged: Judged, metrics: dict[str, float], signatures: dict[str, str]) -> None:
    screen = console()
    screen.print(f"[bold]{model}[/]  {judged.job}", soft_wrap=True)
    width = max(map(len, metrics))
    for name, value in metrics.items():
        screen.print(
            f"  {name:<{width}}  {value:>10.4f}  {signatures.get(name, '')}".rstrip(), soft_wrap=True
        )
    if "classes" in judged.found.tables:  # a table of steps is for programs
        _show_table(screen, "classes", judged.found.tables["classes"])


def _show_table(screen: Any, name: str, rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title=name, title_justify="left", box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row.values()))
    screen.print(table)

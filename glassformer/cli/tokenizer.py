"""glassformer tokenizer train FILES: learn a vocabulary, and show how it cuts."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from glassformer.cli.screen import console, print_json
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.data.row_errors import RowErrors
    from glassformer.tokenization import Side, Tokenizer

SAMPLE = 2000  # texts kept to measure on, of whatever many there are
SHOWN = 300  # characters of a text that is shown
SENTENCES = {
    "English": "The old captain sang to the sea.",
    "Korean": "늙은 선장이 바다에 노래를 불렀다.",
}


class What(StrEnum):
    train = "train"


class Kind(StrEnum):
    bpe = "bpe"
    unigram = "unigram"
    byte = "byte"
    word = "word"
    char = "char"


class Marks(StrEnum):
    end = "end"
    both = "both"
    around = "around"
    none = "none"


COLUMN_HELP = "In tables: the name or number (from 1) of a column with text; repeat it for more."


def tokenizer(
    what: What = typer.Argument(..., metavar="train", help="What to do; training is all there is."),
    files: list[Path] = typer.Argument(
        ..., metavar="FILES", help="Plain text, TSV, CSV or JSONL (all also .gz), or Parquet."
    ),
    out: Path = typer.Option(..., help="The folder to write."),
    kind: Kind = typer.Option(
        Kind.bpe, help="Pieces of words (bpe, unigram), of bytes, whole words, or characters."
    ),
    vocab_size: int = typer.Option(8000, min=1, help="How many tokens at most."),
    lowercase: bool = typer.Option(False, "--lowercase", help="Make capital letters small."),
    min_frequency: int = typer.Option(2, min=1, help="How often a piece or word must occur."),
    marks: Marks = typer.Option(
        Marks.end, help="Around a text: ...</s>, <s>...</s>, the same for classifiers, or nothing."
    ),
    tag: list[str] = typer.Option([], help="One more special token, such as '>>de<<'; repeat it for more."),
    column: list[str] = typer.Option([], help=COLUMN_HELP),
    target: list[Path] = typer.Option(
        [], help="Learn a second vocabulary, for the side to translate into, from this file."
    ),
    target_column: list[str] = typer.Option([], help="As --column, for the files of --target."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Write into a folder that holds files."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Learn a tokenizer from your own files, and see how it cuts.

    The files are read once, as a stream. The same files give the same tokenizer.
    """
    _check(out, overwrite)
    if target_column and not target:
        raise GlassformerError("--target-column needs --target, the files it is a column of")
    from glassformer.data.row_errors import RowErrors
    from glassformer.tokenization import TokenizerPlan, pair_tokenizers, train_tokenizer
    from glassformer.tokenization.tokenizer import TARGET_FILE

    plan = TokenizerPlan(
        kind=kind.value,
        vocab_size=vocab_size,
        lowercase=lowercase,
        min_frequency=min_frequency,
        marks=marks.value,
        tags=tuple(tag),
    )
    problems = RowErrors()
    began = time.perf_counter()
    heard: dict[Side, Heard] = {"source": Heard(files, column, problems)}
    made = train_tokenizer(heard["source"], plan)
    if target:
        heard["target"] = Heard(target, target_column, problems)
        made = pair_tokenizers(made, train_tokenizer(heard["target"], plan))
    seconds = time.perf_counter() - began
    if problems.count:
        print(problems.summary(), file=sys.stderr)
    if overwrite and not target:
        (out / TARGET_FILE).unlink(missing_ok=True)  # of an earlier pair of vocabularies
    made.save(out)
    sides = [_measured(made, side, heard[side]) for side in heard]
    if as_json:
        found = {"folder": str(out), "kind": kind.value, "seconds": round(seconds, 3)}
        print_json(found | {"sides": [asdict(side) for side in sides]})
    else:
        _show(out, kind, seconds, sides)


class Heard:
    """The texts of some files, read once; how many there were, and a fair sample of them."""

    def __init__(self, files: Sequence[Path], columns: Sequence[str], problems: RowErrors) -> None:
        from glassformer.data.readers import parse_columns
        from glassformer.data.sources import texts

        self._sources = [texts(files, column=name) for name in parse_columns(columns)] or [texts(files)]
        self._problems = problems
        self.count = 0
        self.sample: list[str] = []

    def __iter__(self) -> Iterator[str]:
        from rich.console import Console

        dice = random.Random(0)
        with Console(stderr=True).status("reading …") as status:
            for source in self._sources:
                for (text,) in source.rows(self._problems):
                    self.count += 1
                    if self.count % 10_000 == 0:
                        status.update(f"read {self.count:,} texts …")
                    place = self.count - 1 if self.count <= SAMPLE else dice.randrange(self.count)
                    if place < SAMPLE:
                        self.sample[place : place + 1] = [text[:SHOWN]]
                    yield text
            status.update(f"learning from {self.count:,} texts …")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How one side's vocabulary cuts: pieces by sample, and numbers over a sample of what it learnt from."""

    side: Side
    texts: int
    vocab_size: int
    tokens_per_word: float
    unknown: float
    cut: dict[str, list[str]]


def _measured(made: Tokenizer, side: Side, heard: Heard) -> Measured:
    rows = [row.ids for row in made.encode_batch(heard.sample, special=False, side=side)]
    tokens, words = sum(map(len, rows)), sum(len(text.split()) for text in heard.sample)
    unknown = sum(row.count(made.unk_id) for row in rows if made.unk_id is not None)
    shown = {"your text": heard.sample[0].split("\n")[0], **SENTENCES}
    return Measured(
        side=side,
        texts=heard.count,
        vocab_size=made.vocab_size if side == "source" else made.target_vocab_size,
        tokens_per_word=tokens / max(1, words),
        unknown=unknown / max(1, tokens),
        cut={
            name: made.pieces(made.encode(text, special=False, side=side).ids, side=side)
            for name, text in shown.items()
        },
    )


def _check(out: Path, overwrite: bool) -> None:
    """Better known now than after the training."""
    if out.exists() and not out.is_dir():
        raise GlassformerError(f"'{out}' is a file; give a folder with --out")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise GlassformerError(f"'{out}' holds files already; add --overwrite, or give another folder")
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise GlassformerError(f"'{there}' cannot be written to; give another folder with --out")


def _show(out: Path, kind: Kind, seconds: float, sides: list[Measured]) -> None:
    screen = console()
    screen.print(f"[bold]{out}[/]  {kind.value}, learnt in {seconds:.1f} s", soft_wrap=True)
    for side in sides:
        name = f"{side.side}: " if len(sides) > 1 else ""
        screen.print(
            f"  {name}{side.vocab_size:,} tokens from {side.texts:,} texts, "
            f"{side.tokens_per_word:.2f} tokens a word, {side.unknown:.2%} unknown"
        )
        for title, pieces in side.cut.items():
            screen.print(f"    {title:<9}  {'|'.join(pieces).strip()}", markup=False, soft_wrap=True)

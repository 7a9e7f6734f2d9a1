"""glassformer tokenizer train FILES: train a tokenizer and show how it splits text."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from glassformer.cli.console import console, message, print_json
from glassformer.cli.lines import check_output_folder
from glassformer.cli.options import Json, Overwrite
from glassformer.errors import FileProblemError, MissingValueError
from glassformer.messages import quantity

if TYPE_CHECKING:
    from glassformer.data.row_errors import RowErrors
    from glassformer.tokenization import Side, Tokenizer

SAMPLE_SIZE = 2000  # texts to compute statistics on
SAMPLE_CHARACTERS = 300  # of each of them
EXAMPLES = {"English": "The old captain sang to the sea.", "Korean": "늙은 선장이 바다에 노래를 불렀다."}


Kind = Literal["bpe", "unigram", "byte", "word", "char"]
Template = Literal["eos", "bos_eos", "cls_sep", "none"]


def tokenizer(
    action: Annotated[Literal["train"], typer.Argument(metavar="train", help="The only action is train.")],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="Text, TSV, CSV or JSONL files (also .gz), or Parquet."),
    ],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    kind: Annotated[
        Kind, typer.Option(help="Subwords (bpe, unigram), byte-level BPE, words or characters.")
    ] = "bpe",
    vocab_size: Annotated[int, typer.Option(min=1, help="Maximum vocabulary size.")] = 8000,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lowercase the text.")] = False,
    min_frequency: Annotated[int, typer.Option(min=1, help="Minimum frequency of a token.")] = 2,
    template: Annotated[
        Template,
        typer.Option(help="Special tokens: eos (...</s>), bos_eos (<s>...</s>), cls_sep or none."),
    ] = "eos",
    tag: Annotated[
        list[str] | None, typer.Option(help="Additional special token, e.g. '>>de<<'. Repeatable.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Name or number of a text column. Repeatable.")
    ] = None,
    target: Annotated[
        list[Path] | None, typer.Option(help="Training text for a separate target vocabulary. Repeatable.")
    ] = None,
    target_column: Annotated[
        list[str] | None, typer.Option(help="Like --column, for the files of --target.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a tokenizer and show how it splits text.

    The files are streamed. The same files give the same tokenizer.
    """
    check_output_folder(out, overwrite=overwrite)
    if target_column and not target:
        raise MissingValueError(name="target", needed_for="with --target-column")
    from glassformer.bundle import replaced_files
    from glassformer.data.row_errors import RowErrors
    from glassformer.tokenization import TokenizerPlan, pair_tokenizers, train_tokenizer
    from glassformer.weights.store import weight_files

    if out.is_dir() and weight_files(out):
        raise FileProblemError(path=out, problem="is a model folder", hint="choose another folder")
    plan = TokenizerPlan(
        kind=kind,
        vocab_size=vocab_size,
        lowercase=lowercase,
        min_frequency=min_frequency,
        template=template,
        tags=tuple(tag or ()),
    )
    errors = RowErrors()
    start = time.perf_counter()
    corpora: dict[Side, Corpus] = {"source": Corpus(files, column or [], errors)}
    trained = train_tokenizer(corpora["source"], plan)
    if target:
        corpora["target"] = Corpus(target, target_column or [], errors)
        trained = pair_tokenizers(trained, train_tokenizer(corpora["target"], plan))
    seconds = time.perf_counter() - start
    if errors.count:
        message(errors.summary())
    with replaced_files(out) as staged:
        trained.save(staged)
    sides = [_statistics(trained, side, corpus) for side, corpus in corpora.items()]
    if as_json:
        print_json({"folder": str(out), "kind": kind, "seconds": round(seconds, 3), "sides": sides})
        return
    screen = console()
    screen.print(f"[bold]{out}[/]  {kind}, trained in {seconds:.1f} s", soft_wrap=True)
    for side in sides:
        name = f"{side['side']}: " if len(sides) > 1 else ""
        screen.print(
            f"  {name}{side['vocab_size']:,} tokens from {quantity(side['texts'], 'text')}, "
            f"{side['tokens_per_word']:.2f} tokens per word, {side['unknown']:.2%} unknown"
        )
        for example, pieces in side["examples"].items():
            screen.print(f"    {example:<9}  {'|'.join(pieces).strip()}", markup=False, soft_wrap=True)


class Corpus:
    """Iterate once over the texts of some files, count them and keep a random sample."""

    def __init__(self, files: Sequence[Path], columns: Sequence[str], errors: RowErrors) -> None:
        from glassformer.data.readers import parse_columns
        from glassformer.data.sources import texts

        self._sources = [texts(files, column=name) for name in parse_columns(columns)] or [texts(files)]
        self._errors = errors
        self.count = 0
        self.sample: list[str] = []

    def __iter__(self) -> Iterator[str]:
        from rich.console import Console

        generator = random.Random(0)
        with Console(stderr=True).status("reading …") as status:
            for source in self._sources:
                for (text,) in source.rows(self._errors):
                    self.count += 1
                    if self.count % 10_000 == 0:
                        status.update(f"read {self.count:,} texts …")
                    index = self.count - 1 if self.count <= SAMPLE_SIZE else generator.randrange(self.count)
                    if index < SAMPLE_SIZE:
                        self.sample[index : index + 1] = [text[:SAMPLE_CHARACTERS]]
                    yield text
            status.update(f"training on {quantity(self.count, 'text')} …")


def _statistics(tokenizer: Tokenizer, side: Side, corpus: Corpus) -> dict[str, Any]:
    """Compute statistics on how a tokenizer splits a sample of its training texts."""
    rows = [row.ids for row in tokenizer.encode_batch(corpus.sample, special=False, side=side)]
    tokens, words = sum(map(len, rows)), sum(len(text.split()) for text in corpus.sample)
    unknown = sum(row.count(tokenizer.unk_id) for row in rows if tokenizer.unk_id is not None)
    examples = {"your text": corpus.sample[0].split("\n")[0], **EXAMPLES}
    return {
        "side": side,
        "texts": corpus.count,
        "vocab_size": tokenizer.vocab_size if side == "source" else tokenizer.target_vocab_size,
        "tokens_per_word": tokens / max(1, words),
        "unknown": unknown / max(1, tokens),
        "examples": {
            name: tokenizer.pieces(tokenizer.encode(text, special=False, side=side).ids, side=side)
            for name, text in examples.items()
        },
    }

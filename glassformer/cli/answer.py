"""glassformer answer MODEL QUESTION... --context FILE: the words of a text that answer a question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from glassformer.cli.reading import (
    BATCH_TOKENS,
    AsJson,
    BatchTokens,
    Device,
    Dtype,
    File,
    Model,
    Threads,
    inputs_of,
    opened,
    printed,
    scored,
)
from glassformer.core.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.api import Bundle
    from glassformer.verbs.answer import Answer


def answer(
    model: Model,
    questions: list[str] | None = typer.Argument(
        None,
        metavar="[QUESTION...]",
        help="Questions; without --context each with a tab and its context.",
        show_default=False,
    ),
    context: Path | None = typer.Option(
        None, help="A text file, of any length, that all questions are about.", show_default=False
    ),
    file: File = None,
    longest: int = typer.Option(15, min=1, help="The most tokens of an answer."),
    as_json: AsJson = False,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    device: Device = "auto",
    dtype: Dtype = None,
    threads: Threads = None,
) -> None:
    """Answer each question, one a line, with words of its context: the answer, a tab, its probability.

    A context longer than the model reads is read in windows that overlap. An empty line stays empty.
    --json also tells where the answer stands, and how likely it is that there is none.
    """
    what = inputs_of(questions, file)
    about = None if context is None else "\n".join(inputs_of(None, context).lines)
    bundle = opened(model, device=device, dtype=dtype, threads=threads)
    found = _answers(bundle, what.lines, about, longest, batch_tokens)

    def plain(one: Answer | None) -> str:
        return "" if one is None else scored([(one.text, one.score)])

    printed(what, found, plain, (lambda one: None if one is None else asdict(one)) if as_json else None)


def _answers(
    bundle: Bundle, lines: Iterator[str], about: str | None, longest: int, batch_tokens: int
) -> Iterator[Answer | None]:
    from glassformer.verbs.answer import answer as found

    for number, line in enumerate(lines, 1):
        if not line.strip():
            yield None
            continue
        question, tab, context = line.partition("\t")
        if about is not None:
            question, context = line, about
        elif not tab:
            raise GlassformerError(
                f"question {number:,} has no tab with its context after it; give the context so, or a file "
                "with --context"
            )
        yield found(bundle, question, context, longest=longest, batch_tokens=batch_tokens)

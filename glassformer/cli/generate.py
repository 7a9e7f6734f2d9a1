"""glassformer generate MODEL [PROMPT...]: what follows each prompt, shown as it is written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import typer

from glassformer.cli.noted import noting
from glassformer.cli.writing import Asked, answer, writing_verb

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.watch import Watch
    from glassformer.tasks.writing.batches import Passage
    from glassformer.tokenization import SpecialInText


@writing_verb
def generate(
    asked: Asked,
    echo: bool = typer.Option(False, "--echo", help="Show the prompt before what follows it."),
    marks: bool = typer.Option(
        False,
        "--marks",
        help="Take marks such as <|im_start|> in a prompt for the tokenizer's own, not text.",
    ),
) -> None:
    """Go on from prompts: arguments, a file, or standard input.

    One prompt as an argument is answered piece by piece, with its line breaks. Of several, a line in is
    a line out: line breaks become spaces, which --json keeps. An empty line stays empty; an empty argument
    begins where the model's texts begin. Where nothing says how long, at most 256 tokens are written.
    """
    texts = asked.texts or ()
    special: SpecialInText = "keep" if marks else "plain"
    if (
        len(texts) == 1
        and not asked.as_json
        and asked.out is None
        and asked.tree is None
        and asked.settings.get("num_beams", 1) == 1
    ):
        _stream(asked, texts[0], echo, special)
        return
    from dataclasses import replace

    from glassformer.tasks import writing

    def write(bundle: Bundle, prompts: Iterable[str], watch: Watch) -> Iterator[Passage]:
        waiting: list[str] = []

        def given() -> Iterator[str]:
            for prompt in prompts:
                if echo:
                    waiting.append("" if watch.leaves(prompt) else prompt)
                yield prompt

        found: Iterator[Passage] = writing.generate(
            bundle,
            given(),
            special_in_text=special,
            details=True,
            watch=watch,
            **asked.budget(),
            **asked.settings,
        )
        for passage in found:
            yield replace(passage, text=waiting.pop(0) + passage.text) if echo else passage

    answer(asked, write)


def _stream(asked: Asked, prompt: str, echo: bool, special: SpecialInText) -> None:
    from glassformer.tasks.writing import stream

    bundle = asked.bundle_for(asked.texts)
    made = stream(bundle, prompt, special_in_text=special, **asked.settings)
    with noting(bundle) as notes, closing(made) as pieces:
        sys.stdout.write(prompt if echo else "")
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
        if pieces.written is not None:
            notes.hear(pieces.written.finish_reason, pieces.doubts)

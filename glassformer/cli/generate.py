"""glassformer generate MODEL [PROMPT...]: what follows each prompt, shown as it is written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import typer

from glassformer.cli.writing import Asked, answer, writing_verb

if TYPE_CHECKING:
    from glassformer.api import Bundle
    from glassformer.verbs.writing.batches import Passage


@writing_verb
def generate(
    asked: Asked,
    echo: bool = typer.Option(False, "--echo", help="Show the prompt before what follows it."),
) -> None:
    """Go on from prompts: arguments, a file, or standard input.

    One prompt as an argument is answered piece by piece, with its line breaks. Of several, a line in is
    a line out: line breaks become spaces, which --json keeps. Where nothing says how long, at most 256
    tokens are written.
    """
    one = asked.texts is not None and len(asked.texts) == 1
    if one and not asked.as_json and asked.out is None and asked.settings.get("num_beams", 1) == 1:
        _stream(asked, echo)
        return
    from dataclasses import replace

    from glassformer.verbs import writing

    def write(bundle: Bundle, prompts: Iterable[str]) -> Iterator[Passage]:
        heard: list[str] = []

        def hear() -> Iterator[str]:
            for prompt in prompts:
                if echo:
                    heard.append(prompt)
                yield prompt

        found: Iterator[Passage] = writing.generate(
            bundle, hear(), details=True, batch_tokens=asked.batch_tokens, **asked.settings
        )
        for passage in found:
            yield replace(passage, text=heard.pop(0) + passage.text) if echo else passage

    answer(asked, write, noting=lambda bundle, passage: _limited(bundle, passage.ended))


def _stream(asked: Asked, echo: bool) -> None:
    from glassformer.verbs.writing import stream

    bundle, prompt = asked.bundle(), asked.texts[0]
    with closing(stream(bundle, prompt, **asked.settings)) as pieces:
        sys.stdout.write(prompt if echo else "")
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
    if pieces.written is not None and (sentence := _limited(bundle, pieces.written.ended)):
        print(f"note: {sentence}", file=sys.stderr)


def _limited(bundle: Bundle, ended: str) -> str | None:
    """Why a text stopped, where the model did not end it."""
    if ended != "length":
        return None
    from glassformer.verbs.writing.ends import ends_of

    if not ends_of(bundle).eos_ids:
        return "the model has no end token, so it wrote up to the limit; --max-new-tokens moves it"
    return "a text was stopped at the limit of tokens; --max-new-tokens moves it"

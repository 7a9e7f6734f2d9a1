"""glassformer translate MODEL [TEXT...]: a translation for every text, in order."""

from __future__ import annotations

from enum import StrEnum

import typer

from glassformer.cli.writing import Asked, answer, writing_verb


class Split(StrEnum):
    """Which lines are translated sentence by sentence."""

    long = "long"
    always = "always"
    never = "never"


@writing_verb
def translate(
    asked: Asked,
    to: str | None = typer.Option(None, help="The language to write, where the model knows several, as fra."),
    prefix: str | None = typer.Option(
        None,
        help="Put this before every text, or before each sentence of one translated by its sentences.",
    ),
    split: Split | None = typer.Option(
        None,
        help="Which lines to translate sentence by sentence; by itself what suits the model.",
        show_default=False,
    ),
) -> None:
    """Translate texts: arguments, a file, or standard input; a line in is a line out.

    An empty line stays empty. Sentence by sentence is how lines of more than 128 tokens are translated, and
    all lines where the model has learnt single sentences. The folder's generation_config.json holds where
    nothing else is given; where it is silent, 4 beams.
    """
    from glassformer.tasks import writing

    answer(
        asked,
        lambda bundle, texts, watch: writing.translate(
            bundle,
            texts,
            to=to,
            prefix=prefix,
            split=None if split is None else split.value,
            details=True,
            watch=watch,
            **asked.budget(),
            **asked.settings,
        ),
    )

"""glassformer summarize MODEL [TEXT...]: a summary for every text, in order."""

from __future__ import annotations

import typer

from glassformer.cli.writing import Asked, answer, writing_verb


@writing_verb
def summarize(
    asked: Asked,
    prefix: str | None = typer.Option(None, help="Put this before every text; else what the folder says."),
) -> None:
    """Summarise texts: arguments, a file, or standard input; a line in is a line out.

    A text is read whole: one that is too long for the model is refused.
    """
    from glassformer.verbs import writing

    answer(
        asked,
        lambda bundle, texts, watch: writing.summarize(
            bundle, texts, prefix=prefix, details=True, watch=watch, **asked.budget(), **asked.settings
        ),
    )

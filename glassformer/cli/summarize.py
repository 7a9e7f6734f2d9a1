"""glassformer summarize MODEL [TEXT...]: a summary for every text, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from glassformer.cli.writing import Asked, answer, writing_verb

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.watch import Watch
    from glassformer.tasks.writing.batches import Passage


@writing_verb
def summarize(
    asked: Asked,
    prefix: str | None = typer.Option(None, help="Put this before every text; else what the folder says."),
) -> None:
    """Summarise texts: arguments, a file, or standard input; a line in is a line out.

    An empty line stays empty. A text is read whole: one that is too long for the model is refused. So
    is a model that was trained to translate into several languages.
    """
    from glassformer.tasks import writing

    def summaries(bundle: Bundle, texts: Iterable[str], watch: Watch) -> Iterator[Passage]:
        return writing.summarize(
            bundle, texts, prefix=prefix, details=True, watch=watch, **asked.budget(), **asked.settings
        )

    answer(asked, summaries)

"""glassformer restore MODEL [TEXT...]: every damaged sentence as it was, in order."""

from __future__ import annotations

from glassformer.cli.writing import Asked, answer, writing_verb


@writing_verb
def restore(asked: Asked) -> None:
    """Mend sentences that were trimmed, gapped or shuffled; a line in is a line out.

    An empty line stays empty. `<gap>` stands where words are missing. MODEL is one trained with the
    job restore.
    """
    from glassformer.tasks import writing

    answer(
        asked,
        lambda bundle, texts, watch: writing.restore(
            bundle, texts, details=True, watch=watch, **asked.budget(), **asked.settings
        ),
    )

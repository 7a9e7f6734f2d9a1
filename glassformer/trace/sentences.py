"""What a translator reads one by one of a text: each piece is looked into alone, as `translate` reads it."""

from __future__ import annotations

from collections.abc import Mapping

from glassformer.api import JOB, Bundle
from glassformer.trace.outline import kind_of
from glassformer.verbs.writing.pieces import Place
from glassformer.verbs.writing.rewriting import translating


def sentences_of(bundle: Bundle, text: str, to: str | None = None) -> list[str]:
    """The pieces of a text, in order; the text itself where the model reads it whole.

    to: the language to write, where the model knows several.
    """
    if kind_of(bundle) != "translate" or not _cuts(bundle, to):
        return [text]
    (layout,) = translating(bundle, {}, to=to).layouts([text])
    return [part.text for part in layout if isinstance(part, Place)] or [text]


def _cuts(bundle: Bundle, to: str | None) -> bool:
    """Whether texts are for `translate`: those to be mended or summarised are read as they are."""
    job = bundle.files.get(JOB, {}).get("job")
    if job is not None or to is not None:
        return job in (None, "translate")
    tasks = bundle.config.get("task_specific_params")
    return not any(name.startswith("summarization") for name in (tasks if isinstance(tasks, Mapping) else ()))

"""What a translator reads one by one of a text: each piece is looked into alone, as `translate` reads it.

Pieces are told as they were given, those all in capitals in the letters that are read; where a picture is in
the place of a word, a letter stands for it when the model reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from glassformer.bundle import Bundle
from glassformer.interpret.outline import kind_of
from glassformer.tasks.reading import tokenizer_of
from glassformer.tasks.writing.capitals import Capitals
from glassformer.tasks.writing.pieces import Place
from glassformer.tasks.writing.rewriting import translating
from glassformer.tasks.writing.signs import Signs
from glassformer.tasks.writing.stand_ins import Stands, put_back


def sentences_of(bundle: Bundle, text: str, to: str | None = None) -> list[str]:
    """The pieces of a text, in order; the text itself where the model reads it whole.

    to: the language to write, where the model knows several.
    """
    if kind_of(bundle) != "translate" or not _cuts(bundle, to):
        return [text]
    (layout,) = translating(bundle, {}, to=to).layouts([text])
    return [put_back(part.text, part.stands) for part in layout if isinstance(part, Place)] or [text]


def read_as(bundle: Bundle, text: str, to: str | None = None) -> tuple[str, Stands]:
    """One of them as the model reads it, and the letters in it that stand in for pictures."""
    if kind_of(bundle) != "translate" or not _cuts(bundle, to):
        return text, ()
    tokenizer = tokenizer_of(bundle)
    text, signs = Capitals(tokenizer).read(text), Signs(tokenizer)
    return signs.read(text) if signs.carried(text) == [text] else (text, ())


def stands_told(bundle: Bundle, text: str, to: str | None = None) -> str | None:
    """What a person should know of the pictures in one of them; None: there is nothing."""
    _, stands = read_as(bundle, text, to)
    if not stands:
        return None
    each = ", ".join(f"{letter} for {sign}" for letter, sign in stands)
    return f"letters stand for the pictures while the model reads: {each}"


def _cuts(bundle: Bundle, to: str | None) -> bool:
    """Whether texts are for `translate`: those to be mended or summarised are read as they are."""
    job = bundle.job.name
    if job is not None or to is not None:
        return job in (None, "translate")
    tasks = bundle.config.get("task_specific_params")
    return not any(name.startswith("summarization") for name in (tasks if isinstance(tasks, Mapping) else ()))

"""The languages among which a text is told to be written."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.bundle import Bundle
from glassformer.tasks.writing.languages import tags_of


def tag_apart(bundle: Bundle, text: str) -> tuple[str, str | None]:
    """A text without the mark of a language that it begins with, as a run's samples do, and that language."""
    mark, ends, rest = text.partition("<<")
    tag = mark.removeprefix(">>")
    if ends and tag != mark and tag in tags_of(bundle):
        return rest.removeprefix(" "), tag
    return text, None


def another(tags: Sequence[str], language: str) -> str:
    """The first that is not this language, known by the first two letters of its code.

    >>> another(["en", "de", "fr"], "en"), another(["eng"], "en")
    ('de', 'eng')
    """
    return next((tag for tag in tags if not tag.startswith(language)), tags[0])

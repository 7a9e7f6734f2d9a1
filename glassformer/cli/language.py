"""--to: a language as a model spells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.bundle import Bundle


def spelt_by(bundle: Bundle, to: str) -> str:
    """The model's own spelling of a language; a sentence where it cannot be told this one."""
    from glassformer.tasks.writing.languages import spelt, tags_of
    from glassformer.tasks.writing.sources import language

    language(bundle, to)
    return spelt(tags_of(bundle), to) or to

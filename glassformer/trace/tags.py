"""The languages that a model can be told to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glassformer.api import JOB, Bundle
from glassformer.text import read_languages, written_languages


def tags_of(bundle: Bundle) -> list[str] | None:
    """The languages that a model can be told to write, as `translate(to=...)` takes them, if any."""
    told = bundle.files.get(JOB, {}).get("languages")
    if isinstance(told, Sequence) and told:  # the tokenizer may have marks for more than it was taught
        return [str(one) for one in told]
    tokenizer = bundle.tokenizer
    if tokenizer is None:
        return None
    found = [*read_languages(tokenizer), *written_languages(tokenizer)]
    tasks = bundle.config.get("task_specific_params")
    for name in tasks if isinstance(tasks, Mapping) else ():
        if name.startswith("translation_") and "_to_" in name:
            found.append(name.rpartition("_to_")[2])
    return list(dict.fromkeys(found)) or None


def tag_apart(bundle: Bundle, text: str) -> tuple[str, str | None]:
    """A text without the mark of a language that it begins with, as a run's samples do, and that language."""
    mark, ends, rest = text.partition("<<")
    tag = mark.removeprefix(">>")
    if ends and tag != mark and tag in (tags_of(bundle) or ()):
        return rest.removeprefix(" "), tag
    return text, None


def another(tags: Sequence[str], language: str) -> str:
    """The first that is not this language, known by the first two letters of its code.

    >>> another(["en", "de", "fr"], "en"), another(["eng"], "en")
    ('de', 'eng')
    """
    return next((tag for tag in tags if not tag.startswith(language)), tags[0])

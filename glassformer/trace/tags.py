"""The languages that a model can be told to write."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from glassformer.api import JOB, Bundle

_TAG = re.compile(r">>[^<>\s]{1,28}<<")  # a language as one token before the source
_CODE = re.compile(r"[a-z]{2,3}_[A-Za-z]{2,4}")  # or as the first token of the target


def tags_of(bundle: Bundle) -> list[str] | None:
    """The languages that a model can be told to write, as `translate(to=...)` takes them, if any."""
    told = bundle.files.get(JOB, {}).get("languages")
    if isinstance(told, Sequence) and told:  # the tokenizer may have marks for more than it was taught
        return [str(one) for one in told]
    tokenizer = bundle.tokenizer
    if tokenizer is None:
        return None
    spelt = tokenizer.tokens(range(tokenizer.vocab_size))
    found = [token[2:-2] for token in spelt if _TAG.fullmatch(token)]
    found += [spelt[n] for n in sorted(tokenizer.special_ids) if n < len(spelt) and _CODE.fullmatch(spelt[n])]
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

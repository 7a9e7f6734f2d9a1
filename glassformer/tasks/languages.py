"""The target languages of a translation model, and how it is told which one to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassformer.bundle import Bundle
from glassformer.errors import MissingValueError, UnknownNameError
from glassformer.tasks.base import require_tokenizer
from glassformer.tokenization import code_languages, tag_languages


@dataclass(frozen=True, kw_only=True)
class TargetLanguage:
    """How a model is told the language to write: a tag before the source, a prefix, or generation options."""

    tag: str | None = None
    prefix: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


NO_LANGUAGE = TargetLanguage()


def target_languages(bundle: Bundle) -> list[str]:
    """The languages that a model can be asked to write, as it spells them."""
    if bundle.job.languages:  # the tokenizer may have tags for more than it was trained on
        return list(bundle.job.languages)
    if bundle.tokenizer is None:
        return []
    found = [*tag_languages(bundle.tokenizer), *code_languages(bundle.tokenizer)]
    for name in _task_params(bundle):
        if name.startswith("translation_") and "_to_" in name:
            found.append(name.rpartition("_to_")[2])
    return list(dict.fromkeys(found))


def target_language(bundle: Bundle, to: str | None) -> TargetLanguage:
    """How this model is told to write the language `to`, which may be in capitals."""
    known = bundle.job.languages or ()
    if to is None:
        if known:
            hint = f"choose from {', '.join(known)}"
            raise MissingValueError(
                "to", f"because {bundle.display_name} writes several languages", hint=hint
            )
        return NO_LANGUAGE
    languages = target_languages(bundle)
    for spelling in (to, spell_language(languages, to)):
        if spelling is not None and (found := _by_spelling(bundle, spelling)) is not None:
            return found
    raise UnknownNameError("language", to, languages)


def _by_spelling(bundle: Bundle, to: str) -> TargetLanguage | None:
    tokenizer = require_tokenizer(bundle)
    if tokenizer.token_id(f">>{to}<<") is not None:
        return TargetLanguage(tag=f">>{to}<<")
    index = tokenizer.token_id(to)
    if index is not None and index in tokenizer.special_ids:
        return TargetLanguage(options={"forced_bos_token_id": index})
    prefix = task_prefix(bundle, lambda name: name.startswith("translation_") and name.endswith(f"_to_{to}"))
    return TargetLanguage(prefix=prefix) if prefix else None


def task_prefix(bundle: Bundle, matches: Callable[[str], bool]) -> str:
    """The prefix that a published config puts before the texts of a task."""
    for name, params in _task_params(bundle).items():
        if matches(name) and isinstance(params, Mapping) and isinstance(params.get("prefix"), str):
            return str(params["prefix"])
    return ""


def _task_params(bundle: Bundle) -> Mapping[str, Any]:
    params = bundle.config.get("task_specific_params")
    return params if isinstance(params, Mapping) else {}


def spell_language(languages: Sequence[str], to: str) -> str | None:
    """A language as the model spells it, ignoring case.

    >>> spell_language(["de", "ko-label", "fr_XX"], "KO-Label"), spell_language(["de"], "da")
    ('ko-label', None)
    """
    alike = [language for language in languages if language.casefold() == to.casefold()]
    return to if to in alike else next(iter(alike), None)

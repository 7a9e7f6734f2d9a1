"""The target languages of a translation model, and how it is told which one to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassformer.bundle import Bundle
from glassformer.errors import MissingValueError, UnknownNameError
from glassformer.tasks.base import require_tokenizer
from glassformer.tokenization import code_languages, tag_languages

# ISO codes of two and three letters, and names, one language per line
_LANGUAGES = """
ar ara: arabic العربية
cs ces cze: czech čeština
da dan: danish dansk
de deu ger: german deutsch allemand 독일어
el ell gre: greek ελληνικά
en eng: english englisch anglais 영어
es spa: spanish español espanol castellano spanisch espagnol 스페인어
fi fin: finnish suomi
fr fra fre: french français francais französisch 프랑스어 불어
he heb: hebrew עברית
hi hin: hindi हिन्दी
hu hun: hungarian magyar
id ind: indonesian bahasa
it ita: italian italiano italienisch italien 이탈리아어
ja jpn: japanese 日本語 japanisch japonais 일본어
ko kor: korean 한국어 한국말 koreanisch coréen
nl nld dut: dutch nederlands
no nob nor: norwegian norsk
pl pol: polish polski
pt por: portuguese português portugues
ro ron rum: romanian română
ru rus: russian русский russisch russe 러시아어
sv swe: swedish svenska
th tha: thai ไทย
tr tur: turkish türkçe
uk ukr: ukrainian українська
vi vie: vietnamese
zh zho chi cmn: chinese mandarin 中文 chinesisch chinois 중국어
"""


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
    named = language_by_name(languages, to)
    raise UnknownNameError("language", to, languages, hint=f"use '{named}'" if named else "")


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


def language_by_name(languages: Sequence[str], name: str) -> str | None:
    """The code, among these, of the language that people call `name`.

    >>> language_by_name(["ko-label", "ko"], "Korean"), language_by_name(["deu"], "Deutsch")
    ('ko', 'deu')
    """
    for line in _LANGUAGES.split("\n"):
        codes, _, names = line.partition(":")
        if name.strip().casefold() in names.split():
            found = [
                one for one in languages if one.casefold().replace("_", "-").split("-")[0] in codes.split()
            ]
            return min(found, key=len, default=None)
    return None

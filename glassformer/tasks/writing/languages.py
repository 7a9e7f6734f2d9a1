"""The languages that a model can be told to write, and what people call them.

Marks are taken in capitals and small letters alike. A name, as German, is none: who gives one is told the
mark that the model has for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glassformer.bundle import Bundle
from glassformer.tokenization import code_languages, tag_languages

# codes of two and three letters, and names, a language a line
_CALLED = """
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


def tags_of(bundle: Bundle) -> list[str]:
    """The languages that a model can be told to write, as it spells them."""
    told = bundle.job.languages
    if isinstance(told, Sequence) and told:  # the tokenizer may have marks for more than it was taught
        return [str(one) for one in told]
    tokenizer = bundle.tokenizer
    if tokenizer is None:
        return []
    found = [*tag_languages(tokenizer), *code_languages(tokenizer)]
    tasks = bundle.config.get("task_specific_params")
    for name in tasks if isinstance(tasks, Mapping) else ():
        if name.startswith("translation_") and "_to_" in name:
            found.append(name.rpartition("_to_")[2])
    return list(dict.fromkeys(found))


def spelt(tags: Sequence[str], to: str) -> str | None:
    """A language as it is spelt among these: by itself, else by the same letters, capital or small.

    >>> spelt(["de", "ko", "ko-label", "fr_XX"], "KO-Label"), spelt(["fr_XX"], "FR_xx"), spelt(["de"], "da")
    ('ko-label', 'fr_XX', None)
    """
    alike = [tag for tag in tags if tag.casefold() == to.casefold()]
    return to if to in alike else next(iter(alike), None)


def called(tags: Sequence[str], name: str) -> str | None:
    """Which of these is of the language that people call so.

    >>> called(["ko-label", "ko"], "Korean"), called(["deu", "fra"], "Deutsch"), called(["de"], "Klingon")
    ('ko', 'deu', None)
    """
    for line in _CALLED.split("\n"):
        codes, _, names = line.partition(":")
        if name.strip().casefold() in names.split():
            # of de, de-AT and de_DE the shortest says least beside the language
            found = [tag for tag in tags if tag.casefold().replace("_", "-").split("-")[0] in codes.split()]
            return min(found, key=len, default=None)
    return None

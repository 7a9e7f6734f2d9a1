"""A picture in the place of a word, as in "I like 🍎 and 🍌": a letter stands in for it while that is read.

Translators copy a lone capital to where the word would stand, with the article or particle that goes with it.
What tells such a picture from one that only adorns a sentence are the words around it: none that is named
may follow, and the one before cannot do without one. They are of English, German, French and Korean, and
where a word of one is another of the next, or the sentence may end with it, the picture adorns.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from glassformer.tasks.writing.goes_on import PARTICLE

Stands = tuple[tuple[str, str], ...]  # letters, and what each stands in for
LETTERS = "XQWVGFBKPZY"  # those that are copied most surely first: a French Y is a word, and a J begins one
# Cannot end a sentence in any of the languages: articles, possessives, what joins two things
_UNENDING = frozenset(
    """the a an my your our their every and or mein dein kein unser zum zur beim vom ins und oder
    le la les des mon mes tes ses notre votre nos vos cet cette ces au de et""".split()
)
# Those and others that may, as "What for?" or "Ich will einen": they want a word where the sentence goes on
_WANTING = _UNENDING | frozenset(
    """his with without for of from into behind der die den dem ein eine einen einem einer meine meinen
    meinem meiner deine deinen deinem deiner seine seinen seinem seiner unsere unseren ihre ihren ihrem keine
    keinen dieser diese dieses diesen diesem mit ohne für von
    un une du ma ta sa leur leurs ce aux avec sans pour ou""".split()
)
# So do verbs that take an object, right behind who does it: "I love", and no "with love"
_ACTING = re.compile(
    r"""\b(?:(?:I|you|we|they|he|she|to|would|don't|doesn't|didn't|really|also|just|ich|du|er|sie|wir|ihr|man
    |je|tu|il|elle|on|nous|vous|ils|elles)\s+|j')(?:likes?|loves?|eats?|ate|drinks?|drank|wants?|needs?|buys?
    |bought|have|has|had|see|saw|wear|hate|mag|magst|möchte|möchtest|esse|isst|trinke|trinkst|trinkt|liebe|liebt
    |habe|hast|hat|kaufe|kaufte|sehe|sah|brauche|braucht|aimes?|adore|manges?|bois|veux|veut|voudrais|achète
    |vois)\s+$""",
    re.IGNORECASE | re.VERBOSE,
)
# Its object stands before it: "All I need", "if you like"
_TURNED = re.compile(
    r"\b(all|what|that|who|which|how|one|everything|if|as|when|alles|was|wie|wenn|que|comme|si|tout)\b|qu'",
    re.IGNORECASE,
)
# Words of two languages, and one of the words around that tells which it is
_ENGLISH = re.compile(r"\b(I|you|he|she|we|they|it|is|are|me|for|with|and|or|to|of|the)\b", re.IGNORECASE)
_GERMAN = re.compile(r"\b(ich|du|er|es|wir|ihr|und|ist|sind|nicht|wo|wer|das|hat|habe|mag)\b", re.IGNORECASE)
_FRENCH = re.compile(r"\b(je|tu|il|elle|on|nous|vous|le|la|les|de|et|est)\b|\b[cjld]'", re.IGNORECASE)
_TOLD_APART = {"an": _ENGLISH, "die": _GERMAN, "du": _FRENCH}
# Ends nothing but in these: "il y en a", "bague en or", "oh la la"
_AT_AN_END = re.compile(r"\b(?:(?:y|en|il|elle|qui|ça) a|en or|la la)\s+$", re.IGNORECASE)
_LEFT_OUT = re.compile(r"\b(?:[ldjmtsn]|qu)'$", re.IGNORECASE)  # the last letter of a French word
# What goes on with another part of the sentence
_GOING_ON = frozenset(
    """and or but is are was were has had can will would for with without in on at to from of by near behind
    under into every all tonight today tomorrow yesterday now please again too because when if than
    und oder aber ist sind war waren hat kann wird für mit ohne in im auf an am zu zum zur von vom bei aus
    nach hinter jeden heute morgen gestern jetzt bitte wieder auch weil wenn als nicht gekauft gegessen
    getrunken gesehen verloren
    et ou mais est sont était a peut pour avec sans dans sur sous à au aux de du chez derrière tous chaque
    aujourd'hui demain hier maintenant parce quand si que""".split()
)
_BEING = frozenset("is are was were ist sind war waren est sont était".split())
_CLOSED = re.compile(r"\s*([.,;:!?…。，！？)]|$)")
_SENTENCE = re.compile(r"(?<=[.!?…。！？])\s+")
_STOPPED = re.compile(r"(^|[.!?…。！？])\s*$")


def stands_in(before: str, after: str) -> bool:
    """Whether a picture between these is in the place of a word.

    >>> stands_in("I like ", " and"), stands_in("Where is my ", "?"), stands_in("나는 ", "를 좋아해.")
    (True, True, True)
    >>> stands_in("I like it ", "."), stands_in("my ", " dog is old"), stands_in("사과", "를 먹었다")
    (False, False, False)
    """
    if PARTICLE.match(after):
        return not before or before[-1].isspace()
    follows = _first(after)
    if _STOPPED.search(before):
        return follows in _BEING
    sentence = _SENTENCE.split(before)[-1].replace("’", "'")
    if _CLOSED.match(after):
        return _wants(sentence, _UNENDING) and _AT_AN_END.search(sentence) is None
    return follows in _GOING_ON and (_wants(sentence, _WANTING) or _acts(sentence))


def _wants(sentence: str, words: frozenset[str]) -> bool:
    """Whether the last word is of these; French leaves out its last letter."""
    if _LEFT_OUT.search(sentence):
        return True
    word = sentence.split()[-1].lower()
    told = _TOLD_APART.get(word)
    return sentence[-1].isspace() and word in words and (told is None or told.search(sentence) is not None)


def _acts(sentence: str) -> bool:
    return _ACTING.search(sentence) is not None and _TURNED.search(sentence) is None


def _first(after: str) -> str:
    word = re.match(r"\s+([^\s.,;:!?…]+)", after)
    return word.group(1).replace("’", "'") if word else ""


def free_letters(words: str, known: Callable[[str], bool]) -> list[str]:
    """The letters that may stand in for pictures between these words, for none of these is one.

    known: whether a model can read a letter.
    """
    return [letter for letter in LETTERS if not _alone(letter).search(words) and known(letter)]


def lettered(parts: list[str], known: Callable[[str], bool]) -> tuple[str, Stands]:
    """Texts and pictures in turns as one text, with a letter for each picture while there are any.

    >>> lettered(["I like ", "🍎", " and ", "🍌", "."], lambda letter: True)
    ('I like X and Q.', (('X', '🍎'), ('Q', '🍌')))
    """
    stands = tuple(zip(free_letters(" ".join(parts[::2]), known), parts[1::2], strict=False))
    shown = [letter for letter, _ in stands] + parts[1::2][len(stands) :]
    text = parts[0] + "".join(sign + text for sign, text in zip(shown, parts[2::2], strict=True))
    return text, stands


def _alone(letter: str) -> re.Pattern[str]:
    """A letter that is of no word; a Korean particle may follow it."""
    return re.compile(rf"(?<![A-Za-z0-9]){letter}(?![A-Za-z0-9])")


def put_back(text: str, stands: Stands) -> str:
    """The pictures for the letters that stand in for them; one whose letter is lost comes behind.

    >>> put_back("나는 X를 좋아해.", (("X", "🍎"), ("Q", "🍌")))
    '나는 🍎를 좋아해. 🍌'
    """
    lost = []
    for letter, sign in stands:
        around = _alone(letter).split(text)
        text = sign.join(around)
        lost += [sign] if len(around) == 1 else []
    return " ".join([text, *lost])

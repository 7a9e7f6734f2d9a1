"""A picture in the place of a word, as in "I like 🍎 and 🍌": a letter stands in for it while that is read.

Translators copy a lone capital to where the word would stand, with the article or particle that goes with it.
What tells such a picture from one that only adorns a sentence are the words around it: none that is named
may follow, and the one before cannot do without one. They are of English, German, French and Korean.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Stands = tuple[tuple[str, str], ...]  # letters, and what each stands in for
LETTERS = "XQWVGFBKPZY"  # those that are copied most surely first: a French Y is a word, and a J begins one
# Articles, possessives, prepositions, conjunctions, and verbs that take an object
_WANTING = frozenset(
    """the a an my your his our their every with without for of from into behind and or like likes love loves
    eat eats ate drink drinks drank want wants need needs buy buys bought have has had see saw wear hate
    der die das den dem des ein eine einen einem einer mein meine meinen meinem meiner dein deine deinen
    deinem deiner sein seine seinen seinem seiner unser unsere unseren ihre ihren ihrem kein keine keinen
    dieser diese dieses diesen diesem mit ohne für von zum zur beim und oder mag magst möchte möchtest esse
    isst trinke trinkst trinkt liebe liebt habe hast hat kaufe kaufte sehe sah brauche braucht
    le la les un une des du mon ma mes ton ta tes son sa ses notre nos votre vos leur leurs ce cet cette ces
    au aux avec sans pour de et ou aime aimes adore mange manges bois veux veut voudrais achète
    vois""".split()
)
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
_PARTICLE = re.compile(
    r"(은|는|이|가|을|를|의|에|도|와|과|로|으로|에서|하고|랑|이랑|만|까지|부터)(?![가-힣])"
)
_CLOSED = re.compile(r"\s*([.,;:!?…。，！？)]|$)")
_STOPPED = re.compile(r"(^|[.!?…。！？])\s*$")


def stands_in(before: str, after: str) -> bool:
    """Whether a picture between these is in the place of a word.

    >>> stands_in("I like ", " and"), stands_in("Where is my ", "?"), stands_in("나는 ", "를 좋아해.")
    (True, True, True)
    >>> stands_in("Thanks ", " for it."), stands_in("my ", " dog is old"), stands_in("사과", "를 먹었다")
    (False, False, False)
    """
    if _PARTICLE.match(after):
        return not before or before[-1].isspace()
    follows = _first(after)
    if _STOPPED.search(before):
        return follows in _BEING
    return _wants(before) and (_CLOSED.match(after) is not None or follows in _GOING_ON)


def _wants(before: str) -> bool:
    """Whether the last word cannot do without one behind it; French leaves out its last letter."""
    if before.endswith(("'", "’")):
        return True
    word = before.split()[-1].replace("’", "'").rpartition("'")[2]
    return before[-1].isspace() and word.lower() in _WANTING


def _first(after: str) -> str:
    word = re.match(r"\s+([^\s.,;:!?…]+)", after)
    return word.group(1).replace("’", "'") if word else ""


def lettered(parts: list[str], known: Callable[[str], bool]) -> tuple[str, Stands]:
    """Texts and pictures in turns as one text, with a letter for each picture that no word of it is.

    known: whether a model can read a letter.

    >>> lettered(["I like ", "🍎", " and ", "🍌", "."], lambda letter: True)
    ('I like X and Q.', (('X', '🍎'), ('Q', '🍌')))
    """
    words = " ".join(parts[::2])
    free = [letter for letter in LETTERS if not _alone(letter).search(words) and known(letter)]
    stands = tuple(zip(free, parts[1::2], strict=False))
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

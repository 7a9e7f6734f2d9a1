"""Rule-based sentence splitting for English, German, French and Korean.

Joining the sentences and the spaces between them gives the text. A period that may belong to an
abbreviation, an initial or a number does not end a sentence unless the next word clearly starts one: two
sentences translated together do less harm than one that is cut in two.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_STOPS = re.compile(r"[.!?…。！？｡]+")
_WIDE = "。！？｡"  # end a sentence with no space after them
_CLOSERS = "\"'”’“»›)]}」』）】"  # the English opening quote closes a German one
# A text without a match is a single sentence. Matches: a stop and a space, or a wide stop and more text.
_CONTINUES = re.compile(rf"{_STOPS.pattern[:-1]}[{re.escape(_CLOSERS)}]*\s|[{_WIDE}].", re.DOTALL)
_OPENERS = "\"'“„‘«‹([{「『（【¿¡—–-"
_NARROW = "\u00a0\u202f\u2009 "  # may precede a French closing quote

# Abbreviations that never end a sentence.
_ALWAYS = frozenset(
    """mr mrs ms messrs dr drs prof rev hon gen col maj capt cmdr lt sgt pres gov sen rep st mt ft vs cf viz
    al hr fr frl dipl ing bzw ca evtl ggf inkl exkl zzgl vgl bspw sog geb gest hrsg mio mrd bes gegr
    mm mme mmes mlle mlles me mgr pr ste env""".split()
)
# Abbreviations that end a sentence unless a number follows.
_BEFORE_NUMBERS = frozenset(
    """no nos nr vol vols p pp fig figs eq eqs ch chap sec art abs kap bd bde ziff par ed eds tab anm s n°
    jan feb mar apr jun jul aug sep sept oct okt nov dec dez janv févr avr juil déc""".split()
)
# Capitalized words that start a sentence, whatever precedes them.
SENTENCE_STARTERS = frozenset(
    """The A An This That These Those There Then He She It We They I You But And So In On At If When While
    However After Before His Her Its Our Their My What Who Why How
    Der Die Das Ein Eine Dann Er Sie Es Wir Ich Ihr Aber Und Doch Im Am Wenn Als Nach Vor Diese Dieser Dieses
    Le La Les Un Une Des Il Elle Ils Elles Nous Vous Je On Mais Et Ce Cette Ces Puis Dans Si Quand Après
    C'est""".split()
)
_MIDDLE = re.compile(r"[;:,，、；：،]\s*|\s[—–-]\s|\s+")  # where a sentence that is too long may be split
# Thai and Lao, Burmese, Khmer; East Asian scripts are recognized by their width
_UNSPACED_RANGES = (("\u0e00", "\u0eff"), ("\u1000", "\u109f"), ("\u1780", "\u17ff"))
_JOINER = "\u200d"
_EMOJI_SELECTORS = frozenset(_JOINER + "\ufe0e\ufe0f\u20e3")
_CLAUSES = re.compile(r"[;:,，、；：،]\s+|[，、；：]|\s[—–-]\s")


def split_sentences(text: str) -> list[tuple[str, str]]:
    """Split a text into sentences; return each with the space that follows it.

    >>> split_sentences("Dr. Kim left at 5 p.m. that day. It rained!  비가 왔다.")
    [('Dr. Kim left at 5 p.m. that day.', ' '), ('It rained!', '  '), ('비가 왔다.', '')]
    """
    sentences: list[tuple[str, str]] = []
    start = 0
    for end, after in _breaks(text):
        sentences.append((text[start:end], text[end:after]))
        start = after
    if start < len(text):
        rest = text[start:]
        last = rest.rstrip()
        sentences.append((last, rest[len(last) :]))
    return sentences


def has_several_sentences(text: str) -> bool:
    """Whether a text has more than one sentence; fast if its only full stop is at the end.

    >>> has_several_sentences("It rained! We left."), has_several_sentences("Dr. Kim left.")
    (True, False)
    """
    if _CONTINUES.search(text) is None:
        return False
    return any(after < len(text) for _, after in _breaks(text))


def _breaks(text: str) -> Iterator[tuple[int, int]]:
    """Yield the end of each sentence and the start of the next; a last one without a stop is omitted."""
    start = 0
    for stop in _STOPS.finditer(text):
        if stop.start() < start:
            continue
        end = _skip_closers(text, stop.end())
        after = end
        while after < len(text) and text[after].isspace():
            after += 1
        if after < len(text) and not _ends(text, start, stop, end, after):
            continue
        yield end, after
        start = after


def split_in_half(text: str) -> tuple[str, str, str] | None:
    """Split a text at the clause, else the word, nearest its middle; return left, space, right.

    None if the text is a single word.

    >>> split_in_half("when the sun rose, they sailed on"), split_in_half("unbroken")
    (('when the sun rose,', ' ', 'they sailed on'), None)
    """
    for pattern in (_CLAUSES, _MIDDLE):
        middle, best = len(text) // 2, None
        for match in pattern.finditer(text):
            if match.start() == 0 or match.end() == len(text):
                continue
            if best is None or abs(match.end() - middle) < abs(best.end() - middle):
                best = match
        if best is not None and (pattern is _MIDDLE or len(text) // 8 < best.end() < len(text) * 7 // 8):
            left = text[: best.end()].rstrip()
            return left, text[len(left) : best.end()], text[best.end() :]
    return None


def split_word(text: str) -> tuple[str, str] | None:
    """Split a text without spaces near its middle, between characters; None if it is one character.

    >>> split_word("unbroken"), split_word("é")
    (('unbr', 'oken'), None)
    """
    middle = len(text) // 2
    between = (at for at in range(1, len(text)) if not _same_character(text[at - 1], text[at]))
    at = min(between, key=lambda at: abs(at - middle), default=None)
    return None if at is None else (text[:at], text[at:])


def _same_character(before: str, letter: str) -> bool:
    """Whether a code point belongs to the character before it: a combining mark, jamo or emoji modifier."""
    return (
        before == _JOINER
        or letter in _EMOJI_SELECTORS
        or "\U0001f3fb" <= letter <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= letter <= "\U000e007f"  # flag tags
        or unicodedata.category(letter).startswith("M")
        or "\u1160" <= letter <= "\u11ff"
    )


def _skip_closers(text: str, at: int) -> int:
    """Return the position after the closing quotes and brackets that follow a stop."""
    while at < len(text):
        if text[at] in _CLOSERS:
            at += 1
        elif text[at] in _NARROW and text[at + 1 : at + 2] in ("»", "›"):
            at += 2
        else:
            break
    return at


def _ends(text: str, start: int, stop: re.Match[str], end: int, after: int) -> bool:
    """Whether the sentence that starts at `start` ends with `stop`; the next text starts at `after`."""
    if stop.group()[-1] in _WIDE:
        return True
    if after == end:  # no space: within a number, a name, an address
        return False
    following = text[after : after + 40]
    first = following.lstrip(_OPENERS + _NARROW)[:1]
    if first.islower():
        return False
    if stop.group() != ".":
        return True
    return _full_stop_ends(text, start, stop.start(), following)


def _full_stop_ends(text: str, start: int, at: int, following: str) -> bool:
    word = _word_before(text, start, at)
    next_word = re.split(r"[\s,;:.!?]", following, maxsplit=1)[0]
    starts = next_word in SENTENCE_STARTERS
    plain = word.lower()
    if plain in _ALWAYS:
        return False
    if plain in _BEFORE_NUMBERS or plain.endswith("str"):
        return not following[:1].isdigit()
    if word == "M":  # Monsieur, and an initial
        return False
    if len(word) == 1 and (word.isupper() or word.islower()):  # not in a script without case
        return starts
    if "." in word and all(len(part) <= 2 for part in word.split(".")):  # U.S., e.g., z.B., p.m.
        return starts
    if word.isdigit() and len(word) <= 2:  # am 3. Oktober; 1. Introduction
        return starts and at - len(word) > start
    return True


def _word_before(text: str, start: int, at: int) -> str:
    """Return the last word before `at`, without opening punctuation, at most 24 characters."""
    first = at
    while first > start and at - first < 24 and not text[first - 1].isspace():
        first -= 1
    return text[first:at].lstrip(_OPENERS)


def is_unspaced(letter: str) -> bool:
    """Whether a character is of a script without spaces between words; Korean has spaces.

    >>> [is_unspaced(letter) for letter in "a.한漢。ไ"]
    [False, False, False, True, True, True]
    """
    if any(first <= letter <= last for first, last in _UNSPACED_RANGES):
        return True
    return unicodedata.east_asian_width(letter) in "WF" and "HANGUL" not in unicodedata.name(letter, "")

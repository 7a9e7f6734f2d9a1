"""Whether a sentence goes on behind a sign such as an emoji, which often stands in the place of a stop.

Two sentences read as one are read badly, and one torn in two is too. So a sign ends a sentence where a stop
stands before it, where what follows has a capital that it has nowhere but at a sentence's beginning, and in
Korean, which has no capitals, where the word before closes a sentence.
"""

from __future__ import annotations

import re

from glassformer.tokenization.sentence_split import SENTENCE_STARTERS

_ENDED = re.compile(r"[.!?…。！？｡][\"'”’“»›)\]}」』）】]*$")
_CLOSES = tuple(".,;:!?…。、，！？｡)]}»›”’」』）】")
# Behind a sign more words begin a sentence than behind an abbreviation: what asks, greets or wishes.
_BEGINNING = SENTENCE_STARTERS | frozenset(
    """Here Your Where Which Is Are Was Were Do Does Did Don't Can Could Would Should Have Has Let Let's
    Please Thanks Thank Hello Hi Yes No Not Now Just Come Go Good Welcome Den Dem Einen Du Man Oder Auf Bis
    Wer Wie Wo Wann Warum Hast Hat Habe Haben Ist Sind Bist Kann Kannst Können Bitte Danke Ja Nein Heute
    Mein Meine Dein Deine Kein Keine Alles Viel Viele Guten Gute Tu Ça À Au Avec Pour Comment Où Pourquoi Qui
    Que Quel Quelle Merci Bonjour Bonsoir Salut Oui Non Bon Bonne Mon Ma Mes Ton Ta Tes Notre Votre
    Aujourd'hui""".split()
)
# See is a lake in German, and Will a man; French leaves out a letter before the next word
_BEGINS = re.compile(r"See (you|ya)\b|Will (you|we|they|it)\b|(C|J|L|D|N|Qu)['’]\w")
_KOREAN = re.compile(
    r"(니다|니까|요|죠|는다|한다|했어|고마워|미안해|사랑해|축하해|좋아|안녕|그래)[~ㅋㅎㅠㅜ]*$"
)
_KOREAN_NOUNS = re.compile(r"(필|중|주|수|소|동|가)요$")
PARTICLE = re.compile(
    r"(은|는|이|가|을|를|의|에|도|와|과|로|으로|에서|에게|하고|랑|이랑|만|까지|부터)(?![가-힣])"
)
_HANGUL = re.compile("[가-힣]")


def has_words(text: str) -> bool:
    """Whether there is anything to read."""
    return any(map(str.isalnum, text))


def goes_on(before: str, after: str) -> bool:
    """Whether what stands before and after a sign is of one sentence.

    >>> goes_on("That is a ", " Tesla."), goes_on("I know ", ", you said."), goes_on("오늘 ", " 공원에 갔다.")
    (True, True, True)
    >>> goes_on("Thanks ", " See you."), goes_on("Bye! ", " Anna left."), goes_on("좋아요 ", " 저도 갑니다.")
    (False, False, False)
    """
    head, rest = before.rstrip(), after.lstrip()
    if not rest or not has_words(head) or _ENDED.search(head[-24:]):
        return False
    if rest.startswith(_CLOSES):
        return True
    return has_words(rest) and not _begins(rest) and not _closed(head[-24:], rest)


def joined(before: str, after: str) -> str:
    """What stands before and after a sign without it, a space between unless a stop or particle follows.

    >>> joined("Thanks ", " for it"), joined("Good ", ", thanks"), joined("사과", "를 먹었다")
    ('Thanks for it', 'Good, thanks', '사과를 먹었다')
    """
    head, rest = before.rstrip(), after.lstrip()
    glued = head == before and rest == after and _HANGUL.fullmatch(head[-1:]) and PARTICLE.match(rest)
    return head + ("" if glued or rest.startswith(_CLOSES) else " ") + rest


def _begins(rest: str) -> bool:
    word = re.split(r"[\s,;:.!?…]", rest[:24], maxsplit=1)[0].replace("’", "'")
    return word in _BEGINNING or word.partition("'")[0] in _BEGINNING or _BEGINS.match(rest) is not None


def _closed(head: str, rest: str) -> bool:
    """Whether a Korean sentence ends with its verb, and another begins."""
    if not _HANGUL.match(rest) or _KOREAN_NOUNS.search(head):
        return False
    past = len(head) > 1 and head[-1] in "다어네지" and _HANGUL.match(head[-2]) is not None
    return _KOREAN.search(head) is not None or (past and (ord(head[-2]) - 0xAC00) % 28 == 20)  # closed by ㅆ

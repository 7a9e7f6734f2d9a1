"""Pictures that a vocabulary has no piece for, as most emoji: a translation keeps them as they are.

A model that is given one as loose bytes, or as something unknown, makes words of it. One between sentences
stays in its place; one within a sentence comes behind it, for nobody knows where it would stand there.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from glassformer.text import Tokenizer
from glassformer.text.documents import sentences

_AFTER = frozenset("\u200d\ufe0e\ufe0f\u20e3")  # belong to the sign before them: a joiner, ways to draw it
_NEAR = 500  # letters around a sign in which the end of its sentence is looked for
_ENDS = tuple(".!?…。！？｡")


def carried_by(tokenizer: Tokenizer) -> Callable[[str], list[str]]:
    """Cuts a line into texts and such pictures in turns, the first and last a text."""
    known: dict[str, bool] = {}

    def strange(sign: str) -> bool:
        if sign not in known:
            found = tokenizer.encode(sign, special=False).ids
            known[sign] = tokenizer.spelling_ids.isdisjoint(found)
        return not known[sign]

    def cut(line: str) -> list[str]:
        if line.isascii():
            return [line]
        parts = runs(line)
        found = parts[:1]
        for sign, text in zip(parts[1::2], parts[2::2], strict=True):
            if any(map(strange, sign)):
                before = found.pop() if len(found) > 1 and not found[-1].strip() else None
                if before is None:
                    found += [sign, text]
                else:  # a space between two of them
                    found[-1] += before + sign
                    found.append(text)
            else:
                found[-1] += sign + text
        return placed(found)

    return cut


def runs(line: str) -> list[str]:
    """Texts and runs of signs in turns, the first and last a text; put end to end they are the line.

    >>> runs("hi 👩‍🚀👍🏽!"), runs("❤️"), runs("plain")
    (['hi ', '👩‍🚀👍🏽', '!'], ['', '❤️', ''], ['plain'])
    """
    found = [""]
    for letter in line:
        sign = unicodedata.category(letter) == "So" or (len(found) % 2 == 0 and _belongs(letter))
        if sign != (len(found) % 2 == 0):
            found.append("")
        found[-1] += letter
    return found if len(found) % 2 else [*found, ""]


def _belongs(letter: str) -> bool:
    """Whether this belongs to the sign before it: how it is drawn, its colour, its flag."""
    return (
        letter in _AFTER or "\U0001f3fb" <= letter <= "\U0001f3ff" or "\U000e0020" <= letter <= "\U000e007f"
    )


def placed(parts: list[str]) -> list[str]:
    """Texts and signs in turns with those within a sentence put behind it.

    >>> placed(["Thanks ", "🙏", " for it. Bye ", "👋", ""])
    ['Thanks for it.', ' 🙏', ' Bye ', '👋', '']
    """
    turned = parts[-1:]  # the line from its end on, last text first
    for sign, before in zip(parts[-2::-2], parts[-3::-2], strict=True):
        after = turned.pop()
        if _within(before, after):
            head = before.rstrip()
            text = head + (" " if after.lstrip()[0].isalnum() else "") + after.lstrip()
            begin = max(0, len(head) - _NEAR)
            near = sentences(text[begin : len(head) + _NEAR])
            end = begin
            for sentence, gap in near:
                if end + len(sentence) > len(head):
                    end += len(sentence)
                    break
                end += len(sentence) + len(gap)
            turned += [text[end:], f" {sign}", text[:end]]
        else:
            turned += [after, sign, before]
    return turned[::-1]


def _within(before: str, after: str) -> bool:
    """Whether a sentence goes on behind a sign: with a small letter, or with a stop or comma right there."""
    first = after.lstrip()[:1]
    if not before.strip() or not first or before.rstrip().endswith(_ENDS):
        return False
    return first.islower() or (first == after[0] and not first.isalnum())

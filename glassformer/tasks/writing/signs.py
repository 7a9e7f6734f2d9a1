"""Pictures that a vocabulary has no piece for, as most emoji: a translation keeps them as they are.

A model that is given one as loose bytes, or as something unknown, makes words of it. One between sentences
stays in its place, and so does one in the place of a word (`stand_ins`); another within a sentence comes
behind it, for nobody knows where it would stand there.
"""

from __future__ import annotations

import unicodedata

from glassformer.tasks.writing.goes_on import goes_on, has_words, joined
from glassformer.tasks.writing.stand_ins import Stands, free_letters, lettered, stands_in
from glassformer.tokenization import Tokenizer
from glassformer.tokenization.sentence_split import is_emoji_modifier, split_sentences

_DRAWN = "\ufe0f"  # what stands before it is drawn as a picture
# Pictures, and no units, currencies or marks of trade, which are read: watches and players, shapes, weather
# and dingbats, stars, and all that came later
_PICTURES = (
    ("\u231a", "\u231b"),
    ("\u23cf", "\u23cf"),
    ("\u23e9", "\u23fa"),
    ("\u25a0", "\u27bf"),
    ("\u2b00", "\u2bff"),
    ("\U0001f000", "\U0001faff"),
)
_NEAR = 500  # letters around a sign in which the end of its sentence is looked for
_BRACKETS = frozenset(("()", "[]", "{}", "（）", '""', "“”", "„“", "«»"))


class Signs:
    """What becomes of such pictures in lines for a model with this tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, bool] = {}

    def _knows(self, sign: str) -> bool:
        if sign not in self._known:
            found = self._tokenizer.encode(sign, special=False).ids
            self._known[sign] = self._tokenizer.fallback_ids.isdisjoint(found)
        return self._known[sign]

    def _strange(self, line: str) -> list[str]:
        """Texts and runs of pictures that the vocabulary has no piece for in turns."""
        parts = runs(line)
        found = parts[:1]
        for sign, text in zip(parts[1::2], parts[2::2], strict=True):
            if not all(map(self._knows, sign)):
                before = found.pop() if len(found) > 1 and not found[-1].strip() else None
                if before is None:
                    found += [sign, text]
                else:  # a space between two of them
                    found[-1] += before + sign
                    found.append(text)
            else:
                found[-1] += sign + text
        return found

    def carried(self, line: str) -> list[str]:
        """Cuts a line into texts and pictures in turns, the first and last a text.

        A picture that stands in the place of a word stays in its text, while there are letters for them.
        """
        if line.isascii():
            return [line]
        parts = self._strange(line)
        if not any(map(str.isalpha, line)):
            return parts
        found, left = parts[:1], len(free_letters(" ".join(parts[::2]), self._knows))
        for sign, text in zip(parts[1::2], parts[2::2], strict=True):
            if left and stands_in(found[-1], text):
                found[-1] += sign + text
                left -= 1
            else:
                found += [sign, text]
        return placed(found)

    def read(self, text: str) -> tuple[str, Stands]:
        """A text as it is read: with letters for the pictures in the place of words."""
        return (text, ()) if text.isascii() else lettered(self._strange(text), self._knows)


def runs(line: str) -> list[str]:
    """Texts and runs of signs in turns, the first and last a text; put end to end they are the line.

    >>> runs("hi 👩‍🚀👍🏽!"), runs("❤️"), runs("plain")
    (['hi ', '👩‍🚀👍🏽', '!'], ['', '❤️', ''], ['plain'])
    """
    found = [""]
    for letter, following in zip(line, (line + " ")[1:], strict=True):
        sign = (
            _picture(letter)
            or (following == _DRAWN and not letter.isspace())
            or (len(found) % 2 == 0 and is_emoji_modifier(letter))
        )
        if sign != (len(found) % 2 == 0):
            found.append("")
        found[-1] += letter
    return found if len(found) % 2 else [*found, ""]


def _picture(letter: str) -> bool:
    return unicodedata.category(letter) == "So" and any(a <= letter <= z for a, z in _PICTURES)


def placed(parts: list[str]) -> list[str]:
    """Texts and signs in turns with those within a sentence put behind it.

    >>> placed(["Thanks ", "🙏", " for it. Bye ", "👋", ""])
    ['Thanks for it.', ' 🙏', ' Bye ', '👋', '']
    """
    bullet = None if has_words(parts[0]) or len(parts) == 1 else parts[1]  # begins each of several in a line
    turned = parts[-1:]  # the line from its end on, last text first
    for sign, before in zip(parts[-2::-2], parts[-3::-2], strict=True):
        after = turned.pop()
        if before[-1:] + after[:1] in _BRACKETS:
            before, sign, after = before[:-1], before[-1] + sign + after[0], after[1:]
        if sign != bullet and goes_on(before, after):
            text = joined(before, after)
            end = _end(text, len(before.rstrip()))
            turned += [text[end:], f" {sign}", text[:end]]
        else:
            turned += [after, sign, before]
    return turned[::-1]


def _end(text: str, at: int) -> int:
    """Where the sentence ends in which this place is; of a sentence without an end a word near by."""
    begin, last = max(0, at - _NEAR), min(at + _NEAR, len(text))
    end = begin
    for sentence, gap in split_sentences(text[begin:last]):
        end += len(sentence)
        if end > at:
            break
        end += len(gap)
    space = text.rfind(" ", at + 1, end) if end == last < len(text) else -1
    return end if space == -1 else space

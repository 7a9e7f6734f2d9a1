"""Text all in capitals, read in the letters that a model has learnt and answered in capitals.

A vocabulary that was learnt from ordinary text cuts "WHERE IS THE STATION?" into scraps of letters, of which
a model makes nothing. The same text in small letters it reads like any other. Each word is spelt in the way
of which the vocabulary has the fewest pieces: small, with a capital (many German nouns), or as it is ("DVD").
"""

from __future__ import annotations

import re

from glassformer.tokenization import Tokenizer

FEWER = 0.75  # of the pieces that words have in capitals: at most so many must they have when read otherwise
_WORD = re.compile(r"[^\W\d_]+")
_BEGIN = re.compile(r"(?:^|[.!?…][\"'”’»)\]]*\s)[\W_]{0,8}([^\W\d_])")  # bounded: signs may be many


class Capitals:
    """How lines are read by a model with this tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def read(self, line: str) -> str:
        """A line all in capitals as the model has learnt to read it; any other as it is."""
        if not shouted(line):
            return line
        words = _WORD.findall(line)
        ways = {word: self._way(word) for word in set(words)}
        changed = [word for word in words if ways[word] != word]
        small = " ".join(ways[word] for word in changed)
        if not changed or self._pieces(small) > FEWER * self._pieces(" ".join(changed)):
            return line
        spelt = _WORD.sub(lambda word: ways[word[0]], line)
        return _BEGIN.sub(lambda begin: begin[0][:-1] + begin[0][-1].upper(), spelt)

    def _way(self, word: str) -> str:
        """How a word is spelt; of ways with as many pieces the one in small letters."""
        if word == "I":  # an English word whose capital is its own
            return word
        return min((word.lower(), word[0] + word[1:].lower(), word), key=self._pieces)

    def _pieces(self, text: str) -> int:
        return len(self._tokenizer.encode(text, special=False).ids)


def shouted(text: str) -> bool:
    """Whether a text is of several words, and every letter of them a capital.

    >>> shouted("NO SMOKING!"), shouted("STRAßE 9, KÖLN"), shouted("OK"), shouted("I am"), shouted("나 NASA")
    (True, True, False, False, False)
    """
    capitals = all(letter.isupper() or letter == "ß" for letter in text if letter.isalpha())
    return capitals and len(_WORD.findall(text)) > 1

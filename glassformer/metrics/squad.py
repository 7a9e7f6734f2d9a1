"""Exact match and F1 of answers to questions, as the official SQuAD script computes them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)


def normalize_answer(text: str) -> str:
    """Lowercase, and remove punctuation, English articles and extra white space.

    >>> normalize_answer("The  Eiffel-Tower!")
    'eiffeltower'
    """
    plain = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(answer: str, expected: Sequence[str]) -> float:
    """Return 1 if the answer equals one of the expected ones after normalization, else 0.

    expected: the correct answers; empty if the question has none, which the empty answer matches.
    """
    return float(any(normalize_answer(answer) == normalize_answer(text) for text in expected or [""]))


def answer_f1(answer: str, expected: Sequence[str]) -> float:
    """Return the largest F1 of words that the answer shares with an expected one; see `exact_match`.

    >>> answer_f1("in the city of Paris", ["Paris", "the French capital"])
    0.4
    """
    return max(_word_f1(normalize_answer(answer), normalize_answer(text)) for text in expected or [""])


def _word_f1(answer: str, expected: str) -> float:
    words, gold = answer.split(), expected.split()
    if not words or not gold:  # an empty answer is right or wrong
        return float(words == gold)
    shared = (Counter(words) & Counter(gold)).total()
    return 2 * shared / (len(words) + len(gold))

"""Text normalization of the default translator: quotes, spaces, French punctuation; and duplicates."""

from __future__ import annotations

import re
import unicodedata

# Characters with several variants and the one in the training data. The tokenizer applies the same mapping.
WRITTEN = {
    "\u201c": '"',
    "\u201d": '"',
    "\u201e": '"',
    "\u201f": '"',
    "\u00ab": '"',
    "\u00bb": '"',
    "\u2018": "'",
    "\u2019": "'",
    "\u201a": "'",
    "\u201b": "'",
    "\u00b4": "'",
    "`": "'",
    "\u2032": "'",
    "\u2026": "...",
    "\u00a0": " ",
    "\u202f": " ",
    "\u2009": " ",
    "\u3000": " ",
    "\u200b": "",
    "\ufeff": "",
    "\u00ad": "",
    "\u2010": "-",
    "\u2011": "-",
    "\u2212": "-",
    "\uff0c": ",",
    "\uff1f": "?",
    "\uff01": "!",
}
_TABLE = str.maketrans(WRITTEN)
_QUOTED = re.compile(r'"\s*([^"]*?)\s*"')
_HIGH = re.compile(r"(?<=[\w\"')\].])\s*([?!;:])(?=\s|$|\"|[?!])")
_PLACEHOLDER = re.compile(
    r"%[-+ #0-9.*$]*[a-zA-Z]|[{}<>|\\_=~^]|\$\w|&\w+;|@\w+@|https?:|www\.|--\w|\w/\w.*/|\w\.\w+\(|\(\)"
)
_FINAL = ".!?…"


def tidy(text: str, language: str) -> str:
    """Normalize: composed characters, straight quotes, single spaces, French punctuation after a space.

    >>> tidy("\u00ab\u00a0Où\u00a0?\u00a0\u00bb", "fr"), tidy("  It\u2019s  “so”.", "en")
    ('"Où ?"', 'It\\'s "so".')
    """
    text = " ".join(unicodedata.normalize("NFC", text).translate(_TABLE).split())
    if language == "fr":
        text = _QUOTED.sub(r'"\1"', text)
        text = _HIGH.sub(r" \1", text).replace("? !", "?!").replace("! !", "!!").replace("! ?", "!?")
    return text


def normalized(text: str) -> str:
    """A key that is equal for texts that differ only in case, punctuation or white space.

    >>> normalized("It's  OK!") == normalized("it s ok")
    True
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(letter if letter.isalnum() else " " for letter in folded).split())


def placeholders(text: str) -> bool:
    """Whether a user-interface text has placeholders, markup, an address or code."""
    return _PLACEHOLDER.search(text) is not None


def sentence(text: str) -> bool:
    """Whether a text ends like a sentence."""
    return text.rstrip("\"')")[-1:] in _FINAL


def plausible_lengths(one: str, other: str) -> bool:
    """Whether two texts have plausible lengths for a translation; Hangul counts double."""
    short, long = sorted((_weight(one), _weight(other)))
    return short >= 2 and long <= 420 and long <= 2.6 * short + 14


def _weight(text: str) -> int:
    return len(text) + sum("\uac00" <= letter <= "\ud7a3" for letter in text)


def without_case_and_punctuation(text: str) -> str:
    """Lowercase, without final punctuation.

    >>> without_case_and_punctuation("Where is Tom?")
    'where is tom'
    """
    return text.lower().rstrip(".!?… ") or text

"""How the default translator's texts are made alike: quotes, spaces, French signs; and what is the same."""

from __future__ import annotations

import re
import unicodedata

# What people type in many ways and the translator knows in one. The tokenizer does the same to what it reads.
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
    """One way of writing: composed letters, straight quotes, single spaces, French signs behind a space.

    >>> tidy("\u00ab\u00a0Où\u00a0?\u00a0\u00bb", "fr"), tidy("  It\u2019s  “so”.", "en")
    ('"Où ?"', 'It\\'s "so".')
    """
    text = " ".join(unicodedata.normalize("NFC", text).translate(_TABLE).split())
    if language == "fr":
        text = _QUOTED.sub(r'"\1"', text)
        text = _HIGH.sub(r" \1", text).replace("? !", "?!").replace("! !", "!!").replace("! ?", "!?")
    return text


def same(text: str) -> str:
    """What two texts share that differ in case, punctuation or white space alone.

    >>> same("It's  OK!") == same("it s ok")
    True
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(letter if letter.isalnum() else " " for letter in folded).split())


def placeholders(text: str) -> bool:
    """Whether a program's text has a place to fill in, markup, an address or code in it."""
    return _PLACEHOLDER.search(text) is not None


def sentence(text: str) -> bool:
    """Whether a text ends as a sentence does."""
    return text.rstrip("\"')")[-1:] in _FINAL


def fitting(one: str, other: str) -> bool:
    """Whether a text can be a translation of the other by their lengths, Hangul counted double."""
    short, long = sorted((_weight(one), _weight(other)))
    return short >= 2 and long <= 420 and long <= 2.6 * short + 14


def _weight(text: str) -> int:
    return len(text) + sum("\uac00" <= letter <= "\ud7a3" for letter in text)


def careless(text: str) -> str:
    """As a person in a hurry types it: small letters, nothing at the end.

    >>> careless("Where is Tom?")
    'where is tom'
    """
    return text.lower().rstrip(".!?… ") or text

"""Scripts that put no space between words: what is written in them is joined without one."""

import unicodedata

# Thai and Lao, Burmese, Khmer; those of East Asia are known by their width
_ALPHABETS = (("\u0e00", "\u0eff"), ("\u1000", "\u109f"), ("\u1780", "\u17ff"))


def is_unspaced(letter: str) -> bool:
    """Whether no space follows a letter or stop where a word or sentence ends; Korean has spaces.

    >>> [is_unspaced(letter) for letter in "a.한漢。ไ"]
    [False, False, False, True, True, True]
    """
    if any(first <= letter <= last for first, last in _ALPHABETS):
        return True
    return unicodedata.east_asian_width(letter) in "WF" and "HANGUL" not in unicodedata.name(letter, "")

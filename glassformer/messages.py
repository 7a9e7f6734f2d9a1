"""Parts of messages: nouns in the number that fits a count, and shortened lists of names."""

from collections.abc import Sequence

MAX_NAMES = 5


def plural(noun: str, count: float) -> str:
    """Return a noun in the number that fits the count.

    >>> plural("class", 1), plural("class", 2), plural("image", 0), plural("series", 2)
    ('class', 'classes', 'images', 'series')
    """
    return noun if count == 1 or noun == "series" else f"{noun}es" if noun.endswith("s") else f"{noun}s"


def quantity(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> quantity(1, "pair"), quantity(1200, "pair")
    ('1 pair', '1,200 pairs')
    """
    return f"{count:,} {plural(noun, count)}"


def list_some(names: Sequence[str], most: int = MAX_NAMES) -> str:
    """List the first names, and say how many follow.

    >>> list_some(["a", "b"]), list_some("abcdefg")
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")

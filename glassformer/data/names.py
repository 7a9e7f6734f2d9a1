"""Names that columns go by, so that a usual file needs no options."""

from __future__ import annotations

from collections.abc import Collection, Sequence

PAIRS = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("input", "output"),
    ("question", "answer"),
    ("q", "a"),
    ("document", "summary"),
    ("article", "highlights"),
    ("text", "summary"),
)
TEXTS = ("text", "sentence", "document", "review", "content", "body", "comment", "question", "q")
LABELS = ("label", "labels", "class", "category", "sentiment", "target", "intent", "rating", "stars", "y")
LANGUAGES = frozenset(
    "en de fr ko ja zh es it pt nl ru pl cs sv da fi tr uk ro hu el he ar hi vi th "
    "english german french korean japanese chinese spanish italian portuguese dutch russian".split()
)
TO = "to"  # a column that names the language of each target
_OTHERS = frozenset("id idx index no number package reference score".split()) | {TO}
_KNOWN = frozenset(name for pair in PAIRS for name in pair) | {*TEXTS, *LABELS} | LANGUAGES | _OTHERS


def looks_like_names(cells: Sequence[str]) -> bool:
    """Whether a first row is plainly a header: every cell is a name that columns go by, or two name a pair.

    >>> looks_like_names(["id", "document", "label"]), looks_like_names(["Hi.", "Hallo!"])
    (True, False)
    >>> looks_like_names(["source", "target", "checked by"])
    True
    """
    names = [cell.strip().lower() for cell in cells]
    return len(names) > 1 and (all(name in _KNOWN for name in names) or _couple(names) is not None)


def known_pair(names: Sequence[str]) -> tuple[str, str] | None:
    """The two names of a pair: by a usual couple of names, or the only two that are languages."""
    lower = {name.split(".")[-1].lower(): name for name in names}
    if found := _couple(lower):
        return lower[found[0]], lower[found[1]]
    tongues = [name for short, name in lower.items() if short in LANGUAGES]
    return (tongues[0], tongues[1]) if len(tongues) == 2 else None


def _couple(names: Collection[str]) -> tuple[str, str] | None:
    """The usual couple of names that is among them."""
    return next((pair for pair in PAIRS if pair[0] in names and pair[1] in names), None)


def known_one(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """The first of the usual names that is there."""
    lower = {name.lower(): name for name in names}
    return next((lower[name] for name in usual if name in lower), None)

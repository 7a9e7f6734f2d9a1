"""The demo's task to learn: dates, letter by letter, from "2024-03-17" to "march 17, 2024".

Small enough to learn in half a minute, and still a translation: the parts change places, the month becomes a
word, and the day loses its leading zero.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

MONTHS = "january february march april may june july august september october november december".split()
FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)

Pair = tuple[str, str]


def pair(day: date) -> Pair:
    """What is read and what is to be written.

    >>> pair(date(2024, 3, 7))
    ('2024-03-07', 'march 7, 2024')
    """
    return day.isoformat(), f"{MONTHS[day.month - 1]} {day.day}, {day.year}"


def split(held_out: int = 500, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """All dates of two centuries, shuffled: to learn from, and kept for the test."""
    days = [FIRST + timedelta(n) for n in range((LAST - FIRST).days + 1)]
    random.Random(seed).shuffle(days)
    pairs = [pair(day) for day in days]
    return pairs[held_out:], pairs[:held_out]


def write(path: Path, pairs: Iterable[Pair]) -> Path:
    """The pairs as the table that `glassformer train translate` reads: one a line, a tab between the two."""
    path.write_text("".join(f"{read}\t{written}\n" for read, written in pairs), encoding="utf-8")
    return path

"""What the translator ends with: set phrases again and again, and so much else that it forgets nothing.

A phrase as "Good luck!" is one row among a million, and word for word it is wrong: "Gute Glück!". So the
short lines of the phrasebook are read several times, its longer ones at most once, beside a sample of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from results.pocket_data import Row, phrasebook, read, share_of, write

SHORT, AGAIN = 5, 6  # English words of a set phrase; how often it is read
LONGER = 0.45  # of the phrasebook's other rows
OTHERS = 40_000  # rows of all else


def polish(tables: Path) -> Path:
    """polish.tsv.gz beside the tables, rows in an order that follows from their texts."""
    words = {
        row: len(pair.english.split())
        for pair in phrasebook()
        for row in ((pair.english, pair.other, pair.tag), (pair.other, pair.english, "en"))
    }
    every: list[Row] = [(source, target, to) for source, target, to in read(tables / "train.tsv.gz")]
    phrases = [row for row in dict.fromkeys(every) if row in words]
    others = sorted({row for row in every if row not in words}, key=lambda row: _share("others", row))
    chosen = [
        *(row for row in phrases if words[row] <= SHORT for _ in range(AGAIN)),
        *(row for row in phrases if words[row] > SHORT and _share("longer", row) < LONGER),
        *others[:OTHERS],
    ]
    path = tables / "polish.tsv.gz"
    write(path, ("source", "target", "to"), sorted(chosen, key=lambda row: _share("order", row)))
    return path


def _share(purpose: str, row: Sequence[str]) -> float:
    return share_of(purpose, "\t".join(row))

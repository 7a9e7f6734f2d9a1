"""The last training stage of the translator: repeated set phrases.

A phrase as "Good luck!" is one row among a million, and word for word it is wrong: "Gute Glück!". So the
short lines of the phrasebook are read many times more, and the longer ones a few. On their own they make it
forget: 280 steps with as much of all else, at a rate of 0.0003, brought four phrases of five from three, and
took two BLEU of French into English and five of English into Korean.
"""

from __future__ import annotations

from pathlib import Path

from experiments.pocket_data import SAID, Row, phrasebook, read, write

AGAIN, LONGER = 12, 2  # extra repetitions of a short line, and of a longer one


def polish(tables: Path) -> Path:
    """Write polish.tsv.gz next to the tables: the phrasebook rows that are in the training data."""
    word_counts = {
        row: len(pair.english.split())
        for pair in phrasebook()
        for row in ((pair.english, pair.other, pair.tag), (pair.other, pair.english, "en"))
    }
    learned: set[Row] = {(source, target, to) for source, target, to in read(tables / "train.tsv.gz")}
    path = tables / "polish.tsv.gz"
    rows = (
        row
        for row in word_counts
        if row in learned
        for _ in range(AGAIN if word_counts[row] <= SAID else LONGER)
    )
    write(path, ("source", "target", "to"), rows)
    return path

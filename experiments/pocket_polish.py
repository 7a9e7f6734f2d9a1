"""What the translator ends with beside all else: set phrases, again and again.

A phrase as "Good luck!" is one row among a million, and word for word it is wrong: "Gute Glück!". So the
short lines of the phrasebook are read many times more, and the longer ones a few. On their own they make it
forget: 280 steps with as much of all else, at a rate of 0.0003, brought four phrases of five from three, and
took two BLEU of French into English and five of English into Korean.
"""

from __future__ import annotations

from pathlib import Path

from experiments.pocket_data import SAID, Row, phrasebook, read, write

AGAIN, LONGER = 12, 2  # how often a short line is read besides, and a longer one


def polish(tables: Path) -> Path:
    """polish.tsv.gz beside the tables: of the phrasebook what is learnt at all."""
    word_counts = {
        row: len(pair.english.split())
        for pair in phrasebook()
        for row in ((pair.english, pair.other, pair.tag), (pair.other, pair.english, "en"))
    }
    learnt: set[Row] = {(source, target, to) for source, target, to in read(tables / "train.tsv.gz")}
    path = tables / "polish.tsv.gz"
    rows = (
        row
        for row in word_counts
        if row in learnt
        for _ in range(AGAIN if word_counts[row] <= SAID else LONGER)
    )
    write(path, ("source", "target", "to"), rows)
    return path

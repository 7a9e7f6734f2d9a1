"""The first 10 MB of enwik8 byte by byte, 90/5/5: ours against nanoGPT."""

from __future__ import annotations

import gzip

from results import language
from results.place import Place

ROW = "enwik8"
ENDS = {"train": 9_000_000, "valid": 9_500_000, "test": 10_000_000}


def run(place: Place, name: str) -> None:
    language.run(corpus(place), place, name)


def corpus(place: Place) -> language.Corpus:
    """Each byte as a letter of its number, so that a tokenizer of letters cuts the text into bytes."""
    whole = gzip.decompress((place.data / "enwik8-10M" / "enwik8.first10M.gz").read_bytes())
    files, units, begin = {}, {}, 0
    for part, end in ENDS.items():
        files[part] = place.prepared(ROW) / f"{part}.txt"
        files[part].write_text(whole[begin:end].decode("latin-1"), encoding="utf-8", newline="")
        units[part], begin = end - begin, end
    return language.Corpus(
        row=ROW,
        recipe="lm-enwik8",
        files=files,
        kind="char",
        vocab_size=1000,
        length=496,
        rows=43,
        dropout=0.1,
        units=units,
    )

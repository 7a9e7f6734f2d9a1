"""WikiText-2 as it is published, in 8,000 pieces of bytes: ours against nanoGPT."""

from __future__ import annotations

import gzip
from pathlib import Path

from results import language
from results.place import Place

ROW = "wikitext2"


def run(place: Place, name: str) -> None:
    language.run(corpus(place), place, name)


def corpus(place: Place) -> language.Corpus:
    files = {part: _unpacked(place, part) for part in language.PARTS}
    return language.Corpus(
        row=ROW,
        recipe="lm-wikitext2",
        files=files,
        kind="byte",
        vocab_size=8000,
        length=256,
        rows=74,
        dropout=0.3,
        units={part: _words(path) for part, path in files.items()},
    )


def _unpacked(place: Place, part: str) -> Path:
    path = place.prepared(ROW) / f"{part}.txt"
    path.write_bytes(gzip.decompress((place.data / "wikitext-2" / f"{part}.txt.gz").read_bytes()))
    return path


def _words(path: Path) -> int:
    """Words as they stand there, and one for the end of each line, as perplexities are told by."""
    text = path.read_text(encoding="utf-8")
    return len(text.split()) + text.count("\n")

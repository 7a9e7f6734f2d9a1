"""Multi30k texts as in the published results: lowercase, normalized punctuation, Moses tokens.

sacremoses tokenizes, in the order of Multi30k's scripts: lowercase, normalize, tokenize.
Marks are not escaped ("'", not "&apos;"), which changes no count of words or matches.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path

from glassformer.errors import GlassformerError
from glassformer.weights.atomic_write import atomic_write


def tokenize(texts: Iterable[str], language: str) -> list[str]:
    """Each text as lowercase tokens, separated by spaces.

    >>> tokenize(["Ein Hund läuft, ein Mann (im T-Shirt) nicht."], "de")
    ['ein hund läuft , ein mann ( im t-shirt ) nicht .']
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise GlassformerError(
            "Moses' words are cut by sacremoses, which is not installed; run: pip install sacremoses"
        ) from None
    plain, cut = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return [cut.tokenize(plain.normalize(text.lower()), escape=False, return_str=True) for text in texts]


def prepare(data: Path, folder: Path, parts: Sequence[str], languages: Sequence[str]) -> None:
    """Tokenize `part.language.gz` of a folder into another; existing files stay."""
    for part in parts:
        for language in languages:
            path = folder / f"{part}.{language}.gz"
            if not path.is_file():
                write(path, tokenize(read(data / path.name), language))


def read(path: Path) -> list[str]:
    """The lines of a gzipped text."""
    return gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")


def write(path: Path, texts: Iterable[str]) -> None:
    """Write lines, gzipped, with the same bytes each time; concurrent runs may all write them."""
    with atomic_write(path) as file:
        file.write(gzip.compress("".join(f"{text}\n" for text in texts).encode(), mtime=0))

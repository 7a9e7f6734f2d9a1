"""Texts as the published Multi30k figures have them: small letters, plain punctuation, Moses' words.

The words are cut by sacremoses, in the order of Multi30k's own scripts: lower-case, normalise, tokenise.
Marks are not escaped ("'", not "&apos;"), which changes no count of words or matches.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path

from glassformer.errors import GlassformerError
from glassformer.weights.atomic_write import atomic_write


def tokenize(texts: Iterable[str], language: str) -> list[str]:
    """Each text as its words in small letters, with one space between them.

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
    """Cut `part.language.gz` of a folder into words, under the same names in another; what is there stays."""
    for part in parts:
        for language in languages:
            path = folder / f"{part}.{language}.gz"
            if not path.is_file():
                write(path, tokenize(read(data / path.name), language))


def read(path: Path) -> list[str]:
    """The lines of a gzipped text."""
    return gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")


def write(path: Path, texts: Iterable[str]) -> None:
    """Write lines, gzipped and the same bytes each time; runs side by side may all write them."""
    with atomic_write(path) as file:
        file.write(gzip.compress("".join(f"{text}\n" for text in texts).encode(), mtime=0))

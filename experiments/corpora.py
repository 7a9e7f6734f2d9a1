"""The corpora of the language-model rows, with the model sizes used for ours and for nanoGPT."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PARTS = ("train", "valid", "test")
BYTES = {"train": 9_000_000, "valid": 9_500_000, "test": 10_000_000}  # of enwik8, where each part ends


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A row: its texts, tokenizer and recipe, and the nanoGPT settings for the same size.

    texts: from the folder of data sets to the text of each part
    kind, vocab_size: of the tokenizer; unit: unit in which the loss is reported as well
    length, rows: of a batch
    """

    row: str
    recipe: str
    texts: Callable[[Path], dict[str, str]]
    kind: str
    vocab_size: int
    unit: Literal["byte", "word"]
    length: int
    rows: int
    dropout: float

    @property
    def learned_positions(self) -> str:
        """The same size with GPT-2's learned positions."""
        dropouts = (
            f"dropout: {self.dropout}, attention_dropout: {self.dropout}, embed_dropout: {self.dropout}"
        )
        size = f"d_model: 384, num_heads: 6, d_ff: 1536, num_layers: 6, max_len: {self.length}"
        return f"model={{preset: gpt2, {size}, {dropouts}}}"

    def units(self, text: str) -> int:
        """The number of bytes; or of words and line ends, by which perplexity is reported."""
        return len(text) if self.unit == "byte" else len(text.split()) + text.count("\n")


def _articles(data: Path) -> dict[str, str]:
    """WikiText-2 as published."""
    return {
        part: gzip.decompress((data / "wikitext-2" / f"{part}.txt.gz").read_bytes()).decode()
        for part in PARTS
    }


def _bytes(data: Path) -> dict[str, str]:
    """Each byte as one character (Latin-1), so that a character tokenizer yields bytes."""
    text = gzip.decompress((data / "enwik8-10M" / "enwik8.first10M.gz").read_bytes()).decode("latin-1")
    starts = (0, *BYTES.values())
    return {part: text[start:end] for (part, end), start in zip(BYTES.items(), starts, strict=False)}


CORPORA = {
    "wikitext2": Corpus(
        row="wikitext2",
        recipe="lm-wikitext2",
        texts=_articles,
        kind="byte",
        vocab_size=8000,
        unit="word",
        length=256,
        rows=74,
        dropout=0.3,
    ),
    "enwik8": Corpus(
        row="enwik8",
        recipe="lm-enwik8",
        texts=_bytes,
        kind="char",
        vocab_size=1000,
        unit="byte",
        length=496,
        rows=43,
        dropout=0.1,
    ),
}

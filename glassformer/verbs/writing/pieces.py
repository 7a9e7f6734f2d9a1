"""Whole texts as pieces that a model reads one by one, and what it wrote for them as whole texts again.

Lines stay lines, and empty ones stay empty. A line that is too long becomes its sentences, a sentence that is
too long its clauses or words. Nothing is ever left out: a word that does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from glassformer.core.errors import GlassformerError
from glassformer.text.documents import halved, sentences
from glassformer.verbs.writing.checks import numbered

Split = Literal["long", "always", "never"]
Encode = Callable[[Sequence[str]], list[list[int]]]
LONG = 128  # tokens of a line; models that rewrite are taught with sentences
LONGEST = 512  # tokens of a sentence, however many the model has places for
TOGETHER = 256  # lines encoded at once


@dataclass(frozen=True)
class Place:
    """Where the answer to a piece goes."""

    ids: list[int]


Layout = list[str | Place]  # text that stays as it is, and places for answers


def no_tag(_: str) -> str:
    """Lines that begin with nothing of the kind."""
    return ""


@dataclass(frozen=True, kw_only=True)
class Cutter:
    """Texts into layouts.

    encode: texts to ids as the model reads them. reads: the most tokens it can read, None: any.
    split: which lines become sentences: those of more than LONG tokens, all, or none. unit: what is cut
    at all; a "text" is one piece with its line ends in it. lead: what a line begins with that each of its
    pieces must begin with too.
    """

    encode: Encode
    reads: int | None
    split: Split = "long"
    unit: Literal["line", "text"] = "line"
    lead: Callable[[str], str] = no_tag
    what: str = "text"

    def layouts(self, texts: Iterable[str]) -> Iterator[Layout]:
        """One layout a text, in order; `TOGETHER` texts are looked at at once."""
        stream = numbered(texts, self.what)
        while many := list(islice(stream, TOGETHER)):
            rows = [text.split("\n") if self.unit == "line" else [text] for _, text in many]
            bodies = [body for row in rows for line in row if (body := line.strip())]
            encoded = iter(self.encode(bodies))
            for (number, _), row in zip(many, rows, strict=True):
                layout: Layout = []
                for at, line in enumerate(row):
                    layout += ["\n"] if at else []
                    if body := line.strip():
                        layout.append(line[: line.index(body[0])] if self.unit == "line" else "")
                        layout += self._line(body, next(encoded), number)
                yield layout

    def _line(self, body: str, ids: list[int], number: int) -> Layout:
        most = len(ids) if self.reads is None else self.reads
        if self.split == "never" and len(ids) > most:
            raise GlassformerError(
                f"{self.what} {number} has {len(ids):,} tokens, and the model reads at most {most:,}; "
                "shorten it"
            )
        whole = self.split == "never" or (self.split == "long" and len(ids) <= min(most, LONG))
        if whole:
            return [Place(ids)]
        lead = self.lead(body)

        def encode(texts: Sequence[str]) -> list[list[int]]:
            return self.encode([lead + text for text in texts])

        found: Layout = []
        parts = sentences(body[len(lead) :])
        for (sentence, gap), one in zip(parts, encode([sentence for sentence, _ in parts]), strict=True):
            found += [*self._fitting(encode, sentence, one, most, number), gap]
        return found

    def _fitting(self, encode: Encode, sentence: str, ids: list[int], most: int, number: int) -> Layout:
        if len(ids) <= min(most, LONGEST):
            return [Place(ids)]
        cut = halved(sentence)
        if cut is None and len(ids) <= most:
            return [Place(ids)]
        if cut is None:
            raise GlassformerError(
                f"{self.what} {number} holds {len(sentence):,} letters with no space between, "
                f"{len(ids):,} tokens, and the model reads at most {most:,}; break them up"
            )
        left, gap, right = cut
        one, other = encode([left, right])
        return [
            *self._fitting(encode, left, one, most, number),
            gap,
            *self._fitting(encode, right, other, most, number),
        ]

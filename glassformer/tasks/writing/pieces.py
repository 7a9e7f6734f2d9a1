"""Whole texts as pieces that a model reads one by one, and what it wrote for them as whole texts again.

Lines stay lines, and empty ones stay empty. A line that is too long becomes its sentences, a sentence that is
too long its clauses or words, and letters without a space that are too many, parts of them. Nothing is ever
left out. Where a model's folder says that it has learnt single sentences, every line becomes its sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from glassformer.tasks.watch import UNWATCHED, Watch, refused
from glassformer.tasks.writing.checks import numbered
from glassformer.tasks.writing.stand_ins import Stands, put_back
from glassformer.tokenization.sentence_split import split_in_half, split_sentences, split_word

Split = Literal["long", "always", "never"]
Encode = Callable[[Sequence[str]], list[list[int]]]
LONG = 128  # tokens of a line; models that rewrite are taught with sentences
LONGEST = 512  # tokens of a sentence, however many the model has places for
SHORTEST = 48  # tokens of a sentence that is never cut: its parts would say less than they do together
UNBROKEN = 1 << 14  # letters without a space that are still taken for text of a script without spaces
TOGETHER = 256  # lines encoded at once


@dataclass(frozen=True)
class Place:
    """Where the answer to a piece goes. torn: whether it was cut where no word ends. text: what is read.

    stands: letters in it that stand in for what the answer is to hold in their place. capitals: whether the
    answer is to be in capitals.
    """

    ids: list[int]
    torn: bool = False
    text: str = ""
    stands: Stands = ()
    capitals: bool = False

    def answered(self, said: str) -> str:
        """An answer as it goes here."""
        found = put_back(said, self.stands)
        return found.upper() if self.capitals else found


@dataclass(frozen=True)
class _Asked:
    """What is to be asked, what goes before each of its pieces, and whether answers are to be in capitals."""

    lead: str
    body: str
    capitals: bool = False


class _UnfitError(Exception):
    """A text does not fit; why, to be read after its name."""


Layout = list[str | Place]  # text that stays as it is, and places for answers


def no_tag(_: str) -> str:
    """Lines that begin with nothing of the kind."""
    return ""


def all_text(line: str) -> list[str]:
    """Lines of which nothing is carried over."""
    return [line]


def any_letters(line: str) -> str:
    """Lines that are read in the letters that they are in."""
    return line


def as_it_is(text: str) -> tuple[str, Stands]:
    """Texts in which nothing stands in for anything."""
    return text, ()


@dataclass(frozen=True, kw_only=True)
class Cutter:
    """Texts into layouts.

    encode: texts to ids as the model reads them. reads: the most tokens it can read, None: any. learnt: the
    most it has learnt to read, None: unknown.
    split: which lines become sentences: those of more than LONG tokens (or than it learnt), all, or none.
    unit: what is cut at all; a "text" is one piece with its line ends in it. lead: what a line begins with
    that each of its pieces must begin with too. spelt: a line in the letters that are read; another line than
    was given is one in capitals, and is answered so. carried: cuts a line into texts and what stays as it is
    between them, in turns. read: a text as it is read, and what letters in it stand in for.
    """

    encode: Encode
    reads: int | None
    learnt: int | None = None
    split: Split = "long"
    unit: Literal["line", "text"] = "line"
    lead: Callable[[str], str] = no_tag
    spelt: Callable[[str], str] = any_letters
    carried: Callable[[str], list[str]] = all_text
    read: Callable[[str], tuple[str, Stands]] = as_it_is
    what: str = "text"

    def layouts(self, texts: Iterable[str], watch: Watch = UNWATCHED) -> Iterator[Layout]:
        """One layout a text, in order, empty of one that is refused; `TOGETHER` are looked at at once."""
        stream = numbered(texts, self.what)
        while many := list(islice(stream, TOGETHER)):
            rows = [self._asked(text) for _, text in many]
            bodies = [part.lead + part.body for row in rows for part in row if isinstance(part, _Asked)]
            encoded = iter(self._encode(bodies))
            for (number, _), row in zip(many, rows, strict=True):
                ids = [[] if isinstance(part, str) else next(encoded) for part in row]
                try:
                    layout = self._row(row, ids)
                except _UnfitError as error:
                    refused(watch.refuse, self.what, number, str(error))
                    layout = []
                yield layout

    def _row(self, row: Sequence[str | _Asked], ids: Sequence[list[int]]) -> Layout:
        found: Layout = []
        for part, one in zip(row, ids, strict=True):
            if isinstance(part, str):
                found.append(part)
                continue
            pieces = self._line(part, one)
            found += [
                replace(piece, capitals=True) if part.capitals and isinstance(piece, Place) else piece
                for piece in pieces
            ]
        return [part if isinstance(part, str) else self._shown(part) for part in found]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.encode([self.read(text)[0] for text in texts])

    def _shown(self, place: Place) -> Place:
        text, stands = self.read(place.text)
        return replace(place, text=text, stands=stands) if stands else place

    @property
    def _bearable(self) -> int:
        """The most tokens of a sentence."""
        return LONGEST if self.learnt is None else min(LONGEST, max(SHORTEST, self.learnt))

    def _asked(self, text: str) -> list[str | _Asked]:
        """A text's lines with what is to be asked in them; spaces before each stay, those at its end go."""
        if self.unit == "text":
            return [_Asked("", body)] if (body := text.strip()) else []
        found: list[str | _Asked] = []
        for at, line in enumerate(text.split("\n")):
            found += ["\n"] if at else []
            body = line.strip()
            if not body:
                continue
            lead = self.lead(body)
            found.append(line[: line.index(body[0])])
            given = body[len(lead) :]
            spelt = self.spelt(given)
            parts = self.carried(spelt)
            for turn, part in enumerate(parts):
                asked = part.strip()
                if turn % 2 or not asked or (len(parts) > 1 and not any(map(str.isalnum, asked))):
                    found += [part] if part else []
                    continue
                begin = part.index(asked[0])
                one = _Asked(lead, asked, capitals=spelt != given)
                found += [part[:begin], one, part[begin + len(asked) :]]
        return found

    def _line(self, asked: _Asked, ids: list[int]) -> Layout:
        most = len(ids) if self.reads is None else self.reads
        if self.split == "never" and len(ids) > most:
            raise _UnfitError(f"has {len(ids):,} tokens, and the model reads at most {most:,}; shorten it")
        if self.split == "never" or (self.split == "long" and len(ids) <= min(most, LONG, self._bearable)):
            return [Place(ids, text=asked.lead + asked.body)]

        def encode(texts: Sequence[str]) -> list[list[int]]:
            return self._encode([asked.lead + text for text in texts])

        found: Layout = []
        parts = split_sentences(asked.body)
        every = encode([sentence for sentence, _ in parts]) if len(parts) > 1 else [ids]
        for (sentence, gap), one in zip(parts, every, strict=True):
            pieces = self._fitting(encode, sentence, one, most)
            found += [
                part if isinstance(part, str) else replace(part, text=asked.lead + part.text)
                for part in pieces
            ]
            found.append(gap)
        return found

    def _fitting(self, encode: Encode, sentence: str, ids: list[int], most: int) -> Layout:
        if len(ids) <= min(most, self._bearable):
            return [Place(ids, text=sentence)]
        cut = split_in_half(sentence)
        if cut is None:
            if len(sentence) > UNBROKEN:
                raise _UnfitError(
                    f"holds {len(sentence):,} letters with no space between, which are no text; break them up"
                )
            return list(self._torn(encode, sentence, ids, most))
        left, gap, right = cut
        one, other = encode([left, right])
        return [
            *self._fitting(encode, left, one, most),
            gap,
            *self._fitting(encode, right, other, most),
        ]

    def _torn(self, encode: Encode, letters: str, ids: list[int], most: int) -> Iterator[Place]:
        """Parts of letters without a space, each of which fits."""
        cut = split_word(letters) if len(ids) > min(most, self._bearable) else None
        if cut is None and len(ids) > most:
            raise _UnfitError(
                f"holds a letter with so many marks that it has {len(ids):,} tokens, and the model reads "
                f"at most {most:,}; take some off"
            )
        if cut is None:
            yield Place(ids, torn=True, text=letters)
            return
        for part, one in zip(cut, encode(cut), strict=True):
            yield from self._torn(encode, part, one, most)

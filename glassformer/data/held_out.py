"""A source in two: what is learned from, and a share held out for validation."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Generic, TypeVar

from glassformer.data.problems import Problems
from glassformer.data.sources import Source, Texts
from glassformer.data.stamps import Stamp, by_time
from glassformer.data.texts import TextFiles
from glassformer.errors import GlassformerError

Item = TypeVar("Item")
LEFT_OVER = 1 << 24  # letters kept of what one side's reading leaves for the other


def held_out(source: Source, share: float, *, seed: int) -> tuple[Source, Source]:
    """A source in two, for training and for validation: about `share` of the rows go to the second.

    Which side a row falls on depends on the seed and its first field alone, and not on case, white space
    or how letters are composed. So the same sentence is never on both sides, however often it occurs.
    Where there is no choice of documents, the end of the text is held out: see `cut_at_the_end`.
    """
    if not 0 < share < 1:
        raise GlassformerError(
            f"a share of {share} cannot be held out; give one between 0 and 1, such as 0.01"
        )
    train, valid = (_Side(seed=seed, share=share, held=held) for held in (False, True))
    if isinstance(source, TextFiles) and cut_at_the_end(source):
        totals = _totals(source)
        sides: tuple[Source, Source] = (
            _Ends(source, share, totals, held=False),
            _Ends(source, share, totals, held=True),
        )
    elif isinstance(source, Texts):
        rest = _Rest[tuple[int, str]]()
        sides = _TextsOn(source, train, rest), _TextsOn(source, valid, rest)
    else:
        others = _Rest[tuple[str, ...]]()
        sides = _RowsOn(source, train, others), _RowsOn(source, valid, others)
    for side, name in zip(sides, ("training", "validation"), strict=True):
        if next(side.rows(Problems()), None) is None:
            raise GlassformerError(
                f"holding out {share:g} of these rows leaves none for {name}; "
                "give another share or a file for validation"
            )
    return sides


def cut_at_the_end(source: Source) -> bool:
    """Whether the last share of each document is held out, and not whole documents.

    So it is where every file is a document, and where blank lines divide nothing.
    """
    if not isinstance(source, TextFiles) or source.unit == "line":
        return False
    return source.unit == "file" or all(number == 0 for number, _ in source.pieces(Problems()))


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One of the two sides that texts fall on."""

    seed: int
    share: float
    held: bool

    def has(self, text: str) -> bool:
        composed = text if text.isascii() else unicodedata.normalize("NFKC", text)
        same = " ".join(composed.casefold().split())
        digest = hashlib.blake2b(same.encode(), digest_size=8, key=str(self.seed).encode()[:64]).digest()
        return (int.from_bytes(digest, "big") < self.share * 2**64) is self.held


class _Rest(Generic[Item]):
    """What a whole reading of one side passed over, which is the other side: kept while it is little.

    So a share to validate with is found while the rest is read, and no file is read twice for it.
    """

    def __init__(self) -> None:
        self._side: _Side | None = None
        self._items: list[Item] = []

    def of(self, side: _Side) -> list[Item] | None:
        """The items of a side, if the other side's reading left them."""
        return None if self._side is None or self._side == side else self._items

    def parted(
        self, side: _Side, items: Iterable[Item], has: Callable[[Item], bool], letters: Callable[[Item], int]
    ) -> Iterator[Item]:
        """The items that a side has."""
        passed, room = list[Item](), LEFT_OVER
        for item in items:
            if has(item):
                yield item
            elif room > 0:
                passed.append(item)
                room -= letters(item)
                if room <= 0:
                    passed.clear()
        if room > 0:
            self._side, self._items = side, passed


class _RowsOn(Source):
    """The rows that fall on a side."""

    def __init__(self, source: Source, side: _Side, rest: _Rest[tuple[str, ...]]) -> None:
        self.fields, self._source, self._side, self._rest = source.fields, source, side, rest

    def rows(self, problems: Problems) -> Iterator[tuple[str, ...]]:
        left = self._rest.of(self._side)
        if left is not None:
            return iter(left)
        return self._rest.parted(
            self._side,
            self._source.rows(problems),
            lambda row: self._side.has(row[0]),
            lambda row: sum(map(len, row)),
        )

    def fingerprint(self, stamp: Stamp = by_time) -> str:
        return _changed(self._source, stamp, self._side)


class _TextsOn(Texts):
    """The documents that fall on a side, judged by their first piece."""

    def __init__(self, source: Texts, side: _Side, rest: _Rest[tuple[int, str]]) -> None:
        self._source, self._side, self._rest = source, side, rest

    def pieces(self, problems: Problems) -> Iterator[tuple[int, str]]:
        left = self._rest.of(self._side)
        if left is not None:
            return iter(left)
        document, on_it = -1, False

        def has(item: tuple[int, str]) -> bool:
            nonlocal document, on_it
            if item[0] != document:
                document, on_it = item[0], self._side.has(item[1])
            return on_it

        return self._rest.parted(self._side, self._source.pieces(problems), has, lambda item: len(item[1]))

    def fingerprint(self, stamp: Stamp = by_time) -> str:
        return _changed(self._source, stamp, self._side)


def _totals(source: Texts) -> list[int]:
    """How many letters each document has."""
    return [sum(map(len, pieces)) for pieces in source.documents(Problems())]


class _Ends(Texts):
    """The beginning, or the held-out end, of every document; the cut is after a line or a word."""

    def __init__(self, source: Texts, share: float, totals: list[int], *, held: bool) -> None:
        self._source, self._share, self._totals, self._held = source, share, totals, held

    def pieces(self, problems: Problems) -> Iterator[tuple[int, str]]:
        for number, marked in groupby(self._source.pieces(problems), itemgetter(0)):
            left = round(self._totals[number] * (1 - self._share))  # letters before the cut
            for _, piece in marked:
                if left >= len(piece):
                    left -= len(piece)
                    kept = "" if self._held else piece
                else:
                    at = piece.rfind("\n", 0, left) + 1 or piece.rfind(" ", 0, left) + 1 or left
                    kept = piece[at if left else 0 :] if self._held else piece[: at if left else 0]
                    left = 0
                if kept:
                    yield number, kept

    def fingerprint(self, stamp: Stamp = by_time) -> str:
        return _changed(self._source, stamp, self._share, self._held)


def _changed(source: Source, stamp: Stamp, *options: object) -> str:
    return hashlib.blake2b(repr((source.fingerprint(stamp), options)).encode(), digest_size=16).hexdigest()

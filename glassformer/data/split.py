"""Split a source of text into a training and a validation set."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, Stamp, TextFiles, TextSource, stamp_by_time
from glassformer.errors import EmptyInputError, InvalidValueError

Item = TypeVar("Item")
MAX_CACHED_CHARS = 1 << 24  # in the rows that a pass over one side caches for the other side


def split_source(source: Source, fraction: float, *, seed: int) -> tuple[Source, Source]:
    """Split a source for training and validation; about `fraction` of the rows is held out.

    The side of a row depends only on the seed and the row's first field, ignoring case, white space and
    Unicode composition. So the same sentence is never on both sides, however often it occurs.
    If there are no documents to choose from, the end of the text is held out; see `splits_documents`.
    """
    train, valid = (_Side(seed=seed, fraction=fraction, held_out=held_out) for held_out in (False, True))
    cache = _Cache()
    if isinstance(source, TextFiles) and splits_documents(source):
        lengths = [sum(map(len, pieces)) for pieces in source.documents(RowErrors())]
        sides: tuple[Source, Source] = (
            _DocumentPart(source, fraction, lengths, held_out=False),
            _DocumentPart(source, fraction, lengths, held_out=True),
        )
    elif isinstance(source, TextSource):
        sides = _TextSide(source, train, cache), _TextSide(source, valid, cache)
    else:
        sides = _RowSide(source, train, cache), _RowSide(source, valid, cache)
    for side, name in zip(sides, ("training", "validation"), strict=True):
        if next(side.rows(RowErrors()), None) is None:
            raise EmptyInputError(
                f"{name} split (validation fraction {fraction:g})",
                hint="use another fraction, or a validation file",
            )
    return sides


def fraction_with_a_row(source: Source, fraction: float, *, seed: int, count: int = 1) -> float:
    """Return the fraction, or a larger one with which `split_source` holds out enough of a small source.

    count: the number of different first fields to hold out.
    """
    side = _Side(seed=seed, fraction=fraction, held_out=True)
    draws = nsmallest(count + 1, {side.draw(row[0]) for row in source.rows(RowErrors())})
    if len(draws) <= count:
        what, hint = f"the number of different {source.fields[0]}s", "add data, or name a file in data.valid"
        expected = f"at least {count + 1}, as {count} {'is' if count == 1 else 'are'} held out for validation"
        raise InvalidValueError(what, len(draws), expected, hint)
    return max(fraction, math.nextafter(draws[count - 1] / 2**64, 1))


def splits_documents(source: Source) -> bool:
    """Check if `split_source` holds out the end of each document, rather than complete documents.

    It does so if each file is one document, or if no blank lines separate documents.
    """
    if not isinstance(source, TextFiles) or source.sample_by == "line":
        return False
    return source.sample_by == "file" or all(number == 0 for number, _ in source.pieces(RowErrors()))


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One side of a split, training or validation (`held_out`)."""

    seed: int
    fraction: float
    held_out: bool

    def has(self, text: str) -> bool:
        return (self.draw(text) < self.fraction * 2**64) is self.held_out

    def draw(self, text: str) -> int:
        """Return a hash of the text, from 0 to 2**64 - 1."""
        composed = text if text.isascii() else unicodedata.normalize("NFKC", text)
        normalized = " ".join(composed.casefold().split())
        key = str(self.seed).encode()[:64]
        digest = hashlib.blake2b(normalized.encode(), digest_size=8, key=key).digest()
        return int.from_bytes(digest, "big")


class _Cache:
    """The items that a full pass over one side skipped, if they are few: they are the other side.

    So the validation rows are found while the training rows are read, without a second pass.
    """

    side: _Side | None = None
    items: Sequence[Any] = ()

    def select(
        self,
        side: _Side,
        items: Iterable[Item],
        first: Callable[[Item], str | None],
        chars: Callable[[Item], int],
    ) -> Iterator[Item]:
        """Yield the items of a side.

        first: returns the text that decides the side of an item; None if the item continues the previous one.
        chars: returns the number of characters of an item.
        """
        if self.side not in (None, side):
            yield from self.items
            return
        skipped, capacity, inside = list[Item](), MAX_CACHED_CHARS, False
        for item in items:
            if (text := first(item)) is not None:
                inside = side.has(text)
            if inside:
                yield item
            elif capacity > 0:
                skipped.append(item)
                capacity -= chars(item)
                if capacity <= 0:
                    skipped.clear()
        if capacity > 0:
            self.side, self.items = side, skipped


class _RowSide(Source):
    """The rows of one side, chosen by the first field."""

    def __init__(self, source: Source, side: _Side, cache: _Cache) -> None:
        self.fields, self._source, self._side, self._cache = source.fields, source, side, cache

    def rows(self, errors: RowErrors) -> Iterator[tuple[str, ...]]:
        rows = self._source.rows(errors)
        return self._cache.select(self._side, rows, lambda row: row[0], lambda row: sum(map(len, row)))

    def fingerprint(self, stamp: Stamp = stamp_by_time) -> str:
        return _fingerprint(self._source, stamp, self._side)


class _TextSide(TextSource):
    """The documents of one side, chosen by their first piece."""

    def __init__(self, source: TextSource, side: _Side, cache: _Cache) -> None:
        self._source, self._side, self._cache = source, side, cache

    def pieces(self, errors: RowErrors) -> Iterator[tuple[int, str]]:
        document = -1

        def first(item: tuple[int, str]) -> str | None:
            nonlocal document
            if item[0] == document:
                return None
            document = item[0]
            return item[1]

        return self._cache.select(self._side, self._source.pieces(errors), first, lambda item: len(item[1]))

    def fingerprint(self, stamp: Stamp = stamp_by_time) -> str:
        return _fingerprint(self._source, stamp, self._side)


class _DocumentPart(TextSource):
    """The start, or the held-out end, of every document; the cut is after a line or a word."""

    def __init__(self, source: TextSource, fraction: float, lengths: list[int], *, held_out: bool) -> None:
        self._source, self._fraction, self._lengths, self._held_out = source, fraction, lengths, held_out

    def pieces(self, errors: RowErrors) -> Iterator[tuple[int, str]]:
        for number, numbered in groupby(self._source.pieces(errors), itemgetter(0)):
            before = round(self._lengths[number] * (1 - self._fraction))  # characters before the cut
            for _, piece in numbered:
                if before >= len(piece):
                    before -= len(piece)
                    part = "" if self._held_out else piece
                else:
                    end = piece.rfind("\n", 0, before) + 1 or piece.rfind(" ", 0, before) + 1 or before
                    cut = end if before else 0
                    part = piece[cut:] if self._held_out else piece[:cut]
                    before = 0
                if part:
                    yield number, part

    def fingerprint(self, stamp: Stamp = stamp_by_time) -> str:
        return _fingerprint(self._source, stamp, self._fraction, self._held_out)


def _fingerprint(source: Source, stamp: Stamp, *options: object) -> str:
    return hashlib.blake2b(repr((source.fingerprint(stamp), options)).encode(), digest_size=16).hexdigest()

"""Rows of text to stores of ids: read, encoded on all cores and written, all at the same time."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from glassformer.data.problems import Problems
from glassformer.data.ragged import Ragged
from glassformer.data.sources import Source
from glassformer.data.store import Store, write_blocks
from glassformer.errors import GlassformerError
from glassformer.weights.replacing import replacing

Row = tuple[str, ...]
Item = TypeVar("Item")
Made = TypeVar("Made")
MOST_ITEMS = 8192  # rows encoded at once,
MOST_LETTERS = 1 << 21  # or so many letters of them: a long text comes in pieces, one for each core
THREADS = 2  # one call of the library is on all cores already; two leave them no pause between calls
AHEAD = 4  # groups of rows that are held at a time
PATIENCE = 3.0  # seconds until it is told how far reading is,
OFTEN = 10.0  # and between one time and the next


class Progress:
    """Says how much has been read, where reading takes long.

    what: such as "pairs"; the sentence is "reading pairs: 400,000 so far".
    """

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        self._what, self._say = what, say
        self._count, self._next = 0, time.monotonic() + PATIENCE

    def add(self, more: int) -> None:
        """Count what was read."""
        self._count += more
        now = time.monotonic()
        if now >= self._next:
            self._next = now + OFTEN
            self._say(f"reading {self._what}: {self._count:,} so far")


def in_groups(items: Iterable[Item], letters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in lists of as many as are encoded at once; `letters` counts those of one."""
    held: list[Item] = []
    size = 0
    for item in items:
        held.append(item)
        size += letters(item)
        if size >= MOST_LETTERS or len(held) == MOST_ITEMS:
            yield held
            held, size = [], 0
    if held:
        yield held


def in_order(work: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[tuple[Item, Made]]:
    """Each item and what `work` makes of it in a thread of its own, in the items' order, a few ahead."""
    waiting: deque[tuple[Item, Future[Made]]] = deque()
    with ThreadPoolExecutor(THREADS, "encoding") as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) == AHEAD:
                    first, made = waiting.popleft()
                    yield first, made.result()
            while waiting:
                first, made = waiting.popleft()
                yield first, made.result()
        finally:
            for _, made in waiting:
                made.cancel()


def write_rows(
    folder: Path,
    source: Source,
    fields: Sequence[str],
    encode: Callable[[list[Row]], Sequence[Ragged]],
    *,
    highest: int,
    max_len: int | None,
    problems: Problems,
    progress: Progress,
    keep: int = 0,
) -> int:
    """Write rows of text as a store of ids, and `keep` of the texts beside it.

    encode: gives the ids of many rows, by field; called in threads, so it must not mind in which order.
    max_len: rows with a field over it are left out; how many is returned. None takes all.
    """
    long, texts = 0, list[Row]()

    def blocks() -> Iterator[Sequence[Ragged]]:
        nonlocal long
        groups = in_groups(source.rows(problems), lambda row: len(row[0]))
        for rows, made in in_order(encode, groups):
            progress.add(len(rows))
            if max_len is not None:
                fits = np.max([field.lengths for field in made], axis=0) <= max_len
                if not fits.all():
                    long += len(rows) - int(fits.sum())
                    made = [field.only(fits) for field in made]
                    rows = [row for row, fit in zip(rows, fits, strict=True) if fit]
            texts.extend(rows[: keep - len(texts)])
            yield made

    store = write_blocks(folder, fields, blocks(), highest=highest)
    refuse_empty(store, f"row of {folder.name} data")
    keep_texts(folder, texts)
    return long


def keep_texts(folder: Path, rows: Sequence[Row]) -> None:
    """Write texts that a validation shows and compares with."""
    with replacing(folder / "texts.json") as file:
        file.write(json.dumps([list(row) for row in rows], ensure_ascii=False).encode())


def kept_texts(folder: Path) -> list[list[str]]:
    """What `keep_texts` wrote."""
    found: list[list[str]] = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    return found


def refuse_empty(store: Store, what: str) -> Store:
    """A sentence where nothing is left."""
    if not len(store):
        raise GlassformerError(f"no {what} is left; raise data.max_len or give more data")
    return store

"""Rows of text become stores of token ids: splits, the tokenizer, encoding on all cores, BPE dropout."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from glassformer.data.held_out import held_out
from glassformer.data.problems import Problems
from glassformer.data.ragged import Ragged
from glassformer.data.recut import WHOLE, halves
from glassformer.data.sources import Source
from glassformer.data.store import Store, write_blocks
from glassformer.errors import GlassformerError
from glassformer.tokenization import Side, Tokenizer, load_tokenizer
from glassformer.tokenization.train import Marks, TokenizerPlan, train_tokenizer
from glassformer.tokenization.two_libraries import separate
from glassformer.training import recipe as recipes
from glassformer.training.model_folders import replace_folder
from glassformer.weights.replacing import replacing

Say = Callable[[str], None]
TOGETHER = 2000  # rows that tell whether a tokenizer knows their letters,
LOOKED_AT = 10_000  # by so many of the first of each
MOST_UNKNOWN = 0.5  # of a text's letters; with more, there is nothing to learn


def quiet(sentence: str) -> None:
    """What is said where nobody listens."""


def two_sides(make: Callable[[Sequence[str]], Source], data: Any, *, seed: int) -> tuple[Source, Source]:
    """Training and validation rows: from their own files, or a share held out of the first."""
    train = make(data.train)
    if isinstance(data.valid, float):
        if not 0 < data.valid < 1:
            raise GlassformerError(
                f"data.valid is {data.valid:g}; give files, or the share to hold out, as 0.02"
            )
        return held_out(train, data.valid, seed=seed)
    return train, train if data.valid == data.train else make(data.valid)


def tokenizer_for(
    words: recipes.Tokenizer,
    folder: Path,
    texts: Callable[[], Iterator[Sequence[str]]],
    *,
    marks: Marks,
    tags: Callable[[], Iterable[str]] = tuple,
    base: Tokenizer | None = None,
    again: bool = False,
    say: Say,
) -> Tokenizer:
    """The run's tokenizer: that of the model gone on from, of a folder, or one trained on the texts.

    `texts` gives rows of one or two texts; with separate sides each column trains its own. `tags` are asked
    for only where one is trained. The one that the run folder keeps is taken, unless it is to be made
    `again`.
    """
    kept = folder / "tokenizer"
    if not again and (kept / "tokenizer_config.json").is_file():
        found = load_tokenizer(kept)
        if found is not None:
            return found
    if base is None and words.folder is not None:
        base = load_tokenizer(words.folder)
        if base is None:
            raise GlassformerError(
                f"tokenizer.folder '{words.folder}' holds no tokenizer; train one or leave it out"
            )
    if base is None:
        plan = TokenizerPlan(
            kind=words.kind,
            vocab_size=words.vocab_size,
            lowercase=words.lowercase,
            marks=marks,
            tags=tuple(tags()),
        )
        say(f"training a {words.kind} tokenizer of at most {plan.vocab_size:,} tokens")
        if words.sides == "separate":
            base = separate(*(train_tokenizer((row[n] for row in texts()), plan) for n in (0, 1)))
        else:
            base = train_tokenizer((text for row in texts() for text in row), plan)
        unread = _unread(base, texts())
        if unread:
            raise GlassformerError(f"{unread}; raise tokenizer.vocab_size")
    elif unread := _unread(base, texts()):
        say(f"{unread}; what is unknown cannot be learned, so take one that was trained on texts like these")
    made = base
    replace_folder(kept, lambda path: made.save(path))
    return made


def _unread(made: Tokenizer, rows: Iterator[Sequence[str]]) -> str | None:
    """A sentence where a vocabulary cannot spell most of the texts, on either side; else None."""
    sides: tuple[Side, ...] = ("source", "target")
    for side, texts in zip(sides, zip(*islice(rows, TOGETHER), strict=True), strict=False):
        begun = [text[:LOOKED_AT] for text in texts]
        ids = [one.ids for one in made.encode_batch(begun, special=False, side=side)]
        if not any(made.unk_id in one for one in ids):
            continue
        # By letters: one unknown token may stand for a whole word, or a line, that could not be spelled.
        letters = _letters(begun)
        lost = letters - _letters([made.decode(one, side=side) for one in ids])
        if lost > MOST_UNKNOWN * letters:
            size = made.vocab_size if side == "source" else made.target_vocab_size
            return (
                f"a tokenizer of {size:,} tokens leaves {lost / letters:.0%} of the letters unknown, as in "
                f"{texts[0]!r:.40}"
            )
    return None


def _letters(texts: Sequence[str]) -> int:
    """Characters that are no spaces."""
    return sum(len("".join(text.split())) for text in texts)


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


def halves_of(tokenizer: Tokenizer, *, side: Side = "source") -> NDArray[np.int64]:
    """For each token the two that read the same together, (V, 2), or twice WHOLE. Marks and tags stay whole.

    >>> from glassformer.tokenization import TokenizerPlan, train_tokenizer
    >>> tokenizer = train_tokenizer(["ab ab"], TokenizerPlan(vocab_size=50))
    >>> found = halves_of(tokenizer)
    >>> [tokenizer.tokens(found[n]) for n in tokenizer.ids_of(["ab"])[0] if found[n, 0] != WHOLE]
    [['▁', 'ab']]
    """
    size = tokenizer.vocab_size if side == "source" else tokenizer.target_vocab_size
    kept = tokenizer.special_ids | tokenizer.unknown_ids
    table = halves(tokenizer.tokens(range(size), side=side), kept)
    for number, parts in enumerate(table.tolist()):
        # Spelled alike is not read alike where a vocabulary marks the parts inside a word, or single bytes.
        if WHOLE not in parts and tokenizer.decode([number], side=side) != tokenizer.decode(parts, side=side):
            table[number] = WHOLE
    if (table == WHOLE).all():
        raise GlassformerError(
            f"data.recut needs tokens that shorter ones spell, and the {side} side's tokenizer has none; "
            "set data.recut to 0, or take another tokenizer.kind, as bpe"
        )
    return table

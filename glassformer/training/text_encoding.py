"""From text files to stores of token ids: splits, the tokenizer, encoding on all cores, BPE dropout."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from glassformer.data.examples import NO_SPLIT, split_table
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source
from glassformer.data.split import split_source
from glassformer.data.store import Ragged, write_blocks
from glassformer.errors import EmptyInputError, FileMissingError, GlassformerError, UnsupportedError
from glassformer.tokenization import Side, Tokenizer, load_tokenizer, pair_tokenizers
from glassformer.tokenization.train import Marks, TokenizerPlan, train_tokenizer
from glassformer.training.data_cache import Log
from glassformer.training.model_folders import replace_folder
from glassformer.training.recipe import TokenizerOptions
from glassformer.weights.atomic_write import atomic_write

Row = tuple[str, ...]
Item = TypeVar("Item")
Result = TypeVar("Result")
GROUP_ROWS = 8192  # rows encoded at once,
GROUP_CHARACTERS = 1 << 21  # or this many characters
THREADS = 2  # one call of the library uses all cores already; two leave no pause between calls
GROUPS_IN_FLIGHT = 4
PROGRESS_AFTER, PROGRESS_EVERY = 3.0, 10.0  # seconds
COVERAGE_ROWS, COVERAGE_CHARACTERS = 2000, 10_000  # sample for checking the coverage of a vocabulary
MAX_UNKNOWN = 0.5  # fraction of unknown characters above which there is nothing to learn


def split_sources(make: Callable[[Sequence[str]], Source], data: Any, *, seed: int) -> tuple[Source, Source]:
    """Training and validation rows: from their own files, or a fraction held out of the training files."""
    train = make(data.train)
    if isinstance(data.valid, float):
        return split_source(train, data.valid, seed=seed)
    return train, train if data.valid == data.train else make(data.valid)


@dataclass(eq=False)
class VocabularyCoverageError(GlassformerError):
    """A tokenizer that cannot represent most of the training text."""

    vocab_size: int
    unknown: float
    example: str
    hint: str = "raise tokenizer.vocab_size"
    template: ClassVar[str] = (
        "a tokenizer of {vocab_size:,} tokens leaves {unknown:.0%} of the characters unknown, "
        "e.g. in {example!r:.40}"
    )


def load_or_train_tokenizer(
    options: TokenizerOptions,
    folder: Path,
    texts: Callable[[], Iterator[Sequence[str]]],
    *,
    marks: Marks,
    tags: Callable[[], Iterable[str]] = tuple,
    base: Tokenizer | None = None,
    rebuild: bool = False,
    log: Log,
) -> Tokenizer:
    """The run's tokenizer: that of a model to fine-tune, of a folder, or one trained on the texts.

    texts: rows of one or two texts; with separate sides each column trains its own tokenizer.
    tags: special tokens for a newly trained tokenizer.
    The one in the run folder is reused unless it is to be rebuilt.
    """
    saved = folder / "tokenizer"
    if not rebuild and (saved / "tokenizer_config.json").is_file():
        found = load_tokenizer(saved)
        if found is not None:
            return found
    if base is None and options.folder is not None:
        base = load_tokenizer(options.folder)
        if base is None:
            raise FileMissingError(options.folder, "tokenizer", "correct tokenizer.folder or leave it out")
    if base is not None:
        if problem := _coverage_problem(base, texts()):
            log(f"{problem.message()}; a tokenizer trained on similar text would serve better")
    else:
        plan = TokenizerPlan(
            kind=options.kind,
            vocab_size=options.vocab_size,
            lowercase=options.lowercase,
            marks=marks,
            tags=tuple(tags()),
        )
        log(f"training a {options.kind} tokenizer of at most {plan.vocab_size:,} tokens")
        if options.sides == "separate":
            base = pair_tokenizers(*(train_tokenizer((row[n] for row in texts()), plan) for n in (0, 1)))
        else:
            base = train_tokenizer((text for row in texts() for text in row), plan)
        if problem := _coverage_problem(base, texts()):
            raise problem
    tokenizer = base
    replace_folder(saved, lambda path: tokenizer.save(path))
    return tokenizer


def _coverage_problem(tokenizer: Tokenizer, rows: Iterator[Sequence[str]]) -> VocabularyCoverageError | None:
    """An error if a vocabulary cannot represent most of the characters, on either side."""
    sides: tuple[Side, ...] = ("source", "target")
    for side, texts in zip(sides, zip(*islice(rows, COVERAGE_ROWS), strict=True), strict=False):
        sample = [text[:COVERAGE_CHARACTERS] for text in texts]
        ids = [one.ids for one in tokenizer.encode_batch(sample, special=False, side=side)]
        if not any(tokenizer.unk_id in one for one in ids):
            continue
        # by characters: one unknown token may stand for a whole word or line
        total = _count_characters(sample)
        unknown = total - _count_characters([tokenizer.decode(one, side=side) for one in ids])
        if unknown > MAX_UNKNOWN * total:
            size = tokenizer.vocab_size if side == "source" else tokenizer.target_vocab_size
            return VocabularyCoverageError(size, unknown / total, texts[0])
    return None


def _count_characters(texts: Sequence[str]) -> int:
    return sum(len("".join(text.split())) for text in texts)


class Progress:
    """Logs how many items have been read, if reading takes long. what: such as "pairs"."""

    def __init__(self, what: str, log: Log) -> None:
        self._what, self._log = what, log
        self._count, self._next = 0, time.monotonic() + PROGRESS_AFTER

    def add(self, count: int) -> None:
        self._count += count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS_EVERY
            self._log(f"reading {self._what}: {self._count:,} so far")


def group_items(items: Iterable[Item], characters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Lists of items small enough to encode at once; `characters` counts those of an item."""
    group: list[Item] = []
    size = 0
    for item in items:
        group.append(item)
        size += characters(item)
        if size >= GROUP_CHARACTERS or len(group) == GROUP_ROWS:
            yield group
            group, size = [], 0
    if group:
        yield group


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, computed in threads a few items ahead, in the items' order."""
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(THREADS, "encoding") as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(function, item)))
                if len(waiting) == GROUPS_IN_FLIGHT:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def encode_rows(
    folder: Path,
    source: Source,
    fields: Sequence[str],
    encode: Callable[[list[Row]], Sequence[Ragged]],
    *,
    max_id: int,
    max_len: int | None,
    problems: RowErrors,
    progress: Progress,
    keep_texts: int = 0,
) -> int:
    """Write rows of text as a store of ids, and the first `keep_texts` of the texts next to it.

    encode: the ids of many rows, by field; called in threads.
    max_len: rows with a longer field are skipped; their number is returned. None keeps all.
    """
    too_long, texts = 0, list[Row]()

    def blocks() -> Iterator[Sequence[Ragged]]:
        nonlocal too_long
        groups = group_items(source.rows(problems), lambda row: len(row[0]))
        for rows, encoded in map_in_order(encode, groups):
            progress.add(len(rows))
            if max_len is not None:
                fits = np.max([field.lengths for field in encoded], axis=0) <= max_len
                if not fits.all():
                    too_long += len(rows) - int(fits.sum())
                    encoded = [field.select(fits) for field in encoded]
                    rows = [row for row, fit in zip(rows, fits, strict=True) if fit]
            texts.extend(rows[: keep_texts - len(texts)])
            yield encoded

    store = write_blocks(folder, fields, blocks(), max_id=max_id)
    if not len(store):
        raise EmptyInputError(f"{folder.name} data", "raise data.max_len or provide more data")
    with atomic_write(folder / "texts.json") as file:
        file.write(json.dumps([list(row) for row in texts], ensure_ascii=False).encode())
    return too_long


def read_texts(folder: Path) -> list[list[str]]:
    """The texts that `encode_rows` kept."""
    texts: list[list[str]] = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    return texts


def token_splits(tokenizer: Tokenizer, *, side: Side = "source") -> NDArray[np.int64]:
    """For BPE dropout: the two tokens each token can be split into, (V, 2), or NO_SPLIT twice.

    Special tokens stay whole.

    >>> from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
    >>> tokenizer = train_tokenizer(["ab ab"], TokenizerPlan(vocab_size=50))
    >>> found = token_splits(tokenizer)
    >>> [tokenizer.tokens(found[n]) for n in tokenizer.encode_ids(["ab"])[0] if found[n, 0] != NO_SPLIT]
    [['▁', 'ab']]
    """
    size = tokenizer.vocab_size if side == "source" else tokenizer.target_vocab_size
    unsplittable = tokenizer.special_ids | tokenizer.unknown_ids
    table = split_table(tokenizer.tokens(range(size), side=side), unsplittable)
    for number, parts in enumerate(table.tolist()):
        # the same spelling may decode differently if a vocabulary marks word-internal parts or single bytes
        if NO_SPLIT not in parts and tokenizer.decode([number], side=side) != tokenizer.decode(
            parts, side=side
        ):
            table[number] = NO_SPLIT
    if (table == NO_SPLIT).all():
        raise UnsupportedError(
            f"the {side} tokenizer", "data.bpe_dropout", "set it to 0, or use tokenizer.kind bpe"
        )
    return table

"""Encode texts in parallel, in groups of rows or pieces of documents, with a trained or loaded tokenizer."""

from __future__ import annotations

import json
import time
import unicodedata
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from glassformer.data.bpe_dropout import NO_SPLIT, split_table
from glassformer.data.squad import GoldAnswers
from glassformer.data.store import Chunk, Ragged, Store, write_blocks
from glassformer.errors import (
    EmptyInputError,
    FileMissingError,
    InvalidValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.messages import plural
from glassformer.tasks.token_classification import trim_offsets
from glassformer.tokenization import Encoded as EncodedText
from glassformer.tokenization import Side, Tokenizer, load_tokenizer, pair_tokenizers
from glassformer.tokenization.train import Template, TokenizerPlan, train_tokenizer
from glassformer.training.data_cache import Log
from glassformer.training.recipe import TokenizerOptions
from glassformer.weights.atomic_write import write_file

Row = tuple[str, ...]
Encoded = tuple[Sequence[Ragged], Mapping[Any, int]]  # the fields of many rows, and what was counted in them
Item = TypeVar("Item")
Result = TypeVar("Result")

GROUP_ROWS = 8192  # maximum number of rows encoded at once,
GROUP_CHARACTERS = 1 << 21  # or this many characters
THREADS = 2  # one call of tokenizers uses all cores already; a second thread fills the pauses between calls
GROUPS_IN_FLIGHT = 4
PROGRESS_AFTER, PROGRESS_EVERY = 3.0, 10.0  # seconds
COVERAGE_ROWS, COVERAGE_CHARACTERS = 2000, 10_000  # sample for checking the coverage of a vocabulary
SPACELESS = ("CJK", "HIRAGANA", "KATAKANA")  # scripts in which any character may start a word
NO_LABEL = 0  # in the store, of special tokens and of all but the first token of a word
NO_ANSWER = 0  # token that a window without the answer points to: the first one, [CLS]
TEXTS = "texts.json"  # in the folder of a split
MAX_UNKNOWN = 0.5  # fraction of unknown characters above which there is nothing to learn


def max_id(tokenizer: Tokenizer) -> int:
    """Return the largest id of the source and target vocabularies."""
    return max(tokenizer.vocab_size, tokenizer.target_vocab_size) - 1


def eos_id(tokenizer: Tokenizer) -> int:
    if tokenizer.eos_id is None:
        raise UnsupportedError("the tokenizer", "generation, since it has no end token")
    return tokenizer.eos_id


def load_or_train_tokenizer(
    options: TokenizerOptions,
    texts: Callable[[], Iterator[Sequence[str]]],
    *,
    template: Template,
    tags: Callable[[], Iterable[str]] = tuple,
    base: Tokenizer | None = None,
    log: Log,
) -> Tokenizer:
    """Return the tokenizer of the base model, load one from a folder, or train one on the texts.

    texts: rows of one or two texts; with separate vocabularies, one tokenizer is trained per column.
    tags: additional special tokens for a newly trained tokenizer. base: tokenizer of the base model.
    """
    if base is None and options.folder is not None:
        base = load_tokenizer(options.folder)
        if base is None:
            raise FileMissingError(options.folder, "tokenizer", "correct tokenizer.folder or leave it out")
    if base is not None:
        if (unknown := unknown_fraction(base, texts())) > MAX_UNKNOWN:
            log(f"the tokenizer does not know {unknown:.0%} of the characters; train one on similar text")
        return base
    kind, size = options.kind, options.vocab_size
    plan = TokenizerPlan(
        kind=kind, vocab_size=size, lowercase=options.lowercase, template=template, tags=tuple(tags())
    )
    log(f"training a {kind} tokenizer of at most {size:,} tokens")
    if options.separate_vocabs:
        trained = pair_tokenizers(*(train_tokenizer((row[n] for row in texts()), plan) for n in (0, 1)))
    else:
        trained = train_tokenizer((text for row in texts() for text in row), plan)
    if (unknown := unknown_fraction(trained, texts())) > MAX_UNKNOWN:
        expected = f"a larger size, since {unknown:.0%} of the characters would be unknown"
        raise InvalidValueError("tokenizer.vocab_size", size, expected)
    return trained


def unknown_fraction(tokenizer: Tokenizer, rows: Iterator[Sequence[str]]) -> float:
    """Return the fraction of characters unknown to a tokenizer, for the side where it is larger.

    Characters are counted, since one unknown token may replace a long word or line.
    """
    worst = 0.0
    sides: tuple[Side, ...] = ("source", "target")
    for side, texts in zip(sides, zip(*islice(rows, COVERAGE_ROWS), strict=True), strict=False):
        sample = [text[:COVERAGE_CHARACTERS] for text in texts]
        ids = [encoding.ids for encoding in tokenizer.encode_batch(sample, special=False, side=side)]
        if any(tokenizer.unk_id in row for row in ids):
            total = sum(len("".join(text.split())) for text in sample)
            known = sum(len("".join(tokenizer.decode(row, side=side).split())) for row in ids)
            worst = max(worst, 1 - known / max(total, 1))
    return worst


class Progress:
    """Log how many items have been read, if reading takes long. what: their name, e.g. "pairs"."""

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
    """Group items into lists small enough to encode at once; `characters` returns the length of an item."""
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
    """Yield each item with its result, in order; results are computed in threads, a few items ahead."""
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
    job: Any,
    folder: Path,
    items: Iterable[Row],
    fields: Sequence[str],
    encode: Callable[[list[Row]], Encoded],
    *,
    max_id: int,
    max_len: int | None = None,
) -> Counter[Any]:
    """Encode rows of text, write a store of token ids, and save the first texts for validation.

    encode: returns the fields of many rows, and counts; called in threads.
    max_len: rows with a longer field are skipped and counted as `too_long`; None keeps all.
    job: the `TextJob`. Returns the sum of the counts.
    """
    counts, texts = Counter[Any](), list[Row]()
    progress = Progress(plural(job.source_row or job.row, 2), job.log)
    limit = job.num_texts

    def blocks() -> Iterator[Sequence[Ragged]]:
        groups = group_items(items, lambda row: len(row[0]))
        for rows, (encoded, counted) in map_in_order(encode, groups):
            progress.add(len(rows))
            counts.update(counted)
            if max_len is not None:
                fits = np.max([field.lengths for field in encoded], axis=0) <= max_len
                if not fits.all():
                    counts["too_long"] += len(rows) - int(fits.sum())
                    encoded = [field.select(fits) for field in encoded]
                    rows = [row for row, fit in zip(rows, fits, strict=True) if fit]
            texts.extend(rows[: limit - len(texts)])
            yield encoded

    store = write_blocks(folder, fields, blocks(), max_id=max_id)
    if not len(store):
        raise EmptyInputError(f"{folder.name} data", "raise data.max_len or provide more data")
    write_file(folder / TEXTS, json.dumps([list(row) for row in texts], ensure_ascii=False).encode())
    return counts


class DocumentEncoder:
    """Encode pieces of documents, and append the end token to each document.

    A document starts with the BOS token if the tokenizer adds one. `characters` and `bytes` count the text
    encoded so far that is predicted, i.e. without the first token of each document.
    """

    def __init__(self, tokenizer: Tokenizer, *, end: int, progress: Progress) -> None:
        self.tokenizer, self.end, self.progress = tokenizer, end, progress
        adds_bos = tokenizer.bos_id is not None and tokenizer.encode("a").ids[:1] == [tokenizer.bos_id]
        self.prefix = [tokenizer.bos_id] if adds_bos and tokenizer.bos_id is not None else []
        self.characters = self.bytes = 0

    def parts(self, pieces: Iterable[tuple[int, str]]) -> Iterator[tuple[Chunk]]:
        """Yield the ids of all documents in chunks. pieces: texts with the numbers of their documents."""
        document = None  # number of the current document

        def encode(group: list[tuple[int, str]]) -> list[tuple[list[int], int]]:
            return self.tokenizer.encode_ids_with_first_end([text for _, text in group])

        for group, encoded in map_in_order(encode, group_items(pieces, lambda piece: len(piece[1]))):
            ids: list[int] = []
            ends: list[int] = []
            for (number, text), (text_ids, first_end) in zip(group, encoded, strict=True):
                self._count(text)
                if number != document:
                    if document is not None:
                        ids.append(self.end)
                        ends.append(len(ids))
                    ids += self.prefix
                    if not self.prefix:
                        self._count(text[:first_end], -1)
                    document = number
                ids += text_ids
            self.progress.add(sum(len(text) for _, text in group))
            yield (_part(ids, ends),)
        if document is not None:
            yield (_part([self.end], [1]),)

    def _count(self, text: str, sign: int = 1) -> None:
        self.characters += sign * len(text)
        self.bytes += sign * len(text.encode())


def _part(ids: list[int], ends: list[int]) -> Chunk:
    return Chunk(ids=np.array(ids, np.int64), ends=np.array(ends, np.int64))


def sample_prompts(store: Store, count: int, *, max_tokens: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield up to `count` prompts spread over a text, each with the tokens that follow it.

    max_tokens: maximum length of a prompt, and of its continuation.
    """
    ids, ends = store.concatenated("text")
    starts: set[int] = set()
    for n in range(count):
        start = n * len(ids) // count
        document = int(np.searchsorted(ends, start, side="right"))
        first, end = int(ends[document - 1]) if document else 0, int(ends[document])
        start = max(first, min(start, end - 2 * max_tokens)) if end - first > 2 * max_tokens else first
        cut = start + min(max_tokens, max(1, (end - start) // 2))
        if start not in starts and cut < end:
            starts.add(start)
            yield ids[start:cut].tolist(), ids[cut : min(cut + max_tokens, end)].tolist()


def token_splits(tokenizer: Tokenizer, *, side: Side = "source") -> NDArray[np.int64]:
    """Return the two tokens each token can be split into by BPE dropout, (V, 2), or NO_SPLIT twice.

    Special tokens are never split.

    >>> from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
    >>> tokenizer = train_tokenizer(["ab ab"], TokenizerPlan(vocab_size=50))
    >>> splits = token_splits(tokenizer)
    >>> [tokenizer.tokens(splits[n]) for n in tokenizer.encode_ids(["ab"])[0] if splits[n, 0] != NO_SPLIT]
    [['▁', 'ab']]
    """
    size = tokenizer.vocab_size if side == "source" else tokenizer.target_vocab_size
    unsplittable = tokenizer.special_ids | tokenizer.unknown_ids
    table = split_table(tokenizer.tokens(range(size), side=side), unsplittable)
    for number, parts in enumerate(table.tolist()):
        # the same spelling may decode differently if a vocabulary marks word-internal tokens or single bytes
        if NO_SPLIT not in parts and tokenizer.decode([number], side=side) != tokenizer.decode(
            parts, side=side
        ):
            table[number] = NO_SPLIT
    if (table == NO_SPLIT).all():
        raise UnsupportedError(
            f"the {side} tokenizer", "data.bpe_dropout", "set it to 0, or use tokenizer.kind bpe"
        )
    return table


def word_starts(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return whether each token starts a word, (V,): with a space, or in a script without spaces."""
    starts = np.zeros(tokenizer.vocab_size, bool)
    for index in range(len(starts)):
        if index not in tokenizer.special_ids:
            (piece,) = tokenizer.pieces([index])
            name = unicodedata.name(piece[:1] or " ", "")
            starts[index] = piece.startswith(" ") or name.startswith(SPACELESS)
    unknown = tokenizer.unk_id
    if unknown is not None:  # an unknown word is one token, which includes its space
        starts[unknown] = tokenizer.encode(" \ue000\ue000", special=False).ids == [unknown]
    return starts


def token_labels(
    encoded: EncodedText, text: str, words: Sequence[str], tags: Sequence[str], numbers: Mapping[str, int]
) -> list[int]:
    """Return the tag number + 1 of the first token of each word, and NO_LABEL for other tokens.

    text: the words joined by spaces, which was encoded. numbers: the number of each tag.
    """
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    labels, before = list[int](), -1
    for sequence, (start, end) in zip(encoded.sequence_ids, encoded.offsets, strict=True):
        start, end = trim_offsets(text, start, end)
        word = -1 if sequence is None or start == end else bisect_right(starts, start) - 1
        if word > before:
            if tags[word] not in numbers:
                hint = "every tag needs examples in the training data"
                raise UnknownNameError("tag", tags[word], numbers, hint, where="the validation data")
            labels.append(numbers[tags[word]] + 1)
            before = word
        else:
            labels.append(NO_LABEL)
    return labels


def answer_tokens(window: EncodedText, answers: GoldAnswers) -> list[int]:
    """Return the first and the last token of the first answer that lies in a window, else NO_ANSWER twice."""
    context = [n for n, sequence in enumerate(window.sequence_ids) if sequence == 1]
    first, last = window.offsets[context[0]][0], window.offsets[context[-1]][1]
    for text, start in zip(answers.texts[:1], answers.starts, strict=False):
        end = start + len(text)
        if first <= start and end <= last:
            inside = [n for n in context if window.offsets[n][1] > start and window.offsets[n][0] < end]
            if inside:
                return [inside[0], inside[-1]]
    return [NO_ANSWER, NO_ANSWER]

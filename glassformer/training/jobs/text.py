"""Shared code of the text jobs: tokenizer training, parallel encoding, the data cache and the model."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from glassformer import baselines
from glassformer.bundle import Bundle, build_from_spec
from glassformer.core.heads import LanguageModelHead
from glassformer.data.bpe_dropout import NO_SPLIT, split_table
from glassformer.data.readers import Column
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, Stamp
from glassformer.data.split import split_source
from glassformer.data.store import Ragged, Store, write_blocks
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    FileMissingError,
    InvalidValueError,
    MissingValueError,
    UnsupportedError,
)
from glassformer.families.sidecars import JobInfo
from glassformer.pretrained import model_folder
from glassformer.tokenization import Side, Tokenizer, load_tokenizer, pair_tokenizers
from glassformer.tokenization.folder import fingerprint
from glassformer.tokenization.train import Template, TokenizerPlan, train_tokenizer
from glassformer.training.checkpoint import replace_folder
from glassformer.training.data_cache import DataCache, Log
from glassformer.training.jobs.base import Job
from glassformer.training.model_setup import new_model_spec
from glassformer.training.recipe import TokenizerOptions
from glassformer.weights.atomic_write import atomic_write

Row = tuple[str, ...]
Item = TypeVar("Item")
Result = TypeVar("Result")
# Encodes one split, writes it to a folder, and returns notes to cache.
WriteSplit = Callable[[Tokenizer, Path, Source, RowErrors], dict[str, Any]]

GROUP_ROWS = 8192  # maximum number of rows encoded at once,
GROUP_CHARACTERS = 1 << 21  # or this many characters
THREADS = 2  # one call of tokenizers uses all cores already; a second thread fills the pauses between calls
GROUPS_IN_FLIGHT = 4
PROGRESS_AFTER, PROGRESS_EVERY = 3.0, 10.0  # seconds
COVERAGE_ROWS, COVERAGE_CHARACTERS = 2000, 10_000  # sample for checking the coverage of a vocabulary
MAX_UNKNOWN = 0.5  # fraction of unknown characters above which there is nothing to learn


@dataclass(frozen=True, kw_only=True)
class TextCorpus:
    """A tokenizer and the encoded training and validation data.

    notes: the notes that `WriteSplit` returned for "train" and "valid"; if both are the same data, only for
    "valid".
    data_columns: column of the training table that each field is read from; None for plain text.
    """

    tokenizer: Tokenizer
    train: Store
    valid: Store
    notes: Mapping[str, Mapping[str, Any]]
    data_columns: Mapping[str, Column] | None = None

    @property
    def max_id(self) -> int:
        return max_id(self.tokenizer)

    @property
    def eos_id(self) -> int:
        return eos_id(self.tokenizer)

    @property
    def pad_id(self) -> int:
        """The padding token, or the end token if there is none."""
        return self.eos_id if self.tokenizer.pad_id is None else self.tokenizer.pad_id

    @property
    def train_notes(self) -> Mapping[str, Any]:
        return self.notes.get("train", self.notes["valid"])

    def total(self, note: str) -> int:
        """Return the sum of a note over the splits."""
        return sum(split[note] for split in self.notes.values())


def max_id(tokenizer: Tokenizer) -> int:
    """Return the largest id of the source and target vocabularies."""
    return max(tokenizer.vocab_size, tokenizer.target_vocab_size) - 1


def eos_id(tokenizer: Tokenizer) -> int:
    if tokenizer.eos_id is None:
        raise UnsupportedError("the tokenizer", "generation, since it has no end token")
    return tokenizer.eos_id


def prepare_corpus(
    job: Job[Any],
    read: Callable[[Sequence[str]], Source],
    write: WriteSplit,
    *,
    template: Template,
    tags: Callable[[Source], Iterable[str]] = lambda _: (),
    texts: Callable[[Row], Sequence[str]] = lambda row: row,
    cache_key: tuple[object, ...] = (),
) -> TextCorpus:
    """Train or load the tokenizer and encode both splits, or load them from the cache.

    read: opens files. write: encodes one split. template: special tokens to add to a text.
    tags: additional special tokens for a newly trained tokenizer.
    texts: returns the texts of a row, to train the tokenizer on.
    cache_key: settings that the encoded data depends on, besides the files and the tokenizer settings.
    """
    options, base_folder, data = job.recipe.tokenizer, job.recipe.model.folder, job.data
    if job.base is not None and job.base.tokenizer is None and options.folder is None:
        raise MissingValueError("tokenizer.folder", f"since '{base_folder}' has no tokenizer")
    train = read(data.train)
    data_columns = train.columns_by_field
    if isinstance(data.valid, float):
        train, valid = split_source(train, data.valid, seed=job.recipe.seed)
    else:
        valid = train if data.valid == data.train else read(data.valid)

    def fingerprints(stamp: Stamp) -> tuple[object, ...]:
        return train.fingerprint(stamp), valid.fingerprint(stamp), *cache_key, repr(options), base_folder

    vocabularies = {
        name: known
        for name, path in (("tokenizer", options.folder), ("model", base_folder))
        if path is not None and (known := fingerprint(model_folder(path)))
    }
    own = job.folder / "tokenizer"
    cache = DataCache(
        job.folder / "data",
        fingerprints,
        extra={**vocabularies, "own": fingerprint(own) or "none"},
        what="the data, its tokenizer or its settings",
    )
    notes = cache.load(job.log)
    if notes is None:
        cache.start()
    tokenizer = None
    if (notes is not None or cache.damaged) and own.is_dir():
        tokenizer = load_tokenizer(own)
    if tokenizer is None:
        tokenizer = load_or_train_tokenizer(
            options,
            lambda: (texts(row) for row in train.rows(RowErrors())),
            template=template,
            tags=lambda: tags(train),
            base=job.base.tokenizer if job.base else None,
            log=job.log,
        )
        replace_folder(own, tokenizer.save)
    if notes is None:
        cache.extra["own"] = fingerprint(own) or "none"
        problems = RowErrors()
        splits = {"valid": valid} if valid is train else {"train": train, "valid": valid}
        split_notes = {
            name: write(tokenizer, cache.folder / name, source, problems) for name, source in splits.items()
        }
        notes = cache.commit(bad=problems.summary(), **split_notes)
    if notes["bad"]:
        job.facts["skipped"] = notes["bad"]
        job.log(notes["bad"])
    valid_store = Store(cache.folder / "valid")
    return TextCorpus(
        tokenizer=tokenizer,
        train=Store(cache.folder / "train") if "train" in notes else valid_store,
        valid=valid_store,
        notes={name: notes[name] for name in ("train", "valid") if name in notes},
        data_columns=data_columns,
    )


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
    job: Job[Any],
    folder: Path,
    items: Iterable[Row],
    fields: Sequence[str],
    encode: Callable[[list[Row]], Sequence[Ragged]],
    *,
    what: str,
    max_id: int,
    max_len: int | None = None,
) -> int:
    """Encode rows of text, write a store of token ids, and save the first texts for validation.

    encode: returns the ids of many rows, by field; called in threads. what: name of the rows, for the log.
    max_len: rows with a longer field are skipped; None keeps all. Returns the number of skipped rows.
    """
    too_long, texts = 0, list[Row]()
    progress, keep_texts = Progress(what, job.log), job.recipe.training.max_generate_samples

    def blocks() -> Iterator[Sequence[Ragged]]:
        nonlocal too_long
        groups = group_items(items, lambda row: len(row[0]))
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
    """Read the texts that `encode_rows` saved."""
    texts: list[list[str]] = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    return texts


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


def log_counts(job: Job[Any], corpus: TextCorpus, what: str, too_long: int = 0) -> None:
    """Log the number of rows, and how many were too long. what: name of the rows, e.g. "pairs"."""
    train, valid = len(corpus.train), len(corpus.valid)
    job.facts |= {f"training {what}": train, f"validation {what}": valid}
    job.log(f"{train:,} {what} for training, {valid:,} for validation")
    if too_long:
        job.facts[f"{what} over max_len"] = too_long
        job.log(f"skipped {too_long:,} {what} longer than {job.max_len} tokens")


def build_text_bundle(
    job: Job[Any],
    corpus: TextCorpus,
    *,
    overrides: Callable[[], Mapping[str, Any]],
    lstm: tuple[str, Mapping[str, Any]],
    start_id: int | None = None,
    info: Mapping[str, Any] | None = None,
) -> Bundle:
    """Build or load the recipe's model with its tokenizer, as it will be saved.

    overrides: returns options of a new Transformer that depend on the data; lstm: kind and options of the
    LSTM baseline.
    start_id: the decoder start token. info: more entries of `job.json`.
    """
    options, tokenizer, base = job.recipe.model, corpus.tokenizer, job.base
    job_info = JobInfo.from_dict({"job": job.recipe.job, "data_columns": corpus.data_columns, **(info or {})})
    generation = {"eos_token_id": corpus.eos_id, "pad_token_id": corpus.pad_id}
    if start_id is not None:
        generation = {"decoder_start_token_id": start_id, **generation}
    if base is not None:
        head = base.model.head
        if not isinstance(head, LanguageModelHead):
            raise job.unsupported_model("use a model that generates text")
        check_vocabulary(corpus, len(head.weight))
        return replace(base, tokenizer=tokenizer, generation=base.generation or generation, job=job_info)
    model: Any
    if options.preset == "lstm":
        kind, fixed = lstm
        model = baselines.build_baseline(baselines.lstm_spec(kind, options.overrides, **fixed))
    else:
        model = build_from_spec(new_model_spec(options, overrides()))
    return Bundle(model=model, tokenizer=tokenizer, generation=generation, job=job_info)


def check_vocabulary(corpus: TextCorpus, vocab_size: int) -> None:
    """Reject a tokenizer with more tokens than the base model has embeddings."""
    if corpus.max_id >= vocab_size:
        raise ConflictError(
            ("tokenizer", "model.folder"),
            f"the tokenizer has {corpus.max_id + 1:,} tokens and the model only {vocab_size:,}",
            "use the tokenizer it was trained with",
        )

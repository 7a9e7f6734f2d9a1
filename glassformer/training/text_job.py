"""The base of jobs that train on texts: a tokenizer, parallel encoding, and the data cache.

Rows of text are read from a source, encoded by `TextJob.encode` in threads, and stored as token ids, once per
run. A job says how to open files, how to encode rows, and what the examples of a store are.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from glassformer import baselines
from glassformer.bundle import Bundle, build_from_spec
from glassformer.core.heads import LanguageModelHead
from glassformer.data.bpe_dropout import BpeDropout
from glassformer.data.examples import Examples
from glassformer.data.readers import Column
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, Stamp, TableSource
from glassformer.data.split import split_source
from glassformer.data.store import Store
from glassformer.errors import (
    ConflictError,
    MissingValueError,
)
from glassformer.families.sidecars import JobInfo
from glassformer.messages import plural, quantity
from glassformer.pretrained import model_folder
from glassformer.tokenization import Side, Tokenizer, load_tokenizer
from glassformer.tokenization.folder import fingerprint
from glassformer.tokenization.train import Template
from glassformer.training.checkpoint import replace_folder
from glassformer.training.data_cache import DataCache
from glassformer.training.encoding import (
    TEXTS,
    Encoded,
    Row,
    encode_rows,
    eos_id,
    load_or_train_tokenizer,
    max_id,
    token_splits,
)
from glassformer.training.job import Data, Job
from glassformer.training.model_setup import new_model_spec


@dataclass(frozen=True, kw_only=True)
class TextCorpus:
    """A tokenizer and the encoded training and validation data.

    notes: the notes of the job about "train" and "valid"; if both are the same data, only about "valid".
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
        return sum(split.get(note, 0) for split in self.notes.values())


class TextJob(Job[Data]):
    """A job whose examples are encoded texts.

    fields: names of the fields of the store.
    row: what an example is, for the log. source_row: what a row of the files is. truncates: what is truncated
    if it is longer than `data.max_len`. skips_long: whether rows with a longer field are skipped.
    text_cost: time to generate a text in a validation, relative to a training step on it.
    """

    template: ClassVar[Template]
    fields: tuple[str, ...] = ("text",)
    row: ClassVar[str] = "text"
    source_row: ClassVar[str] = ""
    truncates: ClassVar[str] = "text"
    skips_long = False
    text_cost: ClassVar[float] = 0.0
    corpus: TextCorpus

    @abstractmethod
    def open_files(self, files: Sequence[str]) -> Source:
        """Open the files of a split."""

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        """Return the fields of rows, and counts for the notes; called in threads."""

    @abstractmethod
    def examples(self, store: Store, *, augment: bool = False) -> Examples:
        """Return the examples of a store. augment: as the recipe specifies, for training."""

    @property
    def cache_key(self) -> tuple[object, ...]:
        """Settings that the encoded data depends on, besides the files and the tokenizer settings."""
        return self.max_len, self.num_texts

    @property
    def num_texts(self) -> int:
        """Maximum number of validation rows that are kept as text."""
        return self.recipe.training.max_generate_samples

    @property
    def validation_cost(self) -> float:
        return super().validation_cost + self.text_cost * min(1, self.num_texts / len(self.valid_examples()))

    def texts(self, row: Row) -> Sequence[str]:
        """Return the texts of a row, to train the tokenizer on."""
        return row

    def tags(self, train: Source) -> Iterable[str]:
        """Return additional special tokens for a newly trained tokenizer."""
        return ()

    def max_value(self) -> int:
        """Return the largest number in the store that is not a token id."""
        return 0

    def write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        """Encode one split, write it to a folder, and return notes to cache."""
        counts = encode_rows(
            self,
            folder,
            source.rows(problems),
            self.fields,
            lambda rows: self.encode(tokenizer, rows),
            max_id=max(max_id(tokenizer), self.max_value()),
            max_len=self.max_len if self.skips_long else None,
        )
        return self.notes(counts)

    def notes(self, counts: Counter[Any]) -> dict[str, Any]:
        """Return the notes about a split. counts: what `encode` counted."""
        return dict(counts)

    def prepare_data(self) -> None:
        self.fill_max_len()
        self.corpus = prepare_corpus(self)
        self.log_data()

    def log_data(self) -> None:
        """Log the number of examples, and how many were skipped or truncated because of their length."""
        corpus, rows = self.corpus, plural(self.row, 2)
        self.log_counts(self.row, len(corpus.train), len(corpus.valid))
        too_long = corpus.total("too_long")
        if self.skips_long and too_long:
            self.facts[f"{rows} over max_len"] = too_long
            self.log(f"skipped {quantity(too_long, self.row)} longer than {self.max_len} tokens")
        if truncated := corpus.total("truncated"):
            self.facts[f"truncated {plural(self.truncates, 2)}"] = truncated
            self.log(f"truncated {quantity(truncated, self.truncates)} longer than {self.max_len} tokens")

    def log_columns(self, files: Sequence[str], source: Source) -> None:
        """Log which columns of the training tables are read, if others are not."""
        if files != self.data.train or not isinstance(source, TableSource):
            return
        if source.note or (getattr(self.data, "columns", None) is None and source.unused_columns):
            self.log(source.column_summary)

    def train_examples(self) -> Examples:
        return self.examples(self.corpus.train, augment=True)

    def valid_examples(self) -> Examples:
        return self.examples(self.corpus.valid)

    def valid_texts(self) -> list[list[str]]:
        """Return the rows of the first validation examples, as many as are decoded."""
        texts: list[list[str]] = json.loads((self.corpus.valid.folder / TEXTS).read_text(encoding="utf-8"))
        return texts

    def bpe_dropout(self, side: Side = "source", seed: int = 0) -> BpeDropout:
        """Return the BPE dropout of the recipe. seed: added to that of the recipe."""
        section: Any = self.data
        splits = token_splits(self.corpus.tokenizer, side=side)
        seed += self.recipe.seed
        return BpeDropout(splits, section.bpe_dropout, max_length=self.max_len, seed=seed)


def prepare_corpus(job: TextJob[Any]) -> TextCorpus:
    """Train or load the tokenizer and encode both splits, or load them from the cache."""
    options, base_folder, data = job.recipe.tokenizer, job.recipe.model.folder, job.data
    if job.base is not None and job.base.tokenizer is None and options.folder is None:
        raise MissingValueError("tokenizer.folder", f"since '{base_folder}' has no tokenizer")
    train = job.open_files(data.train)
    data_columns = train.columns_by_field
    if isinstance(data.valid, float):
        train, valid = split_source(train, data.valid, seed=job.recipe.seed)
    else:
        valid = train if data.valid == data.train else job.open_files(data.valid)

    def fingerprints(stamp: Stamp) -> tuple[object, ...]:
        return train.fingerprint(stamp), valid.fingerprint(stamp), *job.cache_key, repr(options), base_folder

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
            lambda: (job.texts(row) for row in train.rows(RowErrors())),
            template=job.template,
            tags=lambda: job.tags(train),
            base=job.base.tokenizer if job.base else None,
            log=job.log,
        )
        replace_folder(own, tokenizer.save)
    if notes is None:
        cache.extra["own"] = fingerprint(own) or "none"
        problems = RowErrors()
        splits = {"valid": valid} if valid is train else {"train": train, "valid": valid}
        split_notes = {
            name: job.write(tokenizer, cache.folder / name, source, problems)
            for name, source in splits.items()
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


def build_text_bundle(
    job: TextJob[Any],
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
    options, corpus, base = job.recipe.model, job.corpus, job.base
    tokenizer = corpus.tokenizer
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

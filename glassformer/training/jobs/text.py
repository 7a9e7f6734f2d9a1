"""What text jobs are composed of: a corpus (tokenizer and encoded stores) and a model with that tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from glassformer import baselines
from glassformer.bundle import Bundle, build_model
from glassformer.core.heads import LanguageModelHead
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, Stamp
from glassformer.data.store import Store
from glassformer.errors import ConflictError, MissingValueError, UnsupportedError
from glassformer.families.sidecars import JobInfo
from glassformer.pretrained import BEST, MODEL, result_of
from glassformer.tokenization import Tokenizer
from glassformer.tokenization.folder import fingerprint, vocabulary_files
from glassformer.tokenization.train import Marks
from glassformer.training.data_cache import DataCache
from glassformer.training.jobs.base import Job
from glassformer.training.model_folders import replace_folder
from glassformer.training.model_setup import fresh_spec
from glassformer.training.text_encoding import load_or_train_tokenizer

# Writes one split into a folder as token ids, and returns notes to remember.
WriteSplit = Callable[[Tokenizer, Path, Source, RowErrors], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TextCorpus:
    """A tokenizer and the encoded training and validation data.

    notes: what `WriteSplit` returned for "train" and "valid"; if both are the same data, only for "valid".
    """

    tokenizer: Tokenizer
    train: Store
    valid: Store
    notes: Mapping[str, Mapping[str, Any]]

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

    def total(self, note: str) -> int:
        """The sum of a note over the splits."""
        return sum(split[note] for split in self.notes.values())


def max_id(tokenizer: Tokenizer) -> int:
    """The largest id of either side."""
    return max(tokenizer.vocab_size, tokenizer.target_vocab_size) - 1


def eos_id(tokenizer: Tokenizer) -> int:
    if tokenizer.eos_id is None:
        raise UnsupportedError("the tokenizer", "generation, since it has no end token")
    return tokenizer.eos_id


def prepare_corpus(
    job: Job,
    train: Source,
    valid: Source,
    write: WriteSplit,
    *,
    cache_key: tuple[object, ...],
    marks: Marks,
    tags: Callable[[], Iterable[str]] = tuple,
    text_columns: int | None = None,
) -> TextCorpus:
    """Train or load the tokenizer and encode both splits, or load them from the cache.

    cache_key: settings that the encoded data depends on, besides the files and the tokenizer's.
    text_columns: number of leading columns that train the tokenizer; None is all.
    """
    options, base_folder, folder, log = job.recipe.tokenizer, job.recipe.model.folder, job.folder, job.log
    if job.base is not None and job.base.tokenizer is None and options.folder is None:
        raise MissingValueError("tokenizer.folder", f"since '{base_folder}' has no tokenizer")

    def fingerprints(stamp: Stamp) -> tuple[object, ...]:
        return train.fingerprint(stamp), valid.fingerprint(stamp), *cache_key, repr(options), base_folder

    vocabularies = {
        name: known
        for name, path in (("tokenizer", options.folder), ("model", base_folder))
        if path is not None and (known := fingerprint(result_of(path)))
    }
    own = folder / "tokenizer"
    cache = DataCache(
        folder / "data", fingerprints, extra={**vocabularies, "own": fingerprint(own) or "none"}
    )
    before = cache.recorded("own")
    if before is not None and before != cache.extra["own"] and _restore_tokenizer(job, own, before):
        cache.extra["own"] = before
    notes = cache.load(log)
    if notes is None:
        cache.begin()
    tokenizer = load_or_train_tokenizer(
        options,
        folder,
        lambda: (row[:text_columns] for row in train.rows(RowErrors())),
        marks=marks,
        tags=tags,
        base=job.base.tokenizer if job.base else None,
        rebuild=notes is None and not cache.damaged,
        log=log,
    )
    if notes is None:
        cache.extra["own"] = fingerprint(own) or "none"
        problems = RowErrors()
        splits = {"valid": valid} if valid is train else {"train": train, "valid": valid}
        written = {
            name: write(tokenizer, cache.folder / name, source, problems) for name, source in splits.items()
        }
        notes = cache.commit(bad=problems.summary(), **written)
    if notes["bad"]:
        job.facts["skipped rows"] = notes["bad"]
        log(notes["bad"])
    valid_store = Store(cache.folder / "valid")
    return TextCorpus(
        tokenizer=tokenizer,
        train=Store(cache.folder / "train") if "train" in notes else valid_store,
        valid=valid_store,
        notes={name: notes[name] for name in ("train", "valid") if name in notes},
    )


def _restore_tokenizer(job: Job, own: Path, expected: str) -> bool:
    """Restore a damaged tokenizer from a model that the run saved, if one has it."""
    for name in (BEST, MODEL):
        saved = job.folder / name
        if fingerprint(saved) == expected:
            replace_folder(own, partial(_copy_files, vocabulary_files(saved)))
            job.log(f"{own} was damaged or changed; restored it from {saved}")
            return True
    return False


def _copy_files(files: Iterable[Path], folder: Path) -> None:
    folder.mkdir()
    for file in files:
        shutil.copyfile(file, folder / file.name)


def log_counts(job: Job, corpus: TextCorpus, what: str, too_long: int = 0, max_len: int = 0) -> None:
    """Log the number of rows, and how many were too long."""
    train, valid = len(corpus.train), len(corpus.valid)
    job.facts |= {f"training {what}": train, f"validation {what}": valid}
    job.log(f"{train:,} {what} for training, {valid:,} for validation")
    if too_long:
        job.facts[f"{what} over max_len"] = too_long
        job.log(f"skipped {too_long:,} {what} longer than {max_len} tokens")


def build_text_bundle(
    job: Job,
    corpus: TextCorpus,
    *,
    overrides: Callable[[], Mapping[str, Any]],
    lstm: tuple[str, Mapping[str, Any]],
    generation: dict[str, Any],
    info: Mapping[str, Any] | None = None,
) -> Bundle:
    """The recipe's language model with its tokenizer, as it will be saved.

    overrides: settings of a new Transformer that the data determines; lstm: kind and settings of the
        baseline.
    info: further entries of `job.json`.
    """
    options, tokenizer, base = job.recipe.model, corpus.tokenizer, job.base
    job_info = JobInfo.from_dict({"job": job.recipe.job, **(info or {})})
    if base is not None:
        head = base.model.head
        if not isinstance(head, LanguageModelHead):
            raise UnsupportedError(f"the model in '{options.folder}'", "generating text")
        check_vocabulary(job, corpus, len(head.weight))
        return replace(
            base,
            tokenizer=tokenizer,
            generation=base.generation or generation,
            job=job_info,
        )
    model: Any
    if options.preset == "lstm":
        kind, fixed = lstm
        model = baselines.build_baseline(baselines.lstm_spec(kind, options.overrides, **fixed))
    else:
        model = build_model(fresh_spec(options, overrides()))
    return Bundle(model=model, tokenizer=tokenizer, generation=generation, job=job_info)


def check_vocabulary(job: Job, corpus: TextCorpus, vocab_size: int) -> None:
    """Reject a tokenizer with more tokens than the base model has embeddings."""
    if corpus.max_id >= vocab_size:
        raise ConflictError(
            ("tokenizer", "model.folder"),
            f"the tokenizer has {corpus.max_id + 1:,} tokens and the model only {vocab_size:,}",
            "use the tokenizer it was trained with",
        )

"""What the jobs on text share: one tokenizer, ids on disk, and a model that is fresh or gone on from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from glassformer import baselines
from glassformer.bundle import Bundle, build_model
from glassformer.core.heads import LanguageModelHead
from glassformer.data.problems import Problems
from glassformer.data.sources import Source
from glassformer.data.stamps import Stamp
from glassformer.data.store import Store
from glassformer.errors import GlassformerError
from glassformer.families.sidecars import JobInfo
from glassformer.pretrained.run_folder import BEST, MODEL, result_of
from glassformer.tokenization import Tokenizer
from glassformer.tokenization.folder import fingerprint, vocabulary_files
from glassformer.tokenization.train import Marks
from glassformer.training.data_cache import Prepared
from glassformer.training.jobs.base import Job
from glassformer.training.model_folders import replace_folder
from glassformer.training.model_setup import fresh_spec, loaded
from glassformer.training.text_encoding import tokenizer_for

# Writes one part, "train" or "valid", into a folder, and says what is to be remembered of it.
Write = Callable[[Path, Source, Problems], dict[str, Any]]


class TextJob(Job):
    """A job whose data is text. `gather_text` leaves the tokenizer and both stores."""

    tokenizer: Tokenizer
    train: Store
    valid: Store

    @cached_property
    def base(self) -> Bundle | None:
        """The model to go on from, where the recipe names one."""
        folder = self.recipe.model.folder
        if folder is None:
            return None
        bundle = loaded(folder)
        if bundle.tokenizer is None and self.recipe.tokenizer.folder is None:
            raise GlassformerError(
                f"model.folder '{folder}' has no tokenizer; name the one it was trained with in "
                "tokenizer.folder"
            )
        return bundle

    def gather_text(
        self,
        train: Source,
        valid: Source,
        write: Write,
        *,
        settings: tuple[object, ...],
        marks: Marks,
        tags: Callable[[], Iterable[str]] = tuple,
        texts: int | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Make the tokenizer and the stores, or find them; what `write` noted of "train" and "valid".

        Where both are the same there is one store, "valid".
        `settings` are those that what is written depends on, besides the files and the tokenizer's. `texts`
        is how many fields of a row, from the first, a tokenizer is to learn from; None is all.
        """
        words, base = self.recipe.tokenizer, self.recipe.model.folder

        def prints(stamp: Stamp) -> tuple[object, ...]:
            return train.fingerprint(stamp), valid.fingerprint(stamp), *settings, repr(words), base

        vocabularies = {
            name: known
            for name, folder in (("tokenizer", words.folder), ("model", base))
            if folder is not None and (known := fingerprint(result_of(folder)))
        }
        own = self.folder / "tokenizer"
        prepared = Prepared(self.folder / "data", prints, also={**vocabularies, "own": _known(own)})
        was = prepared.noted("own")
        if was is not None and was != prepared.also["own"] and self._put_back(own, was):
            prepared.also["own"] = was
        about = prepared.about(self.say)
        if about is None:
            prepared.begin()
        self.tokenizer = tokenizer_for(
            words,
            self.folder,
            lambda: (row[:texts] for row in train.rows(Problems())),
            marks=marks,
            tags=tags,
            base=self.base.tokenizer if self.base else None,
            again=about is None and not prepared.damaged,
            say=self.say,
        )
        if about is None:
            prepared.also["own"] = _known(own)
            problems = Problems()
            parts = {"valid": valid} if valid is train else {"train": train, "valid": valid}
            noted = {name: write(prepared.folder / name, part, problems) for name, part in parts.items()}
            about = prepared.end(bad=problems.sentence(), **noted)
        found: dict[str, dict[str, Any]] = {name: about[name] for name in ("train", "valid") if name in about}
        self.valid = Store(prepared.folder / "valid")
        self.train = Store(prepared.folder / "train") if "train" in found else self.valid
        if about["bad"]:
            self.facts["rows left out"] = about["bad"]
            self.say(about["bad"])
        return found

    def _put_back(self, own: Path, was: str) -> bool:
        """Whether a model that the run has saved still has the vocabulary `own` has lost, and gave it."""
        for name in (BEST, MODEL):
            saved = self.folder / name
            if fingerprint(saved) == was:
                replace_folder(own, partial(_copy, vocabulary_files(saved)))
                self.say(f"{own} was damaged or changed; what the run began with is put back from {saved}")
                return True
        return False

    def told(self, what: str, long: int, max_len: int) -> None:
        """Say how many rows there are, and how many were too long."""
        self.facts |= {f"training {what}": len(self.train), f"validation {what}": len(self.valid)}
        self.say(f"{len(self.train):,} {what} to learn from, {len(self.valid):,} to validate with")
        if long:
            self.facts[f"{what} over max_len"] = long
            self.say(f"{long:,} {what} are longer than {max_len} tokens and were left out")

    @property
    def highest(self) -> int:
        """The largest id of either side."""
        return max(self.tokenizer.vocab_size, self.tokenizer.target_vocab_size) - 1

    @property
    def eos_id(self) -> int:
        """The token that ends a text."""
        if self.tokenizer.eos_id is None:
            raise GlassformerError("the tokenizer has no end token, which writing needs to stop at")
        return self.tokenizer.eos_id

    @property
    def pad_id(self) -> int:
        """What fills rows up: the end token where there is no pad token."""
        return self.eos_id if self.tokenizer.pad_id is None else self.tokenizer.pad_id

    def bundle(
        self,
        *,
        words: Callable[[], Mapping[str, Any]],
        lstm: tuple[str, Mapping[str, Any]],
        generation: dict[str, Any],
        about: Mapping[str, Any] | None = None,
    ) -> Bundle:
        """The recipe's model with its tokenizer, as it will be saved.

        words: what the data fixes of a fresh Transformer; lstm: the baseline's kind, and the same of it.
        about: what else is known of the job.
        """
        recipe, tokenizer = self.recipe, self.tokenizer
        job = JobInfo.from_dict({"job": recipe.job, **(about or {})})
        base = self.base
        if base is not None:
            head = base.model.head
            if not isinstance(head, LanguageModelHead):
                raise GlassformerError(f"the model in '{recipe.model.folder}' has no head to write text with")
            rows = len(head.weight)
            if self.highest >= rows:
                raise GlassformerError(
                    f"the tokenizer has {self.highest + 1:,} tokens and the model in "
                    f"'{recipe.model.folder}' only {rows:,}; use the tokenizer it was trained with"
                )
            return replace(
                base,
                tokenizer=tokenizer,
                generation=base.generation or generation,
                job=job,
            )
        model: Any
        if recipe.model.preset == "lstm":
            kind, given = lstm
            model = baselines.build_baseline(baselines.lstm_spec(kind, recipe.model.words, **given))
        else:
            model = build_model(fresh_spec(recipe.model, words()))
        return Bundle(model=model, tokenizer=tokenizer, generation=generation, job=job)


def _known(folder: Path) -> str:
    """What a vocabulary in a folder is known by."""
    return fingerprint(folder) or "none"


def _copy(files: Iterable[Path], folder: Path) -> None:
    folder.mkdir()
    for file in files:
        shutil.copyfile(file, folder / file.name)

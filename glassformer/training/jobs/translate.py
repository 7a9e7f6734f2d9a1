"""Learn to translate: sentences of one language and their translations, into one language or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from glassformer import api
from glassformer.data.examples import PairExamples
from glassformer.data.pairs import pairs
from glassformer.data.problems import Problems
from glassformer.data.sources import Source
from glassformer.data.store import Store
from glassformer.text import Tokenizer, ids_of_tagged
from glassformer.text.documents import sentences
from glassformer.training.jobs.rewriting import Rewriting
from glassformer.training.prepare import kept_texts, two_sides, write_rows
from glassformer.training.recipe import PairData

SEVERAL = 0.1  # of the sources at most may hold several sentences, where a model is said to learn sentences
USUAL = 0.995  # of the sources are no longer than what is usual; of longer ones a model has seen too few
MOST = 1_000_000  # sources looked at for that
TAG = ">>{}<<"  # what stands before a source, where the model writes several languages


class Translate(Rewriting):
    """Pairs of sentences; measured by BLEU and chrF."""

    languages: tuple[str, ...] = ()  # those that a tag asks for; none for a model of one language
    to: str | int | None = None  # the column that names them
    unit: Literal["sentence", "line"] = "line"  # what a source is: hardly ever several sentences, or anything

    def gather(self) -> None:
        data, kept = self.recipe.data, self.recipe.training.max_valid
        assert isinstance(data, PairData)
        max_len = data.max_len
        self.to = self._known.get("to") if data.to is None else data.to

        languages: set[str] = set()
        several = 0

        def encode(rows: Sequence[tuple[str, ...]]) -> Iterable[tuple[list[int], ...]]:
            nonlocal several
            several += sum(len(sentences(row[0])) > 1 for row in rows)
            languages.update(*(row[2:] for row in rows))
            targets = self.tokenizer.ids_of([row[1] for row in rows], side="target")
            return zip(sources_of(self.tokenizer, rows), targets, strict=True)

        def write(folder: Path, part: Source, problems: Problems) -> dict[str, Any]:
            nonlocal several
            several = 0
            languages.clear()
            long = write_rows(
                folder,
                part,
                ("source", "target"),
                encode,
                highest=self.highest,
                max_len=max_len,
                problems=problems,
                keep=kept,
            )
            return {"long": long, "languages": sorted(languages), "several": several}

        train, valid = two_sides(
            lambda files: pairs(files, columns=data.columns, to=self.to), data, seed=self.recipe.seed
        )
        fresh = self.base is None and self.recipe.tokenizer.folder is None
        if self.to is not None and fresh:  # a tokenizer that is to be learnt must know its tags before
            languages.update(row[2] for row in train.rows(Problems()))
        noted = self.gather_text(
            train,
            valid,
            write,
            settings=(max_len, kept),
            marks="end",
            tags=tuple(map(TAG.format, sorted(languages))),
            texts=2,
        )
        self.languages = tuple(sorted({one for part in noted.values() for one in part["languages"]}))
        learned = noted.get("train", noted["valid"])  # runs begun before sentences were counted have no count
        one = learned.get("several", len(self.train)) <= SEVERAL * len(self.train)
        self.unit = "sentence" if one else "line"
        self.told("pairs", sum(part["long"] for part in noted.values()), max_len)

    @property
    def _known(self) -> Mapping[str, Any]:
        """What a model that is gone on from, or measured, says of its job."""
        found: Mapping[str, Any] = self.base.files.get(api.JOB, {}) if self.base else {}
        return found

    def about(self) -> Mapping[str, Any]:
        known = {"unit": self.unit, "usual_len": usual_length(self.train)}
        if self.to is None:
            return known
        languages = sorted({*self.languages, *self._known.get("languages", ())})
        return {**known, "languages": languages, "to": self.to}

    def learned(self) -> PairExamples:
        return self._examples(self.train)

    def held(self) -> PairExamples:
        return self._examples(self.valid)

    def _examples(self, store: Store) -> PairExamples:
        return PairExamples(store, pad_id=self.pad_id, start_id=self.start_id)

    def shown(self) -> list[tuple[str, str]]:
        return [
            (" ".join([*map(TAG.format, to), source]), target)
            for source, target, *to in kept_texts(self.valid.folder)
        ]


def sources_of(tokenizer: Tokenizer, rows: Sequence[tuple[str, ...]]) -> list[list[int]]:
    """The ids of each row's source, behind the tag of the language that its third field names, if any."""
    texts = [row[0] for row in rows]
    if len(rows[0]) == 2:
        return tokenizer.ids_of(texts)
    return ids_of_tagged(tokenizer, texts, [TAG.format(row[2]) for row in rows])


def usual_length(store: Store) -> int:
    """How many tokens all but a few of the sources have at most."""
    rows = np.linspace(0, len(store) - 1, min(len(store), MOST)).astype(np.int64)
    return int(np.quantile(store.lengths(rows)[:, 0], USUAL, method="higher"))

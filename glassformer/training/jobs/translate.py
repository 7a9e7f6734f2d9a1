"""Learn to translate: sentences of one language and their translations, into one language or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from glassformer.data.examples import PairExamples
from glassformer.data.names import TO
from glassformer.data.pairs import pairs
from glassformer.data.problems import Problems
from glassformer.data.ragged import Ragged
from glassformer.data.recut import Recut
from glassformer.data.recut_pairs import RecutPairs
from glassformer.data.sources import Rows, Source
from glassformer.data.store import Store
from glassformer.errors import GlassformerError
from glassformer.families.sidecars import JobInfo
from glassformer.tokenization import Side, Tokenizer, tag_ids, tag_place
from glassformer.tokenization.documents import has_several
from glassformer.training.jobs.seq2seq import Rewriting
from glassformer.training.recipe import PairData
from glassformer.training.text_encoding import Progress, Row, halves_of, kept_texts, two_sides, write_rows

SEVERAL = 0.1  # of the sources at most may hold several sentences, where a model is said to learn sentences
USUAL = 0.995  # of the sources are no longer than what is usual; of longer ones a model has seen too few
MOST = 1_000_000  # sources looked at for that
SHOWN = 8  # columns that are named
SIDES: dict[Side, int] = {"source": 0x50CE, "target": 0x7A96}  # set apart the numbers drawn for each
TAG = ">>{}<<"  # what stands before a source, where the model writes several languages


class Translate(Rewriting):
    """Pairs of sentences; measured by BLEU and chrF."""

    languages: tuple[str, ...] = ()  # those that a tag asks for; none for a model of one language
    to: str | int | None = None  # the column that names them
    unit: Literal["sentence", "line"] = "line"  # what a source is: hardly ever several sentences, or anything

    @property
    def data(self) -> PairData:
        assert isinstance(self.recipe.data, PairData)
        return self.recipe.data

    def gather(self) -> None:
        data, kept = self.data, self.recipe.training.max_valid
        max_len = data.max_len
        self.to = self._known.to if data.to is None else data.to

        def write(folder: Path, part: Source, problems: Problems) -> dict[str, Any]:
            languages: set[str] = set()
            several: list[int] = []  # in each group of rows, of those that are kept

            def encode(rows: list[Row]) -> tuple[Ragged, Ragged]:
                if self.to is not None:
                    languages.update({row[2] for row in rows})
                sources, targets = ids_of_pairs(self.tokenizer, rows)
                fits = np.maximum(sources.lengths, targets.lengths) <= max_len
                several.append(sum(has_several(rows[n][0]) for n in np.flatnonzero(fits)))
                return sources, targets

            long = write_rows(
                folder,
                part,
                ("source", "target"),
                encode,
                highest=self.highest,
                max_len=max_len,
                problems=problems,
                progress=Progress("pairs", self.say),
                keep=kept,
            )
            return {"long": long, "languages": sorted(languages), "several": sum(several)}

        def read(files: Sequence[str]) -> Source:
            source = pairs(files, columns=data.columns, to=self.to)
            if files == data.train and data.columns is None and isinstance(source, Rows):
                self._tell_unread(source)
            return source

        train, valid = two_sides(read, data, seed=self.recipe.seed)

        def tags() -> list[str]:  # a tokenizer that is to be learnt must know them before
            if self.to is None:
                return []
            return sorted({TAG.format(row[2]) for row in train.rows(Problems())})

        noted = self.gather_text(
            train,
            valid,
            write,
            settings=(max_len, kept),
            marks="end",
            tags=tags,
            texts=2,
        )
        self.languages = tuple(sorted({one for part in noted.values() for one in part["languages"]}))
        learned = noted.get("train", noted["valid"])  # runs begun before sentences were counted have no count
        one = learned.get("several", len(self.train)) <= SEVERAL * len(self.train)
        self.unit = "sentence" if one else "line"
        self.told("pairs", sum(part["long"] for part in noted.values()), max_len)

    def _tell_unread(self, source: Rows) -> None:
        """Say which columns nobody named are left aside; one of languages must not be, which it would mix."""
        unread = source.unread
        to = next((one for one in unread if str(one).lower() == TO), None)
        if to is not None and self.to is None:
            raise GlassformerError(
                f"'{source.tables[0].path}' has a column '{to}'; give data.to={to} if it names the language "
                "of each target, or name the two columns to read in data.columns"
            )
        if unread:
            told = ", ".join(
                f"'{one}'" if isinstance(one, str) else f"column {one}" for one in unread[:SHOWN]
            )
            self.say(f"{source.chosen}; not read: {told}{', ...' * (len(unread) > SHOWN)}")

    @property
    def _known(self) -> JobInfo:
        """What a model that is fine-tuned or evaluated says of its job."""
        return self.base.job if self.base else JobInfo()

    def about(self) -> Mapping[str, Any]:
        known = {"unit": self.unit, "usual_len": usual_length(self.train)}
        if self.to is None:
            return known
        languages = sorted({*self.languages, *(self._known.languages or ())})
        return {**known, "languages": languages, "to": self.to}

    def learned(self) -> PairExamples:
        """The pairs to learn from, cut anew each time where the recipe asks for it."""
        marks = {"pad_id": self.pad_id, "start_id": self.start_id}
        if not self.data.recut:
            return PairExamples(self.train, **marks)
        return RecutPairs(self.train, source=self._recut("source"), target=self._recut("target"), **marks)

    def held(self) -> PairExamples:
        return PairExamples(self.valid, pad_id=self.pad_id, start_id=self.start_id)

    def _recut(self, side: Side) -> Recut:
        chance, seed = self.data.recut, self.recipe.seed + SIDES[side]
        return Recut(self._halves[side], chance, longest=self.data.max_len, seed=seed)

    @cached_property
    def _halves(self) -> dict[Side, NDArray[np.int64]]:
        source = halves_of(self.tokenizer)
        alike = not self.tokenizer.sides_differ
        return {
            "source": source,
            "target": source if alike else halves_of(self.tokenizer, side="target"),
        }

    def shown(self) -> list[tuple[str, str]]:
        return [
            (" ".join([*map(TAG.format, to), source]), target)
            for source, target, *to in kept_texts(self.valid.folder)
        ]


def ids_of_pairs(tokenizer: Tokenizer, rows: Sequence[Row]) -> tuple[Ragged, Ragged]:
    """The ids of the sources, each behind the tag of the language that its third field names, if any; and of
    the targets.
    """
    texts, targets = [row[0] for row in rows], [row[1] for row in rows]
    if tokenizer.sides_differ:
        found = [*tokenizer.ids_of(texts), *tokenizer.ids_of(targets, side="target")]
    else:  # a corpus often has a sentence on both sides, which is then encoded once
        found = tokenizer.ids_of(texts + targets)
    sources = Ragged.of(found[: len(rows)])
    if len(rows[0]) > 2:
        languages = {row[2] for row in rows}
        known = dict(zip(languages, tag_ids(tokenizer, map(TAG.format, languages)), strict=True))
        sources = sources.with_one(np.array([known[row[2]] for row in rows]), tag_place(tokenizer))
    return sources, Ragged.of(found[len(rows) :])


def usual_length(store: Store) -> int:
    """How many tokens all but a few of the sources have at most."""
    rows = np.linspace(0, len(store) - 1, min(len(store), MOST)).astype(np.int64)
    return int(np.quantile(store.lengths(rows)[:, 0], USUAL, method="higher"))

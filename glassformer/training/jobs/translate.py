"""Learn to translate: sentences of one language and their translations, into one language or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer import api
from glassformer.data.examples import PairExamples
from glassformer.data.pairs import pairs
from glassformer.data.problems import Problems
from glassformer.data.sources import Source
from glassformer.data.store import Store
from glassformer.text import Tokenizer, ids_of_tagged
from glassformer.training.jobs.rewriting import Rewriting
from glassformer.training.prepare import kept_texts, two_sides, write_rows
from glassformer.training.recipe import PairData

TAG = ">>{}<<"  # what stands before a source, where the model writes several languages


class Translate(Rewriting):
    """Pairs of sentences; measured by BLEU and chrF."""

    languages: tuple[str, ...] = ()  # those that a tag asks for; none for a model of one language
    to: str | int | None = None  # the column that names them

    def gather(self) -> None:
        data, kept = self.recipe.data, self.recipe.training.max_valid
        assert isinstance(data, PairData)
        max_len = data.max_len
        self.to = self._known.get("to") if data.to is None else data.to

        languages: set[str] = set()

        def encode(rows: Sequence[tuple[str, ...]]) -> Iterable[tuple[list[int], ...]]:
            languages.update(*(row[2:] for row in rows))
            targets = self.tokenizer.ids_of([row[1] for row in rows], side="target")
            return zip(sources_of(self.tokenizer, rows), targets, strict=True)

        def write(folder: Path, part: Source, problems: Problems) -> dict[str, Any]:
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
            return {"long": long, "languages": sorted(languages)}

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
        self.told("pairs", sum(part["long"] for part in noted.values()), max_len)

    @property
    def _known(self) -> Mapping[str, Any]:
        """What a model that is gone on from, or measured, says of its job."""
        found: Mapping[str, Any] = self.base.files.get(api.JOB, {}) if self.base else {}
        return found

    def about(self) -> Mapping[str, Any]:
        if self.to is None:
            return {}
        return {"languages": sorted({*self.languages, *self._known.get("languages", ())}), "to": self.to}

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

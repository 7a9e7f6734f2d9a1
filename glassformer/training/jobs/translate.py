"""Learn to translate: sentences of one language and their translations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from glassformer.data.examples import PairExamples
from glassformer.data.pairs import pairs
from glassformer.data.problems import Problems
from glassformer.data.sources import Source
from glassformer.data.store import Store
from glassformer.training.jobs.rewriting import Rewriting
from glassformer.training.prepare import kept_texts, two_sides, write_rows
from glassformer.training.recipe import PairData


class Translate(Rewriting):
    """Pairs of sentences; measured by BLEU and chrF."""

    def gather(self) -> None:
        data, kept = self.recipe.data, self.recipe.training.max_valid
        assert isinstance(data, PairData)
        max_len = data.max_len

        def encode(rows: Sequence[tuple[str, ...]]) -> Iterable[tuple[list[int], ...]]:
            sources = self.tokenizer.encode_batch([row[0] for row in rows], side="source")
            targets = self.tokenizer.encode_batch([row[1] for row in rows], side="target")
            return ((one.ids, other.ids) for one, other in zip(sources, targets, strict=True))

        def write(folder: Path, part: Source, problems: Problems) -> dict[str, Any]:
            long = write_rows(
                folder,
                part,
                part.fields,
                encode,
                highest=self.highest,
                max_len=max_len,
                problems=problems,
                keep=kept,
            )
            return {"long": long}

        train, valid = two_sides(
            lambda files: pairs(files, columns=data.columns), data, seed=self.recipe.seed
        )
        noted = self.gather_text(train, valid, write, settings=(max_len, kept), marks="end")
        self.told("pairs", sum(part["long"] for part in noted.values()), max_len)

    def learned(self) -> PairExamples:
        return self._examples(self.train)

    def held(self) -> PairExamples:
        return self._examples(self.valid)

    def _examples(self, store: Store) -> PairExamples:
        return PairExamples(store, pad_id=self.pad_id, start_id=self.start_id)

    def shown(self) -> list[tuple[str, str]]:
        return [(source, target) for source, target in kept_texts(self.valid.folder)]

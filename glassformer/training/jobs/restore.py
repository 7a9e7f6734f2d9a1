"""Learn to restore: sentences that were trimmed, gapped or shuffled, and what they were before."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.data.damaged import Damage, DamagedExamples
from glassformer.data.problems import Problems
from glassformer.data.ragged import Ragged
from glassformer.data.sources import Source
from glassformer.data.store import Store
from glassformer.data.texts import texts
from glassformer.errors import GlassformerError
from glassformer.tokenization import Tokenizer
from glassformer.training.jobs.seq2seq import Rewriting, likeness
from glassformer.training.recipe import SentenceData
from glassformer.training.task import Task
from glassformer.training.text_encoding import Progress, Row, kept_texts, two_sides, write_rows

GAP = "<gap>"
BEFORE = " "  # put before every sentence, so that its first word is spelled as if it stood elsewhere
SPACELESS = ("CJK", "HIRAGANA", "KATAKANA")  # scripts in which every sign may begin a word


class Restore(Rewriting):
    """Sentences in, a model that mends them out; measured by chrF and exact matches."""

    metric = "chrf"

    @property
    def data(self) -> SentenceData:
        assert isinstance(self.recipe.data, SentenceData)
        return self.recipe.data

    def gather(self) -> None:
        data, kept = self.data, self.recipe.training.max_valid

        def encode(rows: list[Row]) -> tuple[Ragged]:
            return (Ragged.of(self.tokenizer.ids_of([BEFORE + tidy(text) for (text,) in rows])),)

        def write(folder: Path, part: Source, problems: Problems) -> dict[str, Any]:
            long = write_rows(
                folder,
                part,
                ("text",),
                encode,
                highest=self.highest,
                max_len=data.max_len,
                problems=problems,
                progress=Progress("sentences", self.say),
                keep=kept,
            )
            return {"long": long}

        train, valid = two_sides(
            lambda files: texts(files, unit="line", column=data.column), data, seed=self.recipe.seed
        )
        settings = (data.max_len, kept)
        noted = self.gather_text(train, valid, write, settings=settings, marks="end", tags=lambda: (GAP,))
        self.told("sentences", sum(part["long"] for part in noted.values()), data.max_len)

    def learned(self) -> DamagedExamples:
        return self._examples(self.train)

    def held(self) -> DamagedExamples:
        return self._examples(self.valid)  # always asked for epoch 0, so always damaged alike

    def _examples(self, store: Store) -> DamagedExamples:
        return DamagedExamples(
            store, how=self.damage, seed=self.recipe.seed, pad_id=self.pad_id, start_id=self.start_id
        )

    @cached_property
    def damage(self) -> Damage:
        data = self.data
        return Damage(
            trim=data.trim,
            gap=data.gap,
            shuffle=data.shuffle,
            gap_id=self.gap_id,
            begins=word_beginnings(self.tokenizer),
        )

    @property
    def gap_id(self) -> int:
        """The token that stands for missing words: ours, or the mask of a tokenizer that came with one."""
        own = self.tokenizer.token_id(GAP)
        found = self.tokenizer.mask_id if own is None else own
        if found is None:
            raise GlassformerError(
                f"the tokenizer has neither '{GAP}' nor a mask token, which gaps need; "
                f"train it with the tag '{GAP}'"
            )
        return found

    def shown(self) -> list[tuple[str, str]]:
        held, gap = self.held(), self.tokenizer.tokens([self.gap_id])[0]
        whole = [tidy(text) for (text,) in kept_texts(self.valid.folder)]
        read = (self.tokenizer.decode(held.row(n, 0)[0][:-1], skip_special=False) for n in range(len(whole)))
        return [
            (tidy(text.replace(gap, f" {gap} ")), target) for text, target in zip(read, whole, strict=True)
        ]

    def about(self) -> Mapping[str, Any]:
        return {"before": BEFORE, "gap": self.tokenizer.tokens([self.gap_id])[0]}

    def task(self) -> Task:
        held, expected = self.held(), [target for _, target in self.shown()]
        damaged = [tidy(self.tokenizer.decode(held.row(n, 0)[0])) for n in range(len(expected))]
        scores, _ = likeness(damaged, expected)
        self.facts["damaged sentences as they are"] = scores
        told = ", ".join(f"{name} {score:.4g}" for name, score in scores.items())
        self.say(f"left as they are, the damaged sentences to validate with score {told}")
        return super().task()


def tidy(text: str) -> str:
    """Words with one space between them."""
    return " ".join(text.split())


def word_beginnings(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """For every id whether a word begins with it, (V,).

    A word begins with its space, or with any sign of a script that has no spaces.
    """
    begins = np.zeros(tokenizer.vocab_size, bool)
    for index in range(len(begins)):
        if index not in tokenizer.special_ids:
            (piece,) = tokenizer.pieces([index])
            begins[index] = piece.startswith(" ") or _spaceless(piece[:1])
    unknown = tokenizer.unk_id
    if unknown is not None:  # where a whole word becomes unknown, its space is in it
        begins[unknown] = tokenizer.encode(" \ue000\ue000", special=False).ids == [unknown]
    return begins


def _spaceless(letter: str) -> bool:
    return unicodedata.name(letter or " ", "").startswith(SPACELESS)

"""Restoring corrupted sentences: trimmed, with gaps, or shuffled."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.data.denoising import Corruption, DenoisingExamples
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, texts
from glassformer.data.store import Ragged, Store
from glassformer.errors import UnsupportedError
from glassformer.tokenization import Tokenizer
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.seq2seq import Seq2Seq, score_texts
from glassformer.training.jobs.text import TextCorpus, log_counts, max_id, prepare_corpus
from glassformer.training.model_setup import max_input_length
from glassformer.training.recipe import SentenceData
from glassformer.training.task import Task
from glassformer.training.text_encoding import Progress, Row, encode_rows, read_texts, split_sources

GAP = "<gap>"
PREFIX = " "  # before every sentence, so that its first word is tokenized as inside a sentence
SPACELESS = ("CJK", "HIRAGANA", "KATAKANA")  # scripts in which every character may begin a word


class Restore(Job):
    """Sentences; measured by chrF and exact match."""

    default_preset = "original"
    corpus: TextCorpus

    @property
    def data(self) -> SentenceData:
        assert isinstance(self.recipe.data, SentenceData)
        return self.recipe.data

    @property
    def seq2seq(self) -> Seq2Seq:
        return Seq2Seq(self, self.corpus)

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            data = replace(self.data, max_len=max_input_length(self.base.spec))
            self.recipe = replace(self.recipe, data=data)

    def prepare_data(self) -> None:
        data = self.data
        train, valid = split_sources(
            lambda files: texts(files, unit="line", column=data.column), data, seed=self.recipe.seed
        )
        cache_key = (data.max_len, self.recipe.training.max_valid)
        self.corpus = prepare_corpus(
            self, train, valid, self._write, cache_key=cache_key, marks="end", tags=lambda: (GAP,)
        )
        log_counts(self, self.corpus, "sentences", self.corpus.total("too_long"), data.max_len)

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        def encode(rows: list[Row]) -> tuple[Ragged]:
            return (Ragged.of(tokenizer.encode_ids([PREFIX + normalize_spaces(text) for (text,) in rows])),)

        too_long = encode_rows(
            folder,
            source,
            ("text",),
            encode,
            max_id=max_id(tokenizer),
            max_len=self.data.max_len,
            problems=problems,
            progress=Progress("sentences", self.log),
            keep_texts=self.recipe.training.max_valid,
        )
        return {"too_long": too_long}

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        return self.seq2seq.choose_defaults(hardware, self._examples(self.corpus.train))

    def _examples(self, store: Store) -> DenoisingExamples:
        return DenoisingExamples(
            store,
            corruption=self._corruption,
            seed=self.recipe.seed,
            pad_id=self.corpus.pad_id,
            start_id=self.seq2seq.start_id,
        )

    @cached_property
    def _corruption(self) -> Corruption:
        data = self.data
        return Corruption(
            trim=data.trim,
            gap=data.gap,
            shuffle=data.shuffle,
            gap_id=self.gap_id,
            starts_word=word_starts(self.corpus.tokenizer),
        )

    @property
    def gap_id(self) -> int:
        """The token for missing words: ours, or the mask token of an existing tokenizer."""
        own = self.corpus.tokenizer.token_id(GAP)
        found = self.corpus.tokenizer.mask_id if own is None else own
        if found is None:
            raise UnsupportedError("the tokenizer", f"gaps, since it has neither '{GAP}' nor a mask token")
        return found

    def task(self) -> Task:
        tokenizer, valid = self.corpus.tokenizer, self._examples(self.corpus.valid)
        gap = tokenizer.tokens([self.gap_id])[0]
        targets = [normalize_spaces(text) for (text,) in read_texts(self.corpus.valid.folder)]
        sources = [valid.row(n, 0)[0] for n in range(len(targets))]  # epoch 0: always corrupted alike
        shown = [tokenizer.decode(ids[:-1], skip_special=False) for ids in sources]
        scores, _ = score_texts([normalize_spaces(tokenizer.decode(ids)) for ids in sources], targets)
        self.facts["corrupted sentences unchanged"] = scores
        listed = ", ".join(f"{name} {score:.4g}" for name, score in scores.items())
        self.log(f"baseline: the corrupted validation sentences, unchanged, score {listed}")
        return self.seq2seq.task(
            train=self._examples(self.corpus.train),
            valid=valid,
            texts=[
                (normalize_spaces(text.replace(gap, f" {gap} ")), target)
                for text, target in zip(shown, targets, strict=True)
            ],
            metric="chrf",
            info={"before": PREFIX, "gap": gap},
        )


def normalize_spaces(text: str) -> str:
    return " ".join(text.split())


def word_starts(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """For every id whether it starts a word, (V,): with a space, or in a script without spaces."""
    starts = np.zeros(tokenizer.vocab_size, bool)
    for index in range(len(starts)):
        if index not in tokenizer.special_ids:
            (piece,) = tokenizer.pieces([index])
            name = unicodedata.name(piece[:1] or " ", "")
            starts[index] = piece.startswith(" ") or name.startswith(SPACELESS)
    unknown = tokenizer.unk_id
    if unknown is not None:  # a word that becomes unknown as a whole includes its space
        starts[unknown] = tokenizer.encode(" \ue000\ue000", special=False).ids == [unknown]
    return starts

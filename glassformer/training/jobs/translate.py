"""Translation: sentence pairs, into one target language or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from glassformer.data.examples import BpeDropout, BpeDropoutPairs, PairExamples
from glassformer.data.readers import LANGUAGE_COLUMN
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, TableSource, pairs
from glassformer.data.store import Ragged, Store
from glassformer.errors import MissingValueError
from glassformer.tokenization import Side, Tokenizer, tag_ids, tag_position
from glassformer.tokenization.sentence_split import has_several_sentences
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.seq2seq import Seq2Seq
from glassformer.training.jobs.text import TextCorpus, log_counts, max_id, prepare_corpus
from glassformer.training.model_setup import max_input_length
from glassformer.training.recipe import PairData
from glassformer.training.task import Task
from glassformer.training.text_encoding import (
    Progress,
    Row,
    encode_rows,
    read_texts,
    split_sources,
    token_splits,
)

MAX_MULTI_SENTENCE = 0.1  # fraction of multi-sentence sources up to which a model counts as sentence-level
TYPICAL_QUANTILE, TYPICAL_ROWS = 0.995, 1_000_000  # for the typical source length
LISTED_COLUMNS = 8
SIDE_SEEDS: dict[Side, int] = {"source": 0x50CE, "target": 0x7A96}  # separate the random numbers of the sides
TAG = ">>{}<<"  # the target-language tag before a source


class Translate(Job):
    """Sentence pairs; measured by BLEU and chrF."""

    default_preset = "original"
    corpus: TextCorpus
    languages: tuple[str, ...] = ()  # target languages of a multilingual model
    language_column: str | int | None = None
    unit: Literal["sentence", "line"] = "line"  # what a source is: one sentence, or any text

    @property
    def data(self) -> PairData:
        assert isinstance(self.recipe.data, PairData)
        return self.recipe.data

    @property
    def seq2seq(self) -> Seq2Seq:
        return Seq2Seq(self, self.corpus)

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            data = replace(self.data, max_len=max_input_length(self.base.spec))
            self.recipe = replace(self.recipe, data=data)

    def prepare_data(self) -> None:
        data, max_valid = self.data, self.recipe.training.max_valid
        self.language_column = self.base_info.to if data.to is None else data.to
        train, valid = split_sources(self._read, data, seed=self.recipe.seed)

        def tags() -> list[str]:
            if self.language_column is None:
                return []
            return sorted({TAG.format(row[2]) for row in train.rows(RowErrors())})

        self.corpus = corpus = prepare_corpus(
            self,
            train,
            valid,
            self._write,
            cache_key=(data.max_len, max_valid),
            marks="end",
            tags=tags,
            text_columns=2,
        )
        self.languages = tuple(
            sorted({name for split in corpus.notes.values() for name in split["languages"]})
        )
        several = corpus.notes.get("train", corpus.notes["valid"])["several"]
        self.unit = "sentence" if several <= MAX_MULTI_SENTENCE * len(corpus.train) else "line"
        log_counts(self, corpus, "pairs", corpus.total("too_long"), data.max_len)

    def _read(self, files: Sequence[str]) -> Source:
        data = self.data
        source = pairs(files, columns=data.columns, to=self.language_column)
        if files == data.train and data.columns is None and isinstance(source, TableSource):
            self._check_unread_columns(source)
        return source

    def _check_unread_columns(self, source: TableSource) -> None:
        """Log the columns that are ignored; a language column must not be, since it would mix languages."""
        unread = source.unused_columns
        column = next((one for one in unread if str(one).lower() == LANGUAGE_COLUMN), None)
        if column is not None and self.language_column is None:
            raise MissingValueError(
                "data.to",
                f"since '{source.tables[0].path}' has a column '{column}'",
                f"set data.to={column} if it names the target language, or set data.columns",
            )
        if unread:
            listed = ", ".join(
                f"'{one}'" if isinstance(one, str) else f"column {one}" for one in unread[:LISTED_COLUMNS]
            )
            self.log(f"{source.description}; ignored: {listed}{', ...' * (len(unread) > LISTED_COLUMNS)}")

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        max_len = self.data.max_len
        languages: set[str] = set()
        several: list[int] = []  # multi-sentence sources in each group of rows

        def encode(rows: list[Row]) -> tuple[Ragged, Ragged]:
            if self.language_column is not None:
                languages.update({row[2] for row in rows})
            sources, targets = encode_pairs(tokenizer, rows)
            fits = np.maximum(sources.lengths, targets.lengths) <= max_len
            several.append(sum(has_several_sentences(rows[n][0]) for n in np.flatnonzero(fits)))
            return sources, targets

        too_long = encode_rows(
            folder,
            source,
            ("source", "target"),
            encode,
            max_id=max_id(tokenizer),
            max_len=max_len,
            problems=problems,
            progress=Progress("pairs", self.log),
            keep_texts=self.recipe.training.max_valid,
        )
        return {"too_long": too_long, "languages": sorted(languages), "several": sum(several)}

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        return self.seq2seq.choose_defaults(hardware, self.train_examples())

    def train_examples(self) -> PairExamples:
        """The training pairs, with BPE dropout if the recipe asks for it."""
        marks = {"pad_id": self.corpus.pad_id, "start_id": self.seq2seq.start_id}
        if not self.data.bpe_dropout:
            return PairExamples(self.corpus.train, **marks)
        tokenizer = self.corpus.tokenizer
        splits = {"source": token_splits(tokenizer)}
        splits["target"] = (
            token_splits(tokenizer, side="target") if tokenizer.sides_differ else splits["source"]
        )
        dropout = {
            side: BpeDropout(
                splits[side],
                self.data.bpe_dropout,
                max_length=self.data.max_len,
                seed=self.recipe.seed + SIDE_SEEDS[side],
            )
            for side in SIDE_SEEDS
        }
        return BpeDropoutPairs(self.corpus.train, source=dropout["source"], target=dropout["target"], **marks)

    def task(self) -> Task:
        corpus = self.corpus
        texts = [
            (" ".join([*map(TAG.format, language), source]), target)
            for source, target, *language in read_texts(corpus.valid.folder)
        ]
        valid = PairExamples(corpus.valid, pad_id=corpus.pad_id, start_id=self.seq2seq.start_id)
        return self.seq2seq.task(
            train=self.train_examples(), valid=valid, texts=texts, metric="bleu", info=self._info()
        )

    def _info(self) -> Mapping[str, Any]:
        info = {"unit": self.unit, "usual_len": typical_length(self.corpus.train)}
        if self.language_column is None:
            return info
        languages = sorted({*self.languages, *(self.base_info.languages or ())})
        return {**info, "languages": languages, "to": self.language_column}


def encode_pairs(tokenizer: Tokenizer, rows: Sequence[Row]) -> tuple[Ragged, Ragged]:
    """The ids of the sources and of the targets; a third field of a row is the target language, whose tag is
    inserted before the source.
    """
    texts, targets = [row[0] for row in rows], [row[1] for row in rows]
    if tokenizer.sides_differ:
        ids = [*tokenizer.encode_ids(texts), *tokenizer.encode_ids(targets, side="target")]
    else:  # a sentence that is on both sides is encoded once
        ids = tokenizer.encode_ids(texts + targets)
    sources = Ragged.of(ids[: len(rows)])
    if len(rows[0]) > 2:
        languages = {row[2] for row in rows}
        tags = dict(zip(languages, tag_ids(tokenizer, map(TAG.format, languages)), strict=True))
        sources = sources.insert(np.array([tags[row[2]] for row in rows]), tag_position(tokenizer))
    return sources, Ragged.of(ids[len(rows) :])


def typical_length(store: Store) -> int:
    """The length in tokens that 99.5 % of the sources do not exceed."""
    rows = np.linspace(0, len(store) - 1, min(len(store), TYPICAL_ROWS)).astype(np.int64)
    return int(np.quantile(store.lengths(rows)[:, 0], TYPICAL_QUANTILE, method="higher"))

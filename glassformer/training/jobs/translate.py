"""Job `translate`: train a translator into one or several target languages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from glassformer.data.bpe_dropout import BpeDropoutPairs
from glassformer.data.examples import PairExamples
from glassformer.data.readers import LANGUAGE_COLUMN
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, TableSource, pairs
from glassformer.data.store import Store
from glassformer.errors import MissingValueError
from glassformer.tokenization import Side, Tokenizer
from glassformer.tokenization.sentence_split import has_several_sentences
from glassformer.training import sections
from glassformer.training.encoding import Encoded, Row
from glassformer.training.job_spec import JobSpec
from glassformer.training.sections import Columns, Paths, TableSection
from glassformer.training.seq2seq_job import TAG, Seq2SeqJob, encode_pairs

MAX_MULTI_SENTENCE = 0.1  # fraction of multi-sentence sources up to which a model counts as sentence-level
TYPICAL_QUANTILE, TYPICAL_ROWS = 0.995, 1_000_000  # for the typical source length
SIDE_SEEDS: dict[Side, int] = {"source": 0x50CE, "target": 0x7A96}  # for different random numbers


@dataclass(frozen=True, kw_only=True)
class PairData(TableSection):
    """Sentences and their translations, aligned line by line in two files or in the columns of tables."""

    train: Paths = sections.train_files("two line-aligned files, or tables with both sentences in a row")
    valid: Paths | float = sections.valid_split(0.02)
    columns: Columns | None = sections.column_names("source and target column, e.g. `[en, de]`")
    language_column: str | int | None = sections.column_name(
        "column with the target language; null trains one target language"
    )
    max_len: int | None = sections.maximum_length("source and target; longer pairs are skipped and counted")
    bpe_dropout: float = sections.bpe_dropout_probability()


class TranslateJob(Seq2SeqJob[PairData]):
    """Train a translator into one or several target languages."""

    skips_long = True
    languages: tuple[str, ...] = ()  # target languages of a multilingual model
    language_column: str | int | None = None
    source_unit: Literal["sentence", "line"] = "line"  # what a source is: one sentence, or any text

    def prepare_data(self) -> None:
        column = self.data.language_column
        self.language_column = self.base_info.to if column is None else column
        super().prepare_data()
        corpus = self.corpus
        self.languages = tuple(
            sorted({name for split in corpus.notes.values() for name in split["languages"]})
        )
        multi_sentence = corpus.train_notes["multi_sentence"]
        self.source_unit = "sentence" if multi_sentence <= MAX_MULTI_SENTENCE * len(corpus.train) else "line"

    def tags(self, train: Source) -> Iterable[str]:
        multilingual = self.language_column is not None
        return sorted({TAG.format(row[2]) for row in train.rows(RowErrors())}) if multilingual else ()

    def texts(self, row: Row) -> Sequence[str]:
        return row[:2]

    def open_files(self, files: Sequence[str]) -> Source:
        data = self.data
        source = pairs(files, columns=data.columns, to=self.language_column, **data.table_options)
        if files == data.train and data.columns is None and isinstance(source, TableSource):
            unread = {str(column).lower(): column for column in source.unused_columns}
            if LANGUAGE_COLUMN in unread and self.language_column is None:  # the languages would be mixed
                column = unread[LANGUAGE_COLUMN]
                raise MissingValueError(
                    "data.language_column",
                    f"since '{source.tables[0].path}' has a column '{column}'",
                    f"set data.language_column={column} if it names the target language, or set data.columns",
                )
        self.log_columns(files, source)
        return source

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        sources, targets = encode_pairs(tokenizer, rows)
        fits = np.maximum(sources.lengths, targets.lengths) <= self.max_len
        several = sum(has_several_sentences(rows[n][0]) for n in np.flatnonzero(fits))
        counts: Counter[Any] = Counter({"multi_sentence": several})
        if self.language_column is not None:
            counts.update([("language", row[2]) for row in rows])
        return (sources, targets), counts

    def notes(self, counts: Counter[Any]) -> dict[str, Any]:
        languages = sorted(key[1] for key in counts if isinstance(key, tuple))
        numbers = {name: counts[name] for name in ("too_long", "multi_sentence")}
        return {**numbers, "languages": languages}

    def examples(self, store: Store, *, augment: bool = False) -> PairExamples:
        if not (augment and self.data.bpe_dropout):
            return super().examples(store)
        differ = self.corpus.tokenizer.sides_differ
        source, target = (
            self.bpe_dropout(side if differ else "source", seed) for side, seed in SIDE_SEEDS.items()
        )
        return BpeDropoutPairs(store, source=source, target=target, **self.marks)

    def valid_pairs(self, valid: PairExamples) -> list[tuple[str, str]]:
        return [
            (" ".join([*map(TAG.format, language), source]), target)
            for source, target, *language in self.valid_texts()
        ]

    def info(self) -> Mapping[str, Any]:
        info: dict[str, Any] = {"unit": self.source_unit, "usual_len": typical_length(self.corpus.train)}
        if self.language_column is not None:
            languages = sorted({*self.languages, *(self.base_info.languages or ())})
            info |= {"languages": languages, "to": self.language_column}
        return info


def typical_length(store: Store) -> int:
    """Return the length in tokens that 99.5 % of the sources do not exceed."""
    rows = np.linspace(0, len(store) - 1, min(len(store), TYPICAL_ROWS)).astype(np.int64)
    return int(np.quantile(store.lengths(rows)[:, 0], TYPICAL_QUANTILE, method="higher"))


JOB = JobSpec(
    name="translate",
    summary="Train a translator into one or several target languages.",
    factory=TranslateJob,
    data=PairData,
    metrics=("loss", "perplexity", "bleu", "chrf", "exact"),
    metric="bleu",
    preset="original",
    defaults={"label_smoothing": 0.1},
)

"""Job `restore`: train a model that restores corrupted sentences (denoising)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.data.denoising import Corruption, DenoisingExamples
from glassformer.data.examples import PairExamples
from glassformer.data.sources import Source, texts
from glassformer.data.store import Ragged, Store
from glassformer.errors import UnsupportedError
from glassformer.schema import setting
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.encoding import Encoded, Row, word_starts
from glassformer.training.job_spec import JobSpec
from glassformer.training.sections import Paths, TableSection
from glassformer.training.seq2seq_job import Seq2SeqJob, score_texts
from glassformer.training.task import TrainingPlan

GAP = "<gap>"
PROBABILITY: dict[str, Any] = {"interval": "[0, 1]", "unit": "probability"}
PREFIX = " "  # before every sentence, so that its first word is tokenized as inside a sentence


@dataclass(frozen=True, kw_only=True)
class SentenceData(TableSection):
    """Sentences to corrupt and restore (denoising)."""

    train: Paths = sections.train_files("one sentence per line, or a column of a table")
    valid: Paths | float = sections.valid_split(0.02)
    text_column: str | int | None = sections.column_name("sentence column of a table; null detects it")
    max_len: int | None = sections.maximum_length(
        "a sentence; longer ones are skipped and counted", default=64
    )
    trim_prob: float = setting(0.3, "corruption: cut off the beginning or the end", **PROBABILITY)
    gap_prob: float = setting(
        0.3, "corruption: text infilling, i.e. replace words by a gap token", **PROBABILITY
    )
    shuffle_prob: float = setting(0.3, "corruption: shuffle words locally", **PROBABILITY)


class RestoreJob(Seq2SeqJob[SentenceData]):
    """Train a model to restore corrupted sentences."""

    text_pairs = False
    default_max_len = 64
    fields = ("text",)
    row = "sentence"
    skips_long = True

    def open_files(self, files: Sequence[str]) -> Source:
        data = self.data
        return texts(files, sample_by="line", column=data.text_column, **data.table_options)

    def tags(self, train: Source) -> Iterable[str]:
        return (GAP,)

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        return [Ragged.of(tokenizer.encode_ids([PREFIX + normalize_spaces(text) for (text,) in rows]))], {}

    def examples(self, store: Store, *, augment: bool = False) -> PairExamples:
        return DenoisingExamples(store, corruption=self._corruption, seed=self.recipe.seed, **self.marks)

    @cached_property
    def _corruption(self) -> Corruption:
        data = self.data
        return Corruption(
            trim=data.trim_prob,
            gap=data.gap_prob,
            shuffle=data.shuffle_prob,
            gap_id=self.gap_id,
            starts_word=word_starts(self.corpus.tokenizer),
        )

    @property
    def gap_id(self) -> int:
        """The token for missing words: the gap token, or the mask token of an existing tokenizer."""
        own = self.corpus.tokenizer.token_id(GAP)
        gap_id = self.corpus.tokenizer.mask_id if own is None else own
        if gap_id is None:
            raise UnsupportedError("the tokenizer", f"gaps, since it has neither '{GAP}' nor a mask token")
        return gap_id

    def plan(self) -> TrainingPlan:
        targets = [normalize_spaces(text) for (text,) in self.valid_texts()]
        sources = self._corrupted(self.examples(self.corpus.valid), len(targets))
        tokenizer = self.corpus.tokenizer
        scores, _ = score_texts([normalize_spaces(tokenizer.decode(ids)) for ids in sources], targets)
        self.facts["corrupted sentences unchanged"] = scores
        listed = ", ".join(f"{name} {score:.4g}" for name, score in scores.items())
        self.log(f"baseline: the corrupted validation sentences, unchanged, score {listed}")
        return super().plan()

    def _corrupted(self, valid: PairExamples, count: int) -> list[NDArray[np.int64]]:
        """Return the first validation sentences, with the corruption of epoch 0, the same every time."""
        return [valid.row(n, 0)[0] for n in range(count)]

    def valid_pairs(self, valid: PairExamples) -> list[tuple[str, str]]:
        tokenizer = self.corpus.tokenizer
        targets = [normalize_spaces(text) for (text,) in self.valid_texts()]
        inputs = [
            tokenizer.decode(ids[:-1], skip_special=False) for ids in self._corrupted(valid, len(targets))
        ]
        spaced = [normalize_spaces(text.replace(self._gap, f" {self._gap} ")) for text in inputs]
        return list(zip(spaced, targets, strict=True))

    @property
    def _gap(self) -> str:
        return self.corpus.tokenizer.tokens([self.gap_id])[0]

    def info(self) -> Mapping[str, Any]:
        return {"before": PREFIX, "gap": self._gap}


def normalize_spaces(text: str) -> str:
    return " ".join(text.split())


JOB = JobSpec(
    name="restore",
    summary="Train a model that restores trimmed, gapped or shuffled sentences.",
    factory=RestoreJob,
    data=SentenceData,
    metrics=("loss", "perplexity", "bleu", "chrf", "exact"),
    metric="chrf",
    preset="original",
    defaults={"label_smoothing": 0.1},
)

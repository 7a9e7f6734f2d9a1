"""Job `embed`: train a sentence encoder by contrastive learning, on pairs or on scored pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.examples import SCORE_OFFSET, SCORE_STEPS, EmbeddingExamples
from glassformer.data.sources import TableSource, embedding_pairs
from glassformer.data.store import Ragged, Store
from glassformer.families.sidecars import JobInfo
from glassformer.metrics.embedding import recall_at_1
from glassformer.metrics.regression import regression_scores
from glassformer.schema import setting
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.encoder_job import EncoderJob
from glassformer.training.encoding import Encoded, Row
from glassformer.training.job_spec import JobSpec
from glassformer.training.learner import SentencePairLearner, count_pairs
from glassformer.training.sections import Columns, Paths, TableSection
from glassformer.training.task import ValidationResult, evaluation_batches


@dataclass(frozen=True, kw_only=True)
class EmbeddingData(TableSection):
    """Pairs of similar texts, with hard negatives or with scores."""

    train: Paths = sections.train_files(
        "tables with two texts in a row, and optionally a negative or a score"
    )
    valid: Paths | float = sections.valid_split(0.05)
    columns: Columns | None = sections.column_names(
        "anchor and positive column, and optionally a column of hard negatives or of scores"
    )
    max_len: int | None = sections.maximum_length("a text; longer texts are truncated")
    temperature: float = setting(0.05, "divisor of the cosine similarities in the loss", interval="(0, inf)")


class EmbedJob(EncoderJob[EmbeddingData]):
    """Train a sentence encoder on pairs or on scored pairs."""

    row, unit, count = "pair", "pairs", staticmethod(count_pairs)
    texts_seen, max_epochs = 100_000, 20.0
    encoders = "sentence, bert, roberta or distilbert"

    @property
    def scored(self) -> bool:
        return self.fields[-1] == "score"

    @property
    def num_texts(self) -> int:  # type: ignore[override]
        return 2 if self.scored else len(self.fields)

    @property
    def metric(self) -> str:
        return "spearman" if self.scored else "recall_at_1"

    def open_files(self, files: Sequence[str]) -> TableSource:
        source = embedding_pairs(files, columns=self.data.columns, **self.data.table_options)
        self.fields = source.fields
        self.log_columns(files, source)
        return source

    def texts(self, row: Row) -> Sequence[str]:
        return row[: self.num_texts]

    def max_value(self) -> int:
        return 2 * SCORE_OFFSET if self.scored else 0

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        columns = list(zip(*rows, strict=True))
        texts = columns[: self.num_texts]
        fields = [Ragged.of(tokenizer.encode_ids(list(text))).truncate(self.max_len) for text in texts]
        if self.scored:
            fields.append(
                Ragged.of([[round(float(score) * SCORE_STEPS) + SCORE_OFFSET] for score in columns[2]])
            )
        return fields, {}

    def examples(self, store: Store, *, augment: bool = False) -> EmbeddingExamples:
        return EmbeddingExamples(store, pad_id=self.corpus.pad_id, scored=self.scored)

    def choose_batch(self, most: int, tokens: int) -> int:
        return max(len(self.fields) * self.max_len, min(most, 64 * max(16, tokens // len(self.corpus.train))))

    def head_spec(self, spec: specs.EncoderOnlySpec, family: str | None) -> specs.HeadSpec:
        return spec.head if isinstance(spec.head, specs.EmbedSpec) else specs.EmbedSpec(normalize=True)

    def build(self) -> Bundle:
        bundle, _ = self.build_encoder()
        columns = self.corpus.data_columns
        return replace(bundle, job=JobInfo(name=self.recipe.job, max_len=self.max_len, data_columns=columns))

    def learner(self, model: Any) -> SentencePairLearner:
        return SentencePairLearner(model, temperature=self.data.temperature)

    def validate(
        self, learner: SentencePairLearner, valid: EmbeddingExamples, device: torch.device
    ) -> ValidationResult:
        width = next(iter(self.bundle.spec.stacks().values())).d_model
        queries, keys = (np.zeros((len(valid), width), np.float32) for _ in range(2))
        scores, loss = np.zeros(len(valid), np.float32), 0.0
        for rows, arrays, tensors in evaluation_batches(valid, device, self.recipe.training.batch_limits()):
            loss += float(learner.forward(**tensors))
            queries[rows] = learner.embed(tensors["anchors"]).cpu().numpy()
            keys[rows] = learner.embed(tensors["positives"]).cpu().numpy()
            scores[rows] = arrays.get("scores", 0.0)
        if self.scored:
            similarities = (queries * keys).sum(-1)
            metrics = {"spearman": regression_scores(similarities, scores).spearman}
        else:
            metrics = {"recall_at_1": recall_at_1(queries, keys)}
        return ValidationResult(metrics={"loss": loss / len(valid), **metrics})


JOB = JobSpec(
    name="embed",
    summary="Train a sentence encoder on pairs of similar texts, or on scored pairs.",
    factory=EmbedJob,
    data=EmbeddingData,
    metrics=("loss", "spearman", "recall_at_1"),
    metric="recall_at_1",
    preset="sentence",
)

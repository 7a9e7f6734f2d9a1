"""The job that trains sentence encoders by contrastive learning, on pairs or on scored pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from glassformer.bundle import Bundle, save
from glassformer.core import spec as specs
from glassformer.data.examples import Arrays, pad
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, TableSource, embedding_pairs
from glassformer.data.store import Ragged, Store
from glassformer.families.sidecars import JobInfo
from glassformer.metrics.embedding import recall_at_1
from glassformer.metrics.regression import regression_scores
from glassformer.tokenization import Tokenizer
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.text import (
    Row,
    TextCorpus,
    check_vocabulary,
    encode_rows,
    log_counts,
    max_id,
    prepare_corpus,
)
from glassformer.training.learner import Learner
from glassformer.training.model_setup import (
    build_initialized,
    choose_size,
    max_input_length,
    new_model_spec,
    supported_options,
    with_head,
)
from glassformer.training.recipe import EmbeddingData
from glassformer.training.task import LearnerTask, ValidationResult, evaluation_batches

SCORE_STEPS, SCORE_OFFSET = 1000, 1_000_000  # scores are stored as integers, in thousandths


class EmbeddingExamples:
    """Pairs of texts, with hard negatives or with scores; stored as two or three fields."""

    def __init__(self, store: Store, *, pad_id: int, scored: bool) -> None:
        self.store, self.pad_id, self.scored = store, pad_id, scored

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths = self.store.lengths(rows)
        return lengths[:, :2] if self.scored else lengths

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return anchors (B, S), positives (B, T), and negatives (B, U) or scores (B,), if there are any."""
        fields, lengths = self.store.gather(rows)
        texts = fields[:2] if self.scored else fields
        names = ("anchors", "positives", "negatives")
        arrays: Arrays = {
            name: pad(ids, lengths[:, n], self.pad_id)
            for n, (name, ids) in enumerate(zip(names, texts, strict=False))
        }
        if self.scored:
            arrays["scores"] = ((fields[2] - SCORE_OFFSET) / SCORE_STEPS).astype(np.float32)
        return arrays


def count_pairs(batch: Mapping[str, Any]) -> int:
    """Return the number of pairs in a batch."""
    return len(batch["anchors"])


class SentencePairLearner(Learner):
    """Train a sentence encoder on pairs, against the other pairs of a batch, or on scored pairs.

    temperature: cosine similarities are divided by it.
    """

    def __init__(self, model: torch.nn.Module, *, temperature: float) -> None:
        super().__init__(model)
        self.temperature = temperature

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings (B, D), scaled to length 1."""
        return F.normalize(self.model(ids).float(), dim=-1)

    def forward(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> Tensor:
        queries, keys = self.embed(anchors), self.embed(positives)  # (B, D) each
        if scores is not None:
            return len(scores) * cosent_loss((queries * keys).sum(-1), scores, self.temperature)
        # another pair with the same positive is no negative example
        same = (positives[:, None] == positives).all(-1)
        same = same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
        logits = (queries @ keys.T).masked_fill(same, -torch.inf)
        if negatives is not None:
            logits = torch.cat((logits, queries @ self.embed(negatives).T), dim=-1)
        targets = torch.arange(len(queries), device=queries.device)
        return F.cross_entropy(logits / self.temperature, targets, reduction="sum")


def cosent_loss(similarities: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Return the CoSENT loss of cosine similarities (B,): pairs with a higher score should be more similar.

    It is log(1 + sum exp((s_i - s_j) / temperature)) over all i, j where the score of i is below that of j.

    >>> loss = cosent_loss(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 5.0]), 1.0)
    >>> bool(torch.isclose(loss, torch.tensor(-0.8).exp().log1p()))
    True
    """
    scaled = similarities / temperature
    differences = scaled[:, None] - scaled  # (B, B)
    wrong_order = differences.masked_fill(scores[:, None] >= scores, -torch.inf).flatten()
    return torch.cat((wrong_order.new_zeros(1), wrong_order)).logsumexp(0)


class EmbedJob(Job[EmbeddingData]):
    """Train a sentence encoder; evaluated with Spearman correlation, or with recall@1 on pairs."""

    default_preset = "sentence"
    corpus: TextCorpus
    fields: tuple[str, ...]

    @property
    def scored(self) -> bool:
        return self.fields[-1] == "score"

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            limit = max_input_length(self._encoder(self.base.spec))
            self.update_data(max_len=min(limit, self.base_info.max_len or limit))

    def prepare_data(self) -> None:
        if self.base is not None:
            self._encoder(self.base.spec)
        self.fill_max_len()
        self.corpus = corpus = prepare_corpus(
            self,
            self._read,
            self._write,
            cache_key=(self.max_len, self.recipe.training.max_generate_samples),
            template="cls_sep",
            texts=lambda row: row[:2] if self.scored else row,
        )
        log_counts(self, corpus, "pairs")

    def _read(self, files: Sequence[str]) -> TableSource:
        source = embedding_pairs(files, columns=self.data.columns, encoding=self.data.encoding)
        self.fields = source.fields
        if files == self.data.train and self.data.columns is None and source.unused_columns:
            self.log(source.column_summary)
        return source

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        def encode(rows: list[Row]) -> list[Ragged]:
            columns = list(zip(*rows, strict=True))
            texts = columns[:2] if self.scored else columns
            fields = [Ragged.of(tokenizer.encode_ids(list(text))).truncate(self.max_len) for text in texts]
            if self.scored:
                numbers = [[round(float(score) * SCORE_STEPS) + SCORE_OFFSET] for score in columns[2]]
                fields.append(Ragged.of(numbers))
            return fields

        largest = max(max_id(tokenizer), 2 * SCORE_OFFSET if self.scored else 0)
        rows = source.rows(problems)
        encode_rows(self, folder, rows, self.fields, encode, what="pairs", max_id=largest)
        return {}

    def examples(self, store: Store) -> EmbeddingExamples:
        return EmbeddingExamples(store, pad_id=self.corpus.pad_id, scored=self.scored)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        store, tuning = self.corpus.train, self.fine_tuning
        tokens = sum(store.sizes()[: 2 if self.scored else len(self.fields)])
        size, epochs, reason = choose_size(
            hardware,
            units=tokens,
            vocab_size=1,
            epochs=min(20.0, max(3.0, 100_000 / len(store))),
            length_known=self.has_length,
        )
        self.fill_model(supported_options(self.preset, size.options()))
        batch = min(16_384 if hardware.on_gpu else 4096, 64 * max(16, tokens // len(store)))
        return ([] if tuning else [reason]) + self.fill_training(
            self.examples(store),
            batch=max(len(self.fields) * self.max_len, batch),
            epochs=3 if tuning else epochs,
            lr=3e-5 if tuning else min(2e-3, 0.1 / size.d_model),
        )

    def _encoder(self, spec: Any) -> specs.EncoderOnlySpec:
        if isinstance(spec, specs.EncoderOnlySpec) and isinstance(spec.input, specs.TokensSpec):
            return spec
        raise self.unsupported_model("use a text encoder: sentence, bert, roberta or distilbert")

    def build(self) -> Bundle:
        """Build or load the encoder with its tokenizer, as it will be saved."""
        corpus, base = self.corpus, self.base
        if base is None:
            ids = {"vocab_size": corpus.tokenizer.vocab_size, "pad_id": corpus.pad_id}
            fixed = supported_options(self.preset, {**ids, "max_len": self.max_len})
            spec = self._encoder(new_model_spec(self.recipe.model, fixed))
            if not isinstance(spec.head, specs.EmbedSpec):
                spec = replace(spec, head=specs.EmbedSpec(normalize=True), tied=())
            bundle = Bundle(model=build_initialized(spec))
        else:
            spec = self._encoder(base.spec)
            assert isinstance(spec.input, specs.TokensSpec)
            check_vocabulary(corpus, spec.input.vocab_size)
            head = spec.head if isinstance(spec.head, specs.EmbedSpec) else specs.EmbedSpec(normalize=True)
            bundle = with_head(base, head)
        job = JobInfo(name=self.recipe.job, max_len=self.max_len, data_columns=corpus.data_columns)
        return replace(bundle, tokenizer=corpus.tokenizer, job=job)

    def task(self) -> LearnerTask:
        bundle, training = self.build(), self.recipe.training
        learner = SentencePairLearner(bundle.model, temperature=self.data.temperature)
        valid = self.examples(self.corpus.valid)

        def validate(device: torch.device) -> ValidationResult:
            width = bundle.spec.encoder.d_model  # type: ignore[union-attr]
            queries, keys = (np.zeros((len(valid), width), np.float32) for _ in range(2))
            scores, loss = np.zeros(len(valid), np.float32), 0.0
            for rows, arrays, tensors in evaluation_batches(valid, device, training.batch or 4096):
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

        return LearnerTask(
            learner=learner,
            train=self.examples(self.corpus.train),
            unit="pairs",
            count=count_pairs,
            metric="spearman" if self.scored else "recall_at_1",
            validate=validate,
            save=partial(save, bundle),
        )

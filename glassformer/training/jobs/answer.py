"""Job `answer`: train a model to answer questions with a span of a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from glassformer.bundle import Bundle
from glassformer.data.examples import SpanExamples
from glassformer.data.sources import Source
from glassformer.data.squad import GoldAnswers, questions
from glassformer.data.store import Ragged, Store
from glassformer.errors import EmptyInputError, InputTooLongError, UnsupportedError
from glassformer.messages import quantity
from glassformer.metrics.squad import answer_f1, exact_match
from glassformer.processors.text import select_tokens
from glassformer.schema import setting
from glassformer.tasks.base import Callbacks
from glassformer.tasks.question_answering import QuestionAnswerer, context_windows
from glassformer.tokenization import Encoded as EncodedText
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.encoder_job import EncoderJob
from glassformer.training.encoding import Encoded, Row, answer_tokens
from glassformer.training.job_spec import JobSpec
from glassformer.training.learner import SpanLearner
from glassformer.training.sections import DataSection, Paths
from glassformer.training.task import Sample, ValidationResult, mean_loss

MAX_ANSWER_TOKENS = 30  # as in SQuAD's usual evaluation
SKIP_REJECTED = Callbacks(on_reject=lambda number, reason: None)  # a skipped question counts as wrong


@dataclass(frozen=True, kw_only=True)
class QuestionData(DataSection):
    """Questions with answers in a context."""

    train: Paths = sections.train_files("JSON in SQuAD's format")
    valid: Paths | float = sections.valid_split(0.05)
    encoding: str = sections.file_encoding()
    max_len: int | None = sections.maximum_length("a window of question and context", default=384)
    stride: int = setting(
        128, "tokens that two windows of a long context share", interval="[0, inf)", unit="tokens"
    )


class AnswerJob(EncoderJob[QuestionData]):
    """Train a model for extractive question answering.

    A long context is split into windows. A window that does not contain the answer points to its first token.
    """

    default_max_len = 384
    head_task = "ForQuestionAnswering"
    fields = ("text", "types", "span")
    row, source_row = "window", "question"
    unit = "answer boundaries"

    def prepare_data(self) -> None:
        if self.recipe.training.label_smoothing:
            raise UnsupportedError("the job answer", "training.label_smoothing", "set it to 0")
        super().prepare_data()

    def log_data(self) -> None:
        super().log_data()
        if unanswerable := self.corpus.total("unanswerable"):
            self.facts["questions without an answer"] = unanswerable
            self.log(f"{quantity(unanswerable, 'question')} without an answer")
        if too_long := self.corpus.total("too_long"):
            self.facts["questions over max_len"] = too_long
            skipped = quantity(too_long, "question")
            self.log(f"skipped {skipped} of {self.max_len} tokens or more without the context")

    @property
    def cache_key(self) -> tuple[object, ...]:
        return self.max_len, self.data.stride, self.recipe.training.max_generate_samples

    def open_files(self, files: Sequence[str]) -> Source:
        return questions(files, encoding=self.data.encoding)

    def texts(self, row: Row) -> Sequence[str]:
        return row[:2]

    def max_value(self) -> int:
        return self.max_len

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        windows, spans, skipped = list[EncodedText](), list[list[int]](), 0
        gold = [GoldAnswers.from_json(row[2]) for row in rows]
        encoded = tokenizer.encode_batch([row[1] for row in rows], [row[0] for row in rows])
        for encoding, answers in zip(encoded, gold, strict=True):
            try:
                found = context_windows(encoding, self.max_len, self.data.stride)
            except (InputTooLongError, EmptyInputError):
                skipped += 1
                continue
            for indices in found:
                windows.append(select_tokens(encoding, indices))
                spans.append(answer_tokens(windows[-1], answers))
        ids, types = ([getattr(window, name) for window in windows] for name in ("ids", "type_ids"))
        counts = {"unanswerable": sum(not answers.texts for answers in gold), "too_long": skipped}
        return (Ragged.of(ids), Ragged.of(types), Ragged.of(spans)), counts

    def examples(self, store: Store, *, augment: bool = False) -> SpanExamples:
        return SpanExamples(store, pad_id=self.corpus.pad_id, token_types=self.reads_token_types)

    def build(self) -> Bundle:
        return self.build_labeled()[0]

    def learner(self, model: Any) -> SpanLearner:
        return SpanLearner(model, pad_id=self.corpus.pad_id, r_drop=self.recipe.training.r_drop)

    def validate(self, learner: SpanLearner, valid: SpanExamples, device: torch.device) -> ValidationResult:
        """Compute the loss of all windows, and the metrics of the first questions."""
        batch, texts = self.recipe.training.batch_limits(), self.valid_texts()
        loss = mean_loss(learner, valid, device, batch=batch)
        answerer = QuestionAnswerer(
            replace(self.bundle, model=learner.model),
            window=self.max_len,
            stride=self.data.stride,
            max_answer_tokens=MAX_ANSWER_TOKENS,
            handle_impossible_answer=self.corpus.total("unanswerable") > 0,
            batch_tokens=batch.batch_tokens or (batch.batch_size or 1) * self.max_len,
        )
        found = answerer.run(((question, context) for context, question, _ in texts), SKIP_REJECTED)
        answers = [answer.text if answer is not None else "" for answer in found]
        gold = [GoldAnswers.from_json(row[2]).texts for row in texts]
        count = max(1, len(texts))
        return ValidationResult(
            metrics={
                "loss": loss,
                "exact_match": 100 * sum(map(exact_match, answers, gold)) / count,
                "f1": 100 * sum(map(answer_f1, answers, gold)) / count,
            },
            samples=[
                Sample(source=row[1], expected=" | ".join(dict.fromkeys(expected)), got=answer)
                for row, expected, answer in zip(texts, gold, answers, strict=True)
            ],
        )


JOB = JobSpec(
    name="answer",
    summary="Train a model that answers questions with a span of a context.",
    factory=AnswerJob,
    data=QuestionData,
    metrics=("loss", "exact_match", "f1"),
    metric="f1",
    preset="bert",
)

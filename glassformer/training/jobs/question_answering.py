"""The job that trains a model to answer questions with a span of a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glassformer.bundle import Bundle, save
from glassformer.data.examples import SpanExamples
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source
from glassformer.data.squad import GoldAnswers, questions
from glassformer.data.store import Ragged, Store
from glassformer.errors import EmptyInputError, InputTooLongError, UnsupportedError
from glassformer.metrics.squad import answer_f1, exact_match
from glassformer.tasks.base import Callbacks, select_tokens
from glassformer.tasks.question_answering import QuestionAnswerer, context_windows
from glassformer.tokenization import Encoded, Tokenizer
from glassformer.training.jobs.labels import with_classes
from glassformer.training.jobs.text import Row, encode_rows, log_counts, max_id, prepare_corpus, read_texts
from glassformer.training.jobs.text_encoder import EncoderJob
from glassformer.training.learner import SpanLearner, count_labels
from glassformer.training.recipe import QuestionData
from glassformer.training.task import LearnerTask, Sample, ValidationResult, mean_loss

MAX_ANSWER_TOKENS = 30  # as in SQuAD's usual evaluation
SKIP_REJECTED = Callbacks(on_reject=lambda number, reason: None)  # a skipped question counts as wrong
NO_ANSWER = 0  # token that a window without the answer points to: the first one, [CLS]


class AnswerJob(EncoderJob[QuestionData]):
    """Train a model for extractive question answering; evaluated with SQuAD's exact match and F1.

    A long context is split into windows. A window that does not contain the answer points to its first token.
    """

    default_max_len = 384
    head_task = "ForQuestionAnswering"

    def prepare_data(self) -> None:
        self.check_base()
        if self.recipe.training.label_smoothing:
            raise UnsupportedError("the job answer", "training.label_smoothing", "set it to 0")
        self.corpus = corpus = prepare_corpus(
            self,
            partial(questions, encoding=self.data.encoding),
            self._write,
            cache_key=(self.max_len, self.data.stride, self.recipe.training.max_generate_samples),
            template="cls_sep",
            texts=lambda row: row[:2],
        )
        log_counts(self, corpus, "windows")
        if unanswerable := corpus.total("unanswerable"):
            self.facts["questions without an answer"] = unanswerable
            self.log(f"{unanswerable:,} questions have no answer")
        if too_long := corpus.total("too_long"):
            self.facts["questions over max_len"] = too_long
            self.log(f"skipped {too_long:,} questions that fill {self.max_len} tokens without their context")

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        unanswerable, too_long = list[int](), list[int]()  # of each group of rows

        def encode(rows: list[Row]) -> tuple[Ragged, Ragged, Ragged]:
            windows, spans, skipped = list[Encoded](), list[list[int]](), 0
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
            unanswerable.append(sum(not answers.texts for answers in gold))
            too_long.append(skipped)
            types = Ragged.of([window.type_ids for window in windows])
            return Ragged.of([window.ids for window in windows]), types, Ragged.of(spans)

        fields, largest = ("text", "types", "span"), max(max_id(tokenizer), self.max_len)
        encode_rows(self, folder, source.rows(problems), fields, encode, what="questions", max_id=largest)
        return {"unanswerable": sum(unanswerable), "too_long": sum(too_long)}

    def _examples(self, store: Store) -> SpanExamples:
        return SpanExamples(store, pad_id=self.corpus.pad_id, token_types=self.reads_token_types)

    def train_examples(self) -> SpanExamples:
        return self._examples(self.corpus.train)

    def build(self) -> Bundle:
        """Build or load the model with its tokenizer, as it will be saved."""
        bundle, _ = self.build_encoder(2)
        return with_classes(bundle, self.recipe.job, max_len=self.max_len)

    def task(self) -> LearnerTask:
        training, bundle = self.recipe.training, self.build()
        learner = SpanLearner(bundle.model, pad_id=self.corpus.pad_id, r_drop=training.r_drop)
        texts = read_texts(self.corpus.valid.folder)
        return LearnerTask(
            learner=learner,
            train=self.train_examples(),
            unit="answer boundaries",
            count=count_labels,
            metric="f1",
            validate=partial(self._validate, learner, bundle, texts),
            save=partial(save, bundle),
        )

    def _validate(
        self, learner: SpanLearner, bundle: Bundle, texts: Sequence[Sequence[str]], device: torch.device
    ) -> ValidationResult:
        """Compute the loss of all windows, and the metrics of the first questions."""
        batch = self.recipe.training.batch or 4096
        loss = mean_loss(learner, self._examples(self.corpus.valid), device, batch=batch)
        answerer = QuestionAnswerer(
            replace(bundle, model=learner.model),
            window=self.max_len,
            stride=self.data.stride,
            max_answer_tokens=MAX_ANSWER_TOKENS,
            handle_impossible_answer=self.corpus.total("unanswerable") > 0,
            batch_tokens=batch,
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


def answer_tokens(window: Encoded, answers: GoldAnswers) -> list[int]:
    """Return the first and the last token of the first answer that lies in a window, else NO_ANSWER twice."""
    context = [n for n, sequence in enumerate(window.sequence_ids) if sequence == 1]
    first, last = window.offsets[context[0]][0], window.offsets[context[-1]][1]
    for text, start in zip(answers.texts[:1], answers.starts, strict=False):
        end = start + len(text)
        if first <= start and end <= last:
            inside = [n for n in context if window.offsets[n][1] > start and window.offsets[n][0] < end]
            if inside:
                return [inside[0], inside[-1]]
    return [NO_ANSWER, NO_ANSWER]

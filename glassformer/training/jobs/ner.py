"""Job `ner`: train a token classifier, e.g. for named-entity recognition (NER)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from glassformer.bundle import Bundle
from glassformer.data.examples import IGNORE_INDEX, TaggedExamples
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source
from glassformer.data.store import Ragged, Store
from glassformer.data.tagged import WORD_SEPARATOR, TaggedSource, tagged_sentences
from glassformer.metrics.entities import OUTSIDE, entity_scores, split_tag
from glassformer.processors.text import truncate_longest_first
from glassformer.schema import setting
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.encoder_job import LabeledTextJob
from glassformer.training.encoding import Encoded, Row, token_labels
from glassformer.training.job_spec import JobSpec
from glassformer.training.labels import order_classes
from glassformer.training.learner import LabelLearner
from glassformer.training.sections import Columns, DataSection, Paths
from glassformer.training.task import Sample, ValidationResult, evaluation_batches


@dataclass(frozen=True, kw_only=True)
class TaggedData(DataSection):
    """Sentences with a tag per word, e.g. named entities."""

    train: Paths = sections.train_files(
        "a word and its tag per line and a blank line between sentences, or JSON Lines with two lists"
    )
    valid: Paths | float = sections.valid_split(0.05)
    encoding: str = sections.file_encoding()
    columns: Columns | None = setting(
        None,
        "word and tag column; null is the first and the last, or lists with usual names (tokens, ner_tags)",
        unit="names or numbers",
    )
    max_len: int | None = sections.maximum_length("a sentence; longer ones are truncated and counted")


def sort_tags(tags: Sequence[str]) -> list[str]:
    """Sort tags: O first, then by type and prefix.

    >>> sort_tags(["I-PER", "B-LOC", "O", "B-PER"])
    ['O', 'B-LOC', 'B-PER', 'I-PER']
    """
    return sorted(tags, key=lambda tag: (tag != OUTSIDE, split_tag(tag)[1], split_tag(tag)[0]))


class NamedEntityJob(LabeledTextJob[TaggedData]):
    """Train a token classifier.

    The first token of a word has the word's tag; the loss ignores the others.
    """

    head_task = "ForTokenClassification"
    fields = ("text", "label")
    row = truncates = "sentence"
    unit = "words"

    def open_files(self, files: Sequence[str]) -> TaggedSource:
        return tagged_sentences(files, columns=self.data.columns, encoding=self.data.encoding)

    def texts(self, row: Row) -> Sequence[str]:
        return (row[0].replace(WORD_SEPARATOR, " "),)

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        numbers = {tag: n for n, tag in enumerate(self.classes)}
        sentences = [[field.split(WORD_SEPARATOR) for field in row] for row in rows]
        texts = [" ".join(words) for words, _ in sentences]
        encoded = tokenizer.encode_batch(texts)
        fitting = [truncate_longest_first(text, self.max_len) for text in encoded]
        labels = [
            token_labels(encoding, text, words, tags, numbers)
            for encoding, text, (words, tags) in zip(fitting, texts, sentences, strict=True)
        ]
        fields = Ragged.of([text.ids for text in fitting]), Ragged.of(labels)
        return fields, {"truncated": sum(len(text) > self.max_len for text in encoded)}

    def find_classes(self, source: Source) -> Sequence[str]:
        tags = {tag for row in source.rows(RowErrors()) for tag in row[1].split(WORD_SEPARATOR)}
        return order_classes(tags, self.base, sort=sort_tags)

    def log_data(self) -> None:
        super().log_data()
        self.facts["tags"] = list(self.classes)
        self.log(f"{len(self.classes)} tags: {', '.join(self.classes)}")

    def examples(self, store: Store, *, augment: bool = False) -> TaggedExamples:
        return TaggedExamples(store, pad_id=self.corpus.pad_id)

    def build(self) -> Bundle:
        return self.build_labeled(self.classes)[0]

    def learner(self, model: Any) -> LabelLearner:
        training = self.recipe.training
        return LabelLearner(model, label_smoothing=training.label_smoothing or 0.0, r_drop=training.r_drop)

    def validate(
        self, learner: LabelLearner, valid: TaggedExamples, device: torch.device
    ) -> ValidationResult:
        total, words, correct = 0.0, 0, 0
        predicted: list[list[str]] = [[] for _ in range(len(valid))]
        true: list[list[str]] = [[] for _ in range(len(valid))]
        for rows, arrays, tensors in evaluation_batches(valid, device, self.recipe.training.batch_limits()):
            logits = learner.logits(tensors["inputs"])
            total += float(learner.loss(logits, tensors["labels"]))
            for row, labels, best in zip(
                rows, arrays["labels"], logits.argmax(-1).cpu().numpy(), strict=True
            ):
                known = labels != IGNORE_INDEX
                words, correct = words + int(known.sum()), correct + int((labels == best)[known].sum())
                true[row] = [self.classes[n] for n in labels[known]]
                predicted[row] = [self.classes[n] for n in best[known]]
        scores = entity_scores(predicted, true)
        samples = [
            Sample(source=sentence.replace(WORD_SEPARATOR, " "), expected=" ".join(gold), got=" ".join(got))
            for (sentence, _), gold, got in zip(self.valid_texts(), true, predicted, strict=False)
        ]
        return ValidationResult(
            metrics={
                "loss": total / max(1, words),
                "accuracy": correct / max(1, words),
                "precision": scores.precision,
                "recall": scores.recall,
                "f1": scores.f1,
            },
            samples=samples,
            tables={"classes": [row._asdict() for row in scores.table]},
        )


JOB = JobSpec(
    name="ner",
    summary="Train a token classifier, e.g. for named entities.",
    factory=NamedEntityJob,
    data=TaggedData,
    metrics=("loss", "accuracy", "precision", "recall", "f1"),
    metric="f1",
    preset="bert",
)

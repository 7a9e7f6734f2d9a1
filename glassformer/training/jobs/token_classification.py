"""The job that trains a token classifier, e.g. for named-entity recognition (NER)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from glassformer.bundle import Bundle, save
from glassformer.data.examples import IGNORE_INDEX, TaggedExamples
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source
from glassformer.data.store import Ragged
from glassformer.data.tagged import WORD_SEPARATOR, TaggedSource, tagged_sentences
from glassformer.errors import InvalidValueError, UnknownNameError
from glassformer.metrics.entities import OUTSIDE, entity_scores, split_tag
from glassformer.tasks.base import truncate_longest_first
from glassformer.tasks.token_classification import trim_offsets
from glassformer.tokenization import Encoded, Tokenizer
from glassformer.training.jobs.labels import classes_of, with_classes
from glassformer.training.jobs.text import Row, encode_rows, log_counts, max_id, prepare_corpus, read_texts
from glassformer.training.jobs.text_encoder import EncoderJob
from glassformer.training.learner import LabelLearner, count_labels
from glassformer.training.recipe import TaggedData
from glassformer.training.task import LearnerTask, Sample, ValidationResult, evaluation_batches

NO_LABEL = 0  # in the store, of special tokens and of all but the first token of a word


def sort_tags(tags: Sequence[str]) -> list[str]:
    """Sort tags: O first, then by type and prefix.

    >>> sort_tags(["I-PER", "B-LOC", "O", "B-PER"])
    ['O', 'B-LOC', 'B-PER', 'I-PER']
    """
    return sorted(tags, key=lambda tag: (tag != OUTSIDE, split_tag(tag)[1], split_tag(tag)[0]))


class NamedEntityJob(EncoderJob[TaggedData]):
    """Train a token classifier; evaluated with the F1 of entities.

    The first token of a word has the word's tag; the loss ignores the others.
    """

    head_task = "ForTokenClassification"
    classes: Sequence[str] = ()

    def adopt_base_settings(self) -> None:
        super().adopt_base_settings()
        if self.base is not None:
            self.classes = classes_of(self.base) or ()

    def prepare_data(self) -> None:
        self.check_base()
        self.corpus = corpus = prepare_corpus(
            self,
            self._read,
            self._write,
            cache_key=(self.max_len, self.recipe.training.max_generate_samples),
            template="cls_sep",
            texts=lambda row: (row[0].replace(WORD_SEPARATOR, " "),),
        )
        self.classes = corpus.notes["valid"]["classes"]
        log_counts(self, corpus, "sentences")
        self.facts["tags"] = list(self.classes)
        self.log(f"{len(self.classes)} tags: {', '.join(self.classes)}")
        self.log_truncated("sentences")

    def _read(self, files: Sequence[str]) -> TaggedSource:
        return tagged_sentences(files, columns=self.data.columns, encoding=self.data.encoding)

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        """Write token ids and tag numbers; the tags come from the base model or the first split."""
        self.classes = self.classes or self._find_tags(source)
        numbers = {tag: n for n, tag in enumerate(self.classes)}
        truncated: list[int] = []  # number of truncated sentences in each group of rows

        def encode(rows: list[Row]) -> tuple[Ragged, Ragged]:
            sentences = [[field.split(WORD_SEPARATOR) for field in row] for row in rows]
            texts = [" ".join(words) for words, _ in sentences]
            encoded = tokenizer.encode_batch(texts)
            truncated.append(sum(len(text) > self.max_len for text in encoded))
            fitting = [truncate_longest_first(text, self.max_len) for text in encoded]
            labels = [
                token_labels(encoding, text, words, tags, numbers)
                for encoding, text, (words, tags) in zip(fitting, texts, sentences, strict=True)
            ]
            return Ragged.of([text.ids for text in fitting]), Ragged.of(labels)

        fields, largest = ("text", "label"), max(max_id(tokenizer), len(self.classes))
        encode_rows(self, folder, source.rows(problems), fields, encode, what="sentences", max_id=largest)
        return {"classes": list(self.classes), "truncated": sum(truncated)}

    def _find_tags(self, source: Source) -> Sequence[str]:
        """Return the tags of a split, in the order of the base model if it has the same tags."""
        tags = {tag for row in source.rows(RowErrors()) for tag in row[1].split(WORD_SEPARATOR)}
        if len(tags) < 2:
            raise InvalidValueError("the set of tags", sorted(tags), "at least two tags")
        before = classes_of(self.base) if self.base else None
        return before if before is not None and set(before) == tags else sort_tags(list(tags))

    def train_examples(self) -> TaggedExamples:
        return TaggedExamples(self.corpus.train, pad_id=self.corpus.pad_id)

    def build(self) -> Bundle:
        """Build or load the model with its tokenizer and tags, as it will be saved."""
        bundle, _ = self.build_encoder(len(self.classes))
        return with_classes(bundle, self.recipe.job, self.classes, max_len=self.max_len)

    def task(self) -> LearnerTask:
        training, bundle = self.recipe.training, self.build()
        learner = LabelLearner(
            bundle.model, label_smoothing=training.label_smoothing or 0.0, r_drop=training.r_drop
        )
        valid = TaggedExamples(self.corpus.valid, pad_id=self.corpus.pad_id)
        return LearnerTask(
            learner=learner,
            train=self.train_examples(),
            unit="words",
            count=count_labels,
            metric="f1",
            validate=partial(self._validate, learner, valid),
            save=partial(save, bundle),
        )

    def _validate(
        self, learner: LabelLearner, valid: TaggedExamples, device: torch.device
    ) -> ValidationResult:
        total, words, correct = 0.0, 0, 0
        predicted: list[list[str]] = [[] for _ in range(len(valid))]
        true: list[list[str]] = [[] for _ in range(len(valid))]
        for rows, arrays, tensors in evaluation_batches(valid, device, self.recipe.training.batch or 4096):
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
            for (sentence, _), gold, got in zip(
                read_texts(self.corpus.valid.folder), true, predicted, strict=False
            )
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


def token_labels(
    encoded: Encoded, text: str, words: Sequence[str], tags: Sequence[str], numbers: Mapping[str, int]
) -> list[int]:
    """Return the tag number + 1 of the first token of each word, and NO_LABEL for other tokens.

    text: the words joined by spaces, which was encoded. numbers: the number of each tag.
    """
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    labels, before = list[int](), -1
    for sequence, (start, end) in zip(encoded.sequence_ids, encoded.offsets, strict=True):
        start, end = trim_offsets(text, start, end)
        word = -1 if sequence is None or start == end else bisect_right(starts, start) - 1
        if word > before:
            if tags[word] not in numbers:
                hint = "every tag needs examples in the training data"
                raise UnknownNameError("tag", tags[word], numbers, hint, where="the validation data")
            labels.append(numbers[tags[word]] + 1)
            before = word
        else:
            labels.append(NO_LABEL)
    return labels

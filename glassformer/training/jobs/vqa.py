"""Job `vqa`: train a model that answers questions about images."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from glassformer.bundle import Bundle, load
from glassformer.data.captions import ImageQuestionSource
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source
from glassformer.data.store import Ragged, Store
from glassformer.errors import InvalidValueError, MissingValueError
from glassformer.metrics.vqa import vqa_metric
from glassformer.schema import setting
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.encoding import Encoded, Row
from glassformer.training.hardware import Hardware
from glassformer.training.image_answers import (
    AnswerFormat,
    ImageQuestionExamples,
    ImageQuestionLearner,
    answer_format,
    gray,
)
from glassformer.training.image_text_job import CaptionData, ImageTextJob
from glassformer.training.job_spec import JobSpec
from glassformer.training.labels import classes_of, order_classes, with_classes
from glassformer.training.learner import count_labels
from glassformer.training.model_setup import (
    build_initialized,
    new_model_spec,
    supported_options,
    with_head,
)
from glassformer.training.sections import Columns, Paths
from glassformer.training.task import Sample, ValidationResult, evaluation_batches
from glassformer.training.text_job import check_vocabulary
from glassformer.training.vision_language import connect

NEW_CONNECTOR_LR = 1e-3


@dataclass(frozen=True, kw_only=True)
class ImageQuestionData(CaptionData):
    """Images with questions and answers."""

    train: Paths = sections.train_files("tables with an image path, a question and an answer in a row")
    columns: Columns | None = sections.column_names(
        "image, question and answer column, e.g. `[image, question, answer]`"
    )
    max_len: int | None = sections.maximum_length("a question; longer ones are truncated", default=64)
    min_count: int = setting(
        1, "rarer answers are not learned; for a model that chooses among answers", interval="[1, inf)"
    )


class VQAJob(ImageTextJob[ImageQuestionData]):
    """Train a model to choose the answer among those of the training data, or to generate it.

    By default, the model chooses among answers; a base model answers in its own format.
    """

    template = "cls_sep"
    fields = ("question", "answer", "image")
    row, unit, count = "question", "answers", staticmethod(count_labels)
    text_cost = 2 / 3  # with and without the image

    @cached_property
    def answers(self) -> AnswerFormat:
        """How the model answers."""
        kind = answer_format(self.base)
        if kind is None:
            raise self.unsupported_model("use a model of questions about images, e.g. vilt, blip or llava")
        return kind(self.base)

    @cached_property
    def base(self) -> Bundle | None:
        """The base model; with `model.image_encoder`, it is connected to this image encoder."""
        base, image = super().base, self.recipe.model.image_encoder
        if image is None:
            return base
        if base is None:
            raise MissingValueError("model.folder", "of a decoder, by model.image_encoder")
        return connect(load(image, dtype="float32"), base, seed=self.recipe.seed)

    def base_image_input(self) -> Any:
        parts = () if self.base is None else self.base.spec.inputs()
        self.answers  # noqa: B018 (raises for other models)
        return next((part for part in parts if part.modality == "image"), None)

    def check_model(self) -> None:
        super().check_model()
        if not self.fine_tuning and not supported_options(self.preset, {"image_kinds": 1}):
            raise self.unsupported_model("use vilt-mini or vilt-b32")

    def adopt_base_settings(self) -> None:
        super().adopt_base_settings()
        self.answers.classes = classes_of(self.base) or ()

    def fill_max_len(self) -> None:
        super().fill_max_len()
        self.answers.max_len = self.max_len

    @property
    def cache_key(self) -> tuple[object, ...]:
        return *super().cache_key, self.data.min_count, self.num_texts

    @property
    def num_texts(self) -> int:
        return sys.maxsize if self.answers.chooses else super().num_texts  # choosing an answer takes no time

    def open_files(self, files: Sequence[str]) -> ImageQuestionSource:
        data = self.data
        return ImageQuestionSource(files, columns=data.columns, images=data.images, **data.table_options)

    def max_value(self) -> int:
        return len(self.answers.classes)

    def write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        if self.answers.chooses and not self.answers.classes:
            self.answers.classes = self._find_classes(source)
        return super().write(tokenizer, folder, source, problems)

    def _find_classes(self, source: Source) -> list[str]:
        """Return the answers to learn: those of the base model if it has all."""
        counts = Counter(row[2] for row in source.rows(RowErrors()))
        answers = [answer for answer, count in counts.items() if count >= self.data.min_count]
        if len(answers) < 2:
            hint = "provide more data" if self.data.min_count == 1 else "lower data.min_count"
            raise InvalidValueError("the number of answers to learn", len(answers), "at least 2", hint)
        known = classes_of(self.base) or []
        return known if known and {*answers} <= {*known} else order_classes(answers, None)

    def notes(self, counts: Counter[Any]) -> dict[str, Any]:
        return {"classes": list(self.answers.classes)}

    def log_data(self) -> None:
        self.answers.classes = self.corpus.notes["valid"]["classes"]
        self.answers.pad_id = self.corpus.pad_id
        super().log_data()

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        questions = self.answers.questions(tokenizer, [row[1] for row in rows])
        answers = self.answers.answers(tokenizer, [row[2] for row in rows])
        return [Ragged.of(questions), Ragged.of(answers)], {}

    def examples(self, store: Store, *, augment: bool = False) -> ImageQuestionExamples:
        return ImageQuestionExamples(answers=self.answers, **self.example_options(store, augment=augment))

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        is_new = self.recipe.model.image_encoder is not None  # the connector
        raised = 1 if self.recipe.training.lora_r is None else 10  # by `fill_training`
        return self.choose_image_model(hardware, tuned_lr=NEW_CONNECTOR_LR / raised if is_new else 1e-5)

    def build(self) -> Bundle:
        corpus, bundle = self.corpus, self.base
        if bundle is None:
            fixed = {
                "vocab_size": corpus.tokenizer.vocab_size,
                "max_len": self.max_len,
                "image_size": self.image_size,
                "pad_id": corpus.pad_id,
                "num_labels": len(self.answers.classes),
            }
            bundle = Bundle(model=build_initialized(new_model_spec(self.recipe.model, fixed)))
        else:
            question: Any = bundle.spec.inputs()[0]
            check_vocabulary(corpus, question.vocab_size)
            if self.answers.chooses:
                head: Any = bundle.spec.head
                bundle = with_head(bundle, replace(head, num_labels=len(self.answers.classes)))
        bundle = self.with_sidecars(bundle)
        if self.recipe.model.image_encoder is not None:  # only the connector is new
            bundle.model.requires_grad_(False)
            bundle.model.embed.connector.requires_grad_(True)  # type: ignore[union-attr]
        if not self.answers.chooses:
            return bundle
        shared: dict[str, Any] = {"max_len": self.max_len, "data_columns": corpus.data_columns}
        return with_classes(bundle, self.recipe.job, self.answers.classes, **shared)

    def learner(self, model: Any) -> ImageQuestionLearner:
        options = self.recipe.training
        smoothing = options.label_smoothing or 0.0
        return ImageQuestionLearner(
            model, answers=self.answers, label_smoothing=smoothing, r_drop=options.r_drop
        )

    def validate(
        self, learner: ImageQuestionLearner, valid: ImageQuestionExamples, device: torch.device
    ) -> ValidationResult:
        """Compute the loss on all examples, and the accuracy of the answers, also without the images."""
        rows: dict[tuple[str, str], list[int]] = {}
        texts = self.valid_texts()
        for number, (image, question, _) in enumerate(texts):
            rows.setdefault((image, question), []).append(number)
        firsts = [numbers[0] for numbers in rows.values()]
        references = [[texts[number][2] for number in numbers] for numbers in rows.values()]
        loss, answers = self._answers(learner, valid, firsts, device)
        scores = {name: vqa_metric(found, references)["accuracy"] for name, found in answers.items()}
        samples = [
            Sample(source=" ".join(key), expected=wanted[0], got=answer)
            for key, wanted, answer in zip(rows, references, answers["vqa_accuracy"], strict=True)
        ]
        return ValidationResult(
            metrics={"loss": loss, **{name: score.score for name, score in scores.items()}},
            samples=samples,
            signatures={name: score.signature for name, score in scores.items()},
        )

    def _answers(
        self,
        learner: ImageQuestionLearner,
        valid: ImageQuestionExamples,
        rows: Sequence[int],
        device: torch.device,
    ) -> tuple[float, dict[str, list[str]]]:
        """Return the mean loss, and the answers of these rows by metric: with images, and with gray ones."""
        limits = self.recipe.training.batch_limits()
        total, count = 0.0, 0
        model, tokenizer = self.answers.prepare(learner.model), self.corpus.tokenizer
        chosen: dict[str, dict[int, str]] = {"vqa_accuracy": {}, "question_only": {}}
        wanted = {*rows}
        for numbers, arrays, tensors in evaluation_batches(valid, device, limits):
            total += float(learner.forward(**tensors))
            count += count_labels(arrays)
            if wanted.isdisjoint(numbers.tolist()):
                continue
            images = tensors.pop("images")
            for name, pixels in zip(chosen, (images, gray(images)), strict=True):
                found = self.answers.predict(model, tokenizer, pixels, **tensors)
                chosen[name] |= zip(numbers.tolist(), found, strict=True)
        return total / max(1, count), {name: [best[row] for row in rows] for name, best in chosen.items()}


JOB = JobSpec(
    name="vqa",
    summary="Train a model that answers questions about images.",
    factory=VQAJob,
    data=ImageQuestionData,
    metrics=("loss", "vqa_accuracy", "question_only"),
    metric="vqa_accuracy",
    preset="vilt-mini",
    batch_unit="examples",
)

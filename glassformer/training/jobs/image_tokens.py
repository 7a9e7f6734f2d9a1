"""Job `image_tokens`: train a decoder that draws images as codes of an autoencoder, DALL-E style.

B examples, N codes of an image, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.image_tokens import ImageTokensModel
from glassformer.data.examples import IGNORE_INDEX, Arrays
from glassformer.data.image_files import is_array_file
from glassformer.data.images import Augment, ImageSet
from glassformer.data.randomness import uniform
from glassformer.data.store import Store
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError
from glassformer.metrics.text import perplexity
from glassformer.tasks.image_tokens import TokenImageGenerator
from glassformer.training import sections
from glassformer.training.drawing_job import ClassDrawingJob, DrawingJob, TextDrawingJob
from glassformer.training.hardware import Hardware
from glassformer.training.image_folder_job import ImageFolderData
from glassformer.training.image_text_job import CaptionData
from glassformer.training.job import Data
from glassformer.training.job_spec import JobSpec
from glassformer.training.latents import CaptionedImages, ClassImages
from glassformer.training.learner import Learner, count_labels, vocabulary_loss
from glassformer.training.model_setup import build_initialized, new_model_spec, supported_options
from glassformer.training.recipe import BatchLimits
from glassformer.training.task import ValidationResult, mean_loss

CONDITION_DROPOUT = 0.1  # probability of no text or class in training, for guidance
SAMPLE_GUIDANCE = 3.0  # of the images drawn in a validation
IMAGES_TO_TRAIN_ON = {True: 2_000_000, False: 100_000}  # on a GPU, on a CPU
ONLY_SIZE = "null is the size of the autoencoder, the only one"


class ImageTokensLearner(Learner):
    """Train the decoder of a model of image tokens to predict each code from what comes before it."""

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x, context = self.model.decoder.hidden_states(ids)
        return vocabulary_loss(self.model.decoder, x, context, labels, self.label_smoothing)


def token_batch(
    spec: specs.ImageTokensModelSpec,
    conditions: Sequence[Sequence[int]],
    codes: NDArray[Any],
    dropped: NDArray[np.bool_] | None = None,
) -> Arrays:
    """Return the inputs ids and labels (B, T) for texts or classes and codes (B, N); only codes are learned.

    dropped (B,): examples without their condition.
    """
    shape = len(codes), spec.max_text_len + spec.num_cells
    ids, labels = np.full(shape, spec.image_start_id), np.full(shape, IGNORE_INDEX)
    for row, condition in enumerate(conditions):
        prompt = spec.prompt(() if dropped is not None and dropped[row] else condition)
        start = len(prompt)
        ids[row, :start] = prompt
        ids[row, start : start + spec.num_cells - 1] = codes[row, :-1]
        labels[row, start - 1 : start - 1 + spec.num_cells] = codes[row]
    return {"ids": ids, "labels": labels}


def drop_conditions(rows: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.bool_]:
    """Choose the examples that are trained without their condition (B,)."""
    return uniform(seed, epoch, rows, 2)[:, 1] < CONDITION_DROPOUT


class ClassCodes(ClassImages):
    """Classes and the codes of their images. augment: of the training, which also drops classes."""

    def __init__(self, images: ImageSet, spec: specs.ImageTokensModelSpec, **options: Any) -> None:
        super().__init__(images, **options)
        self.spec = spec

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return ids and labels (B, T)."""
        numbers = self.rows[rows]
        classes = self.images.labels(numbers)[:, None].tolist()
        dropped = None if self.augment is None else drop_conditions(numbers, seed=self.seed, epoch=epoch)
        return token_batch(self.spec, classes, self.inputs(numbers, epoch), dropped)


class CaptionCodes(CaptionedImages):
    """Captions and the codes of their images. augment: of the training, which also drops captions."""

    def __init__(self, store: Store, folder: Path, spec: specs.ImageTokensModelSpec, **options: Any) -> None:
        super().__init__(store, folder, **options)
        self.spec = spec

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return ids and labels (B, T)."""
        (ids, *_, numbers), lengths = self.store.gather(rows)
        texts = [text.tolist() for text in np.split(ids, lengths[:, 0].cumsum()[:-1])]
        dropped = None if self.augment is None else drop_conditions(rows, seed=self.seed, epoch=epoch)
        return token_batch(self.spec, texts, self.images(numbers, rows, epoch), dropped)


class ImageTokensJob(DrawingJob[Data]):
    """Train a decoder on the codes of images."""

    unit, count = "tokens", staticmethod(count_labels)
    architecture = "image tokens model"
    generator = staticmethod(partial(TokenImageGenerator, guidance_scale=SAMPLE_GUIDANCE))
    sample_settings = f"guidance {SAMPLE_GUIDANCE:g}"

    def check_model(self) -> None:
        super().check_model()
        if self.autoencoder is None:
            hint = "train one with the job autoencoder"
            raise MissingValueError("model.autoencoder", "by the job image_tokens", hint)
        if self.autoencoder.spec.num_codes is None:
            expected = "the folder of an autoencoder with a codebook"
            raise InvalidValueError("model.autoencoder", self.recipe.model.autoencoder, expected)
        options = replace(self.recipe.model, preset=self.preset)
        if self.base_spec is None and new_model_spec(options, {}).architecture != "decoder-only":
            raise self.unsupported_model("use llama or another family of decoders")

    def new_spec(self, words: int, max_text_len: int) -> specs.ImageTokensModelSpec:
        """Return the spec of a new model. words: number of tokens of the texts, or of classes."""
        autoencoder = self.autoencoder.spec
        rows, columns = (side // autoencoder.stride for side in autoencoder.input.image_size)
        sizes = {
            "vocab_size": autoencoder.num_codes + 1 + words,
            "max_len": max_text_len + 1 + rows * columns,
        }
        decoder: Any = new_model_spec(replace(self.recipe.model, preset=self.preset), sizes)
        head = specs.LanguageModelSpec(vocab_size=autoencoder.num_codes)
        return specs.ImageTokensModelSpec(
            decoder=replace(decoder, head=head, tied=()),
            autoencoder=autoencoder,
            num_classes=words if self.condition == "class" else None,
        )

    def build_model(self) -> Bundle:
        """Build the model, or return the one to fine-tune; its autoencoder is not trained."""
        bundle = self.base
        if bundle is None:
            decoder: Any = build_initialized(self.model_spec.decoder)
            model = ImageTokensModel(self.model_spec, decoder=decoder, autoencoder=self.autoencoder)
            bundle = Bundle(model=model)
        self.autoencoder.requires_grad_(False)
        return bundle

    @property
    def side(self) -> int:
        """The side of the images that the autoencoder was trained on."""
        side, chosen = self.autoencoder.spec.input.image_size[0], self.data.image_size  # type: ignore[attr-defined]
        if chosen is not None and {*chosen} != {side}:
            raise InvalidValueError("data.image_size", list(chosen), f"{side}, as of the autoencoder")
        return int(side)

    def encode_images(self, images: Tensor) -> Tensor:
        codes: Tensor = self.autoencoder.encode(images).ids
        return codes.flatten(1).int()

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        examples, autoencoder = self.train_examples(), self.autoencoder.spec
        count = len(examples)
        tokens = count * (autoencoder.input.image_size[0] // autoencoder.stride) ** 2
        epochs = min(300.0, max(1.0, IMAGES_TO_TRAIN_ON[hardware.on_gpu] / count))
        size, epochs, reasons = self.choose_size(
            hardware, units=tokens, unit="image tokens", vocab_size=autoencoder.num_codes, epochs=epochs
        )
        self.fill_model(supported_options(self.preset, size.options()))
        return reasons + self.fill_training(
            examples,
            batch=max(2, min(256 if hardware.on_gpu else 32, count // 4)),
            epochs=5 if self.fine_tuning else float(f"{epochs:.2g}"),
            lr=1e-4 if self.fine_tuning else min(1e-3, 0.25 / size.d_model),
        )

    def learner(self, model: Any) -> ImageTokensLearner:
        return ImageTokensLearner(model, label_smoothing=self.recipe.training.label_smoothing or 0.0)

    def validate(self, learner: ImageTokensLearner, valid: Any, device: torch.device) -> ValidationResult:
        """Compute the loss of the codes, and draw images."""
        limits = self.recipe.training.batch_limits(BatchLimits(batch_size=128))
        loss = mean_loss(learner, valid, device, batch=limits)
        metrics = {"loss": loss, "perplexity": perplexity(loss)}
        return ValidationResult(metrics=metrics, images=self.draw_samples())


@dataclass(frozen=True, kw_only=True)
class ClassTokensData(Augment, ImageFolderData):
    """Images and their classes."""

    input: Literal["class"] = sections.input_kind("class", "text or class")
    image_size: tuple[int, ...] | None = sections.image_sides(ONLY_SIZE)


class ClassTokens(ImageTokensJob[ClassTokensData], ClassDrawingJob[ClassTokensData]):
    """Train a decoder of [class | codes]."""

    def size(self) -> tuple[int, int]:
        return self.side, self.side

    def train_examples(self) -> ClassCodes:
        seed, spec = self.recipe.seed, self.model_spec
        return ClassCodes(self.train_set, spec, rows=self.train_rows, augment=self.data, seed=seed)

    def valid_examples(self) -> ClassCodes:
        return ClassCodes(self.valid_set, self.model_spec, rows=self.valid_rows)

    @property
    def model_spec(self) -> specs.ImageTokensModelSpec:
        return self.base_spec or self.new_spec(len(self.classes), 1)

    def build(self) -> Bundle:
        if self.base_spec is not None and self.base_spec.num_classes != len(self.classes):
            reason = f"there are {len(self.classes)} and {self.base_spec.num_classes} classes"
            raise ConflictError(("data.train", "model.folder"), reason)
        return self.with_job(self.build_model(), classes=tuple(self.classes))


@dataclass(frozen=True, kw_only=True)
class TextTokensData(CaptionData):
    """Images and their captions."""

    input: Literal["text"] = sections.input_kind("text", "text or class")
    image_size: tuple[int, ...] | None = sections.image_sides(ONLY_SIZE)  # type: ignore[assignment]
    max_len: int | None = sections.maximum_length("a caption; longer ones are truncated", default=32)


class TextTokens(ImageTokensJob[TextTokensData], TextDrawingJob[TextTokensData]):
    """Train a decoder of [text | codes]."""

    default_max_len = 32

    def fill_max_len(self) -> None:
        limit = self.max_len or self.default_max_len
        known = self.base_spec.max_text_len if self.base_spec is not None else limit
        self.update_data(max_len=min(limit, known))

    def examples(self, store: Store, *, augment: bool = False) -> CaptionCodes:
        return CaptionCodes(spec=self.model_spec, **self.example_options(store, augment=augment))

    @property
    def model_spec(self) -> specs.ImageTokensModelSpec:
        return self.base_spec or self.new_spec(self.corpus.max_id + 1, self.max_len)

    def build(self) -> Bundle:
        corpus = self.corpus
        bundle = replace(self.build_model(), tokenizer=corpus.tokenizer)
        return self.with_job(bundle, max_len=self.max_len, data_columns=corpus.data_columns)


TEXTS = JobSpec(
    name="image_tokens",
    input="text",
    summary="Train a decoder that draws images from texts, as codes of an autoencoder.",
    factory=TextTokens,
    data=TextTokensData,
    metrics=("loss", "perplexity"),
    metric="loss",
    preset="llama",
    batch_unit="examples",
    r_drop=False,
)
CLASSES = replace(
    TEXTS,
    input="class",
    summary="Train a decoder that draws images of classes, as codes of an autoencoder.",
    factory=ClassTokens,
    data=ClassTokensData,
    reads=lambda path: Path(path).is_dir() or is_array_file(path),
)
JOB = replace(TEXTS, input=None, variants=(TEXTS, CLASSES))

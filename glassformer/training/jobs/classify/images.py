"""Classifiers of images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.examples import augmentation
from glassformer.data.image_files import is_array_file
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment, ImageExamples, channel_statistics
from glassformer.errors import ConflictError
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.training import sections
from glassformer.training.classify_job import ClassifyJob
from glassformer.training.hardware import Hardware
from glassformer.training.image_folder_job import ImageFolderData, ImageFolderJob
from glassformer.training.job_spec import JobSpec
from glassformer.training.labels import with_classes
from glassformer.training.learner import MixLearner
from glassformer.training.model_setup import (
    LARGE_STAGES,
    MAX_SMALL_SIDE,
    build_initialized,
    choose_patch_size,
    fit_to_patches,
    image_head,
    is_hierarchical,
    new_model_spec,
    supported_options,
    with_head,
)


@dataclass(frozen=True, kw_only=True)
class ImageData(Augment, ImageFolderData):
    """Images and their classes."""

    input: Literal["image"] = sections.input_kind("image")
    cutmix_prob: float = augmentation("CutMix, decided per batch")
    mixup_prob: float = augmentation("mixup, in batches without CutMix")


class ClassifyImages(ImageFolderJob[ImageData], ClassifyJob[ImageData]):
    """Train an image classifier."""

    unit = "images"
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def base_input(self) -> specs.ImagePatchesSpec | None:
        """The input layer of the base model."""
        if self.base is None:
            return None
        if "image" in self.base.spec.children():  # only its image encoder is trained
            image: Any = self.base.model.get_submodule("image")
            self.base = replace(self.base, model=image, family=None, config={})
        spec = self.base.spec
        if isinstance(spec, specs.EncoderOnlySpec) and isinstance(spec.input, specs.ImagePatchesSpec):
            return spec.input
        raise self.unsupported_model("use an image encoder")

    def prepare_data(self) -> None:
        super().prepare_data()
        self.mean, self.std = self._statistics()

    @property
    def channels(self) -> int | None:
        return None if self.base_input is None else self.base_input.channels

    def size(self) -> tuple[int, int] | None:
        """Return height and width of the recipe, else of the base model."""
        size, read = self.data.image_size, self.base_input
        if size is None and read is not None:
            size = read.image_size
            if read.interpolate and self.base is not None and IMAGE_PROCESSOR_FILE in self.base.files:
                processor = ImageProcessor.from_dict(self.base.files[IMAGE_PROCESSOR_FILE])
                size = processor.fixed_size or size
        return None if size is None else (size[0], size[-1])

    def fit(self, height: int, width: int) -> tuple[int, int]:
        """Return the image size to use, given the default size."""
        if is_hierarchical(self.preset):
            return height, width  # its stages pad the image
        return fit_to_patches(height, width, self.recipe.model.overrides.get("patch_size"))

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation per channel, of the base model or of the training set."""
        known: Mapping[str, Any] = self.base.files.get(IMAGE_PROCESSOR_FILE, {}) if self.base else {}
        if "image_mean" in known and "image_std" in known:
            return tuple(known["image_mean"]), tuple(known["image_std"])
        return channel_statistics(self.train_set, self.train_rows)

    def train_examples(self) -> ImageExamples:
        return ImageExamples(
            self.train_set,
            rows=self.train_rows,
            mean=self.mean,
            std=self.std,
            augment=self.data,
            seed=self.recipe.seed,
        )

    def valid_examples(self) -> ImageExamples:
        return ImageExamples(self.valid_set, rows=self.valid_rows, mean=self.mean, std=self.std)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        height, width, _ = self.train_set.shape
        count, tuning = len(self.train_examples()), self.fine_tuning
        patch = self.recipe.model.overrides.get("patch_size")
        if self.base_input is not None:
            patch = self.base_input.patch_size
        elif patch is None and is_hierarchical(self.preset):
            patch = 2
            if max(height, width) > MAX_SMALL_SIDE:
                patch = 4
                self.fill_model(LARGE_STAGES)
        elif patch is None:
            patch = choose_patch_size(height, width)
        patches = height * width // (patch**2 if isinstance(patch, int) else math.prod(patch))
        size, epochs, reasons = self.choose_size(
            hardware,
            units=count * patches,
            unit="image patches",
            vocab_size=len(self.classes),
            epochs=min(100.0, max(10.0, 2_000_000 / count)),
        )
        self.fill_model(supported_options(self.preset, {**size.options(), "patch_size": patch}))
        if not tuning:
            reasons = [] if is_hierarchical(self.preset) else reasons  # whose size the preset determines
            reasons.append(f"{patches} patches of {patch} x {patch} per image")
        return reasons + self.fill_training(
            self.train_examples(),
            batch=max(1, min(512 if hardware.on_gpu else 128, count // 20)),
            epochs=5 if tuning else epochs,
            lr=1e-4 if tuning else min(1e-3, 0.1 / size.d_model),
        )

    def build(self) -> Bundle:
        (height, width, channels), classes = self.train_set.shape, self.classes
        if self.base is None or self.base_input is None:
            fixed = {"image_size": (height, width), "channels": channels, "num_labels": len(classes)}
            if not supported_options(self.preset, {"image_size": 1}):
                raise self.unsupported_model("use vit, swin, dinov2 or another image encoder")
            bundle = Bundle(model=build_initialized(new_model_spec(self.recipe.model, fixed)))
        else:
            expected = (*self.base_input.image_size, self.base_input.channels)
            if self.base_input.interpolate:
                expected = (height, width, self.base_input.channels)
            if expected != (height, width, channels):
                raise ConflictError(
                    ("data.image_size", "model.folder"),
                    f"the images are {height} x {width} x {channels}, the model reads "
                    f"{' x '.join(map(str, expected))}",
                )
            bundle = with_head(self.base, image_head(self.base, len(classes)))
        processor = ImageProcessor(
            size={"height": height, "width": width}, image_mean=self.mean, image_std=self.std
        ).to_dict()
        bundle.files = {**bundle.files, IMAGE_PROCESSOR_FILE: processor}
        info: Any = {"size": (height, width), "channels": channels, "mean": self.mean, "std": self.std}
        return with_classes(bundle, self.recipe.job, classes, **info)

    @property
    def label_counts(self) -> list[int]:
        rows = self.train_examples().rows
        return np.bincount(self.train_set.labels(rows), minlength=len(self.classes)).tolist()

    def learner(self, model: Any) -> MixLearner:
        data = self.data
        return MixLearner(model, cutmix=data.cutmix_prob, mixup=data.mixup_prob, **self.learner_options)

    def valid_samples(self, valid: ImageExamples) -> list[tuple[str, str]]:
        rows = valid.rows[: self.recipe.training.max_generate_samples]
        labels = valid.images.labels(rows)
        return [(f"image {row + 1}", self.classes[n]) for row, n in zip(rows, labels, strict=True)]


IMAGES = JobSpec(
    name="classify",
    input="image",
    summary="Train a classifier of images.",
    factory=ClassifyImages,
    data=ImageData,
    metrics=("loss", "accuracy", "f1"),
    metric="accuracy",
    preset="vit",
    batch_unit="examples",
    defaults={"label_smoothing": 0.1},
    reads=lambda path: Path(path).is_dir() or is_array_file(path),
)

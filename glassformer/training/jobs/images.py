"""Image classification."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.image_files import list_files, list_names, single_path
from glassformer.data.images import Augment, ImageExamples, ImageSet, channel_statistics, prepare_images
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import fingerprint_files
from glassformer.errors import ConflictError, InvalidValueError, UnsupportedError
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.training.data_cache import DataCache
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.classification import classes_of, classification_task, with_classes
from glassformer.training.learner import ImageLearner
from glassformer.training.model_setup import choose_size, fresh, fresh_spec, supported_options, with_head
from glassformer.training.recipe import ImageData
from glassformer.training.task import Task

PATCH_COUNTS = (49, 256)  # fewest and most patches of an image
MAX_PATCH_SIZE = 16


class Images(Job):
    """Labelled images; measured by accuracy and macro F1."""

    default_preset = "vit"
    train_set: ImageSet
    valid_set: ImageSet
    train_rows: NDArray[np.int64] | None = None  # None is all
    valid_rows: NDArray[np.int64] | None = None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    base_classes: Sequence[str] | None = None  # the classes of a model that is evaluated

    @property
    def data(self) -> ImageData:
        assert isinstance(self.recipe.data, ImageData)
        return self.recipe.data

    @property
    def base_input(self) -> specs.ImagePatches | None:
        """The input layer of the base model."""
        if self.base is None:
            return None
        spec = self.base.spec
        if isinstance(spec, specs.EncoderOnly) and isinstance(spec.input, specs.ImagePatches):
            return spec.input
        raise UnsupportedError(
            f"the model in '{self.recipe.model.folder}'", "the job images", "use an image encoder"
        )

    def adopt_base_settings(self) -> None:
        self.base_classes = classes_of(self.base) if self.base else None

    def prepare_data(self) -> None:
        data = self.data
        train = single_path(data.train)
        valid = None if isinstance(data.valid, float) else single_path(data.valid)
        paths = [path for path in (train, valid) if path is not None]
        cache = DataCache(
            self.folder / "data",
            lambda stamp: (
                [fingerprint_files(list_files(path), stamp=stamp) for path in paths],
                self._size(),
                self.recipe.model.folder,
            ),
            extra={"names": fingerprint_files([], *map(list_names, paths))},
        )
        notes = cache.load(self.log)
        if notes is None:
            cache.begin()
            problems = RowErrors()
            images = prepare_images(
                train,
                cache.folder / "train",
                errors=problems,
                size=self._size(),
                channels=self.base_input.channels if self.base_input is not None else None,
                classes=self.base_classes,
                split="test" if self.base_classes else "train",
            )
            if valid is not None and self.base_classes is None:
                held_out = prepare_images(
                    valid,
                    cache.folder / "valid",
                    errors=problems,
                    size=images.shape[:2],
                    channels=images.shape[2],
                    split="test",
                    classes=images.classes,
                )
                if held_out.shape != images.shape:
                    raise ConflictError(
                        ("data.train", "data.valid"),
                        f"the images have {images.shape[2]} and {held_out.shape[2]} channels",
                    )
            notes = cache.commit(bad=problems.summary())
        self.train_set = self.valid_set = ImageSet(cache.folder / "train")
        if isinstance(data.valid, float):
            self.train_rows, self.valid_rows = self.train_set.split(data.valid, seed=self.recipe.seed)
        elif not self.base_classes:
            self.valid_set = ImageSet(cache.folder / "valid")
        self.mean, self.std = self._statistics()
        self._log_counts(notes["bad"])

    def _size(self) -> tuple[int, int] | None:
        """Height and width: the recipe's, or those of the base model."""
        size = self.data.size
        if size is None and self.base_input is not None:
            size = self.base_input.image_size
        return None if size is None else (size[0], size[-1])

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation per channel: those of the base model, or of the training set."""
        known: Mapping[str, Any] = self.base.files.get(IMAGE_PROCESSOR_FILE, {}) if self.base else {}
        if "image_mean" in known and "image_std" in known:
            return tuple(known["image_mean"]), tuple(known["image_std"])
        return channel_statistics(self.train_set, self.train_rows)

    def _log_counts(self, skipped: str) -> None:
        height, width, channels = self.train_set.shape
        train, valid, classes = (
            len(self.train_examples()),
            len(self.valid_examples()),
            self.train_set.classes,
        )
        self.facts = {
            "training images": train,
            "validation images": valid,
            "image size": f"{height} x {width}, {channels} channel{'s' * (channels > 1)}",
            "classes": list(classes),
        }
        self.log(
            f"{train:,} images of {height} x {width} in {len(classes)} classes for training, "
            f"{valid:,} for validation"
        )
        if skipped:
            self.facts["skipped rows"] = skipped
            self.log(skipped)

    def train_examples(self) -> ImageExamples:
        """The training images, augmented as the recipe says."""
        data, augment = self.data, None
        if data.flip or data.shift or data.rotate or data.erase:
            augment = Augment(
                flip=data.flip,
                shift=data.shift,
                rotate=data.rotate,
                erase=data.erase,
                seed=self.recipe.seed,
            )
        return self._examples(self.train_set, self.train_rows, augment)

    def valid_examples(self) -> ImageExamples:
        return self._examples(self.valid_set, self.valid_rows, None)

    def _examples(
        self, images: ImageSet, rows: NDArray[np.int64] | None, augment: Augment | None
    ) -> ImageExamples:
        return ImageExamples(images, rows=rows, mean=self.mean, std=self.std, augment=augment)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        height, width, _ = self.train_set.shape
        count, tuning = len(self.train_examples()), self.recipe.model.folder is not None
        patch = self.recipe.model.overrides.get("patch_size") or choose_patch_size(height, width)
        patches = height * width // (patch**2 if isinstance(patch, int) else math.prod(patch))
        size, epochs, reason = choose_size(
            hardware,
            units=count * patches,
            vocab_size=len(self.train_set.classes),
            epochs=min(100.0, max(10.0, 2_000_000 / count)),
            length_known=self.has_length,
        )
        options = {**size.options(), "patch_size": patch}
        self.fill_model({} if tuning else supported_options(self.preset, options))
        reasons = [] if tuning else [reason, f"{patches} patches of {patch} x {patch} per image"]
        return reasons + self.fill_training(
            self.train_examples(),
            batch=max(1, min(512 if hardware.on_gpu else 128, count // 20)),
            epochs=5 if tuning else epochs,
            lr=1e-4 if tuning else min(1e-3, 0.1 / size.d_model),
            label_smoothing=0.1,
        )

    def build(self) -> Bundle:
        """The model with its classes and image preprocessing, as it will be saved."""
        (height, width, channels), classes = self.train_set.shape, self.train_set.classes
        if self.base is None or self.base_input is None:
            options = self.recipe.model
            fixed = {"image_size": (height, width), "channels": channels, "num_labels": len(classes)}
            if not supported_options(options.preset or "", {"image_size": 1}):
                raise UnsupportedError(f"the preset '{options.preset}'", "the job images", "use vit or deit")
            bundle = Bundle(model=fresh(fresh_spec(options, fixed)))
        else:
            expected = (*self.base_input.image_size, self.base_input.channels)
            if expected != (height, width, channels):
                raise ConflictError(
                    ("data.size", "model.folder"),
                    f"the images are {height} x {width} x {channels}, the model reads "
                    f"{' x '.join(map(str, expected))}",
                )
            bundle = with_head(self.base, specs.Classify(num_labels=len(classes)))
        mean, std = list(self.mean), list(self.std)
        processor = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": height, "width": width},
            "resample": 2,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": mean,
            "image_std": std,
        }
        bundle.files = {**bundle.files, IMAGE_PROCESSOR_FILE: processor}
        info = {"size": [height, width], "channels": channels, "mean": mean, "std": std}
        return with_classes(bundle, self.recipe.job, classes, **info)

    def task(self) -> Task:
        training, bundle, valid = self.recipe.training, self.build(), self.valid_examples()
        learner = ImageLearner(
            bundle.model,
            cutmix=self.data.cutmix,
            smoothing=training.label_smoothing or 0.0,
            r_drop=training.r_drop,
        )
        rows = valid.rows[: training.max_valid]
        return classification_task(
            bundle,
            learner,
            train=self.train_examples(),
            valid=valid,
            sample_inputs=[f"image {row + 1}" for row in rows],
            sample_labels=valid.images.labels(rows).tolist(),
            classes=self.train_set.classes,
            unit="images",
            training=training,
        )


def choose_patch_size(height: int, width: int) -> int:
    """The largest patch size that leaves enough patches.

    >>> [choose_patch_size(side, side) for side in (28, 32, 8, 224)]
    [4, 4, 1, 16]
    """
    fewest, most = PATCH_COUNTS
    sizes = [n for n in range(1, MAX_PATCH_SIZE + 1) if height % n == 0 == width % n]
    counts = {size: height * width // size**2 for size in sizes}
    suitable = [size for size, count in counts.items() if fewest <= count <= most]
    if suitable:
        return max(suitable)
    if counts[max(sizes)] <= most:
        return 1  # a very small image: each pixel is a patch
    rounded = [-(-side // 16) * 16 for side in (height, width)]
    raise InvalidValueError(
        "the image size",
        f"{height} x {width}",
        f"a size divisible into {fewest} to {most} equal patches",
        f"resize the images, e.g. data.size={rounded}",
    )

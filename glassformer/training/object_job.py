"""The base of the jobs `detect` and `segment`: annotated images, resized and augmented on the device."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.annotated_examples import AnnotatedExamples, Targets
from glassformer.data.annotations import AnnotatedImage, AnnotationSet, find_annotations
from glassformer.data.augmentation import ObjectAugment
from glassformer.data.examples import Arrays
from glassformer.data.image_files import single_path
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import fingerprint_files
from glassformer.errors import (
    EmptyInputError,
    FileMissingError,
    FileProblemError,
    MissingValueError,
    UnknownNameError,
)
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.messages import list_some, plural, quantity
from glassformer.schema import setting
from glassformer.training import sections
from glassformer.training.data_cache import DataCache
from glassformer.training.hardware import Hardware
from glassformer.training.job import Job
from glassformer.training.labels import classes_of, with_classes
from glassformer.training.model_setup import supported_options
from glassformer.training.object_learner import MaskLoss, ObjectLearner
from glassformer.training.object_losses import count_objects
from glassformer.training.recipe import DEFAULT_MAX_GRAD_NORM, BatchLimits
from glassformer.training.sections import DataSection, Paths
from glassformer.training.task import ValidationResult, evaluation_batches

MAX_IMAGE_SIDE = 512  # of images resized by default
SIDE_MULTIPLE = 32
SAMPLED_IMAGES = 100  # whose size chooses the default
EVALUATION_BATCH = 16
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SPLITS = ("test", "val", "train")  # in the order in which an evaluation looks for them
DEFAULT_VALID_FRACTION = 0.1  # of the images, if the data has no validation split


@dataclass(frozen=True, kw_only=True)
class ObjectData(ObjectAugment, DataSection):
    """Images with the boxes of objects."""

    train: Paths = sections.train_files(
        "COCO JSON, a YOLO data.yaml, a Pascal VOC folder, or a folder with `train` and `train_mask`",
        unit="file or folder",
    )
    valid: Paths | float | None = setting(
        None,
        "validation split: a path like `train`, or the fraction of the training images to hold out; "
        "null is the val split of the training data, or 0.1",
        interval="(0, 1)",
        unit="file, folder or fraction",
    )
    images: str | None = setting(
        None, "folder of the images of COCO JSON; null looks beside the file", unit="folder"
    )
    image_size: tuple[int, ...] | None = sections.image_sides(
        "null is the usual size, at most 512, or that of the base model"
    )


SectionT = TypeVar("SectionT", bound=ObjectData)


class ObjectJob(Job[SectionT]):
    """What detection and segmentation share."""

    train_set: AnnotationSet
    valid_set: AnnotationSet
    train_rows: NDArray[np.int64] | None = None  # None means all
    valid_rows: NDArray[np.int64] | None = None
    base_classes: Sequence[str] | None = None  # classes of the model to evaluate
    valid_loss: float
    evaluated_split: str | None = None  # None in training, and for data without splits

    @property
    def classes(self) -> Sequence[str]:
        return self.base_classes or self.train_set.classes

    def adopt_base_settings(self) -> None:
        self.base_classes = classes_of(self.base)

    def prepare_data(self) -> None:
        data, problems = self.data, RowErrors()
        train = single_path(data.train)
        if data.images is not None and not Path(data.images).is_dir():
            raise FileMissingError(data.images, "folder of images")
        if self.base_classes is not None:
            self.train_set = self.valid_set = self._open_any(train, problems)
            if not set(self.valid_set.classes) & set(self.base_classes):
                raise self._no_known_class(self.valid_set.classes)
        else:
            self.train_set = self._open(train, "train", problems)
            own = self._val_split(train, problems) if data.valid is None else None
            if data.valid is None:
                self.update_data(valid=DEFAULT_VALID_FRACTION if own is None else (str(train),))
            valid = self.data.valid
            assert valid is not None
            if own is not None:
                self.valid_set = own
            elif isinstance(valid, float):
                self.valid_set = self.train_set
                self.train_rows, self.valid_rows = self.train_set.split(valid, seed=self.recipe.seed)
            else:
                self.valid_set = self._open(single_path(valid), "val", problems)
            self._check_unchanged()
        if not len(self._rows(self.train_set, self.train_rows)):
            raise EmptyInputError("set of training images", "add images, or hold out fewer")
        sample = [self.train_set[n] for n in range(min(SAMPLED_IMAGES, len(self.train_set)))]
        if not any(image.annotations for image in self.train_set):
            raise EmptyInputError(f"set of annotations in {train}", "annotate objects in the images")
        self._prepare_sample(sample)
        self._choose_image_size(sample)
        self._log_counts(problems.summary())

    def _check_unchanged(self) -> None:
        """Raise if a resumed run would continue with other images or annotations.

        Images are compared by name and size in bytes; to hash them would read the whole data set.
        """
        sets = (self.train_set, self.valid_set)
        files = [file for images in sets for file in images.files]
        content = [([(p.name, p.stat().st_size) for p in images.paths], images.classes) for images in sets]
        cache = DataCache(
            self.folder / "data",
            lambda stamp: [fingerprint_files(files, content, stamp=stamp)],
            what="the images or annotations",
        )
        with cache.unchanged():  # only the note is used: the images are read each time
            pass

    def _open(self, path: Path, split: str, problems: RowErrors) -> AnnotationSet:
        return find_annotations(path, split, images=self.data.images, errors=problems)

    @property
    def _one_file(self) -> bool:
        return single_path(self.data.train).suffix == ".json"

    def _val_split(self, path: Path, problems: RowErrors) -> AnnotationSet | None:
        """Open the validation split of the training data; None if it has none without training images."""
        if self._one_file:
            return None
        val_problems = RowErrors()
        try:
            images = self._open(path, "val", val_problems)
        except (FileProblemError, FileMissingError, MissingValueError, EmptyInputError):
            return None
        if set(images.paths) & set(self.train_set.paths):
            return None
        problems.add(val_problems)
        return images

    def _open_any(self, path: Path, problems: RowErrors) -> AnnotationSet:
        """Open the first split that a folder or a data.yaml has; note which one it is."""
        for split in SPLITS[:-1]:
            try:
                images = self._open(path, split, problems)
            except (FileProblemError, FileMissingError, MissingValueError):
                continue
            if path.suffix != ".json":
                self.evaluated_split = split
            return images
        self.evaluated_split = SPLITS[-1]
        return self._open(path, SPLITS[-1], problems)

    def _no_known_class(self, names: Sequence[str]) -> UnknownNameError:
        """Return the error for data without a class of the evaluated model."""
        where, hint = str(single_path(self.data.train)), f"the model knows {list_some(self.classes)}"
        return UnknownNameError("classes", list_some(names), hint=hint, where=where)

    def _prepare_sample(self, sample: Sequence[AnnotatedImage]) -> None:
        """Check the first training images, and choose settings that depend on them."""

    def _choose_image_size(self, sample: Sequence[AnnotatedImage]) -> None:
        """Fill in `data.image_size`: the base model's, or the median of the data, at most 512."""
        if self.data.image_size is not None:
            return
        size = self._base_size()
        if size is None:
            sides = np.median([(image.height, image.width) for image in sample], 0)
            sides = sides * min(1.0, MAX_IMAGE_SIDE / sides.max())
            height, width = (max(1, round(side / SIDE_MULTIPLE)) * SIDE_MULTIPLE for side in sides)
            size = (height, width)
        self.update_data(image_size=size)

    def _base_size(self) -> tuple[int, int] | None:
        """Return the exact size that the base model resizes images to, if it has one."""
        known = self.processor_config.get("size")
        if isinstance(known, Mapping) and {"height", "width"} <= set(known):
            return known["height"], known["width"]
        source = getattr(self.base.spec, "input", None) if self.base else None
        return source.image_size if isinstance(source, specs.ImagePatchesSpec) else None

    @property
    def processor_config(self) -> Mapping[str, Any]:
        """The image preprocessing of the base model; empty if it has none."""
        known: Mapping[str, Any] = self.base.files.get(IMAGE_PROCESSOR_FILE, {}) if self.base else {}
        return known

    @property
    def size(self) -> tuple[int, int]:
        """Height and width that images are resized to."""
        size = self.data.image_size
        assert size is not None
        return size[0], size[-1]

    @property
    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of the channels: those of the base model, or of ImageNet."""
        known = self.processor_config
        mean, std = known.get("image_mean", IMAGENET_MEAN), known.get("image_std", IMAGENET_STD)
        return tuple(mean), tuple(std)

    @staticmethod
    def _rows(images: Sequence[AnnotatedImage], rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
        return np.arange(len(images)) if rows is None else rows

    def _log_counts(self, skipped: str) -> None:
        height, width = self.size
        counts = [
            len(self._rows(images, rows))
            for images, rows in ((self.train_set, self.train_rows), (self.valid_set, self.valid_rows))
        ]
        self.facts = {"image size": f"{height} x {width}", "classes": list(self.classes)}
        what = f", resized to {height} x {width}, in {quantity(len(self.classes), 'class')},"
        self.log_counts("image", counts[0], counts[1], what, skipped)
        if self.base_classes is None and self.data.valid == self.data.train and not self._one_file:
            self.log(f"the validation images are the val split of {self.data.train[0]}")

    @property
    @abstractmethod
    def targets(self) -> Targets:
        """What is learned of each image."""

    def examples(self, images: AnnotationSet, rows: NDArray[np.int64] | None) -> AnnotatedExamples:
        """Return the examples of these rows."""
        chosen = images if rows is None else _Subset(images, rows)
        return AnnotatedExamples(chosen, self.classes, size=self.size, targets=self.targets)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        if not self.fine_tuning:
            self.fill_model(supported_options(self.preset, self.model_defaults()))
        examples = self.train_examples()
        count = len(examples)
        return self.fill_training(
            examples,
            batch=max(1, min(32 if hardware.on_gpu else 8, count // 4)),
            epochs=min(500.0, max(20.0, 50_000 / count)),
            lr=1e-4 if self.fine_tuning else 3e-4,
            max_grad_norm=0.1 if self.count is count_objects else DEFAULT_MAX_GRAD_NORM,
        )

    def model_defaults(self) -> dict[str, Any]:
        """Return options of a new model that depend on the data."""
        return {}

    def finish(self, bundle: Bundle, processor_type: str) -> Bundle:
        """Return the model with its image preprocessing and class names."""
        (height, width), (mean, std) = self.size, self.statistics
        processor = ImageProcessor(
            image_processor_type=processor_type,
            size={"height": height, "width": width},
            image_mean=mean,
            image_std=std,
        )
        bundle.files = {**bundle.files, IMAGE_PROCESSOR_FILE: processor.to_dict()}
        return with_classes(bundle, self.recipe.job, self.classes, size=self.size, **self.job_info())

    def job_info(self) -> dict[str, Any]:
        """Return further entries of `job.json`."""
        return {}

    @property
    def count(self) -> Callable[[Arrays], int]:  # type: ignore[override]
        """What the loss is divided by: the number of objects, or of images."""
        return count_objects

    @property
    def mask_loss(self) -> MaskLoss:
        """The loss of masks of object queries; detectors have none."""
        return "cross_entropy"

    @property
    def unit(self) -> str:  # type: ignore[override]
        return "objects" if self.count is count_objects else "images"

    def train_examples(self) -> AnnotatedExamples:
        return self.examples(self.train_set, self.train_rows)

    def valid_examples(self) -> AnnotatedExamples:
        return self.examples(self.valid_set, self.valid_rows)

    def learner(self, model: Any) -> ObjectLearner:
        mean, std = self.statistics
        return ObjectLearner(model, mean=mean, std=std, augment=self.data, mask_loss=self.mask_loss)

    def predictions(
        self, learner: ObjectLearner, examples: AnnotatedExamples, device: torch.device
    ) -> Iterator[tuple[list[AnnotatedImage], Any]]:
        """Yield the images of each batch and the output of the model; then `valid_loss` is the mean loss.

        Images that cannot be decoded are left out.
        """
        total, units = 0.0, 0
        batch = min(self.recipe.training.batch_size or EVALUATION_BATCH, EVALUATION_BATCH)
        ignored, known = Counter[str](), 0
        for rows, arrays, tensors in evaluation_batches(examples, device, BatchLimits(batch_size=batch)):
            good = [n for n, row in enumerate(rows) if int(row) not in examples.unreadable]
            if not good:
                continue
            rows = rows[good]
            arrays = {name: array[good] for name, array in arrays.items()}
            tensors = {name: tensor[good] for name, tensor in tensors.items()}
            output = learner.predict(tensors["images"])
            parts = (tensors.get(name) for name in ("labels", "boxes", "segments"))
            total += float(learner.loss(output, *parts))
            units += self.count(arrays)
            images = [examples.images[int(row)] for row in rows]
            for label in (note.label for image in images for note in image.annotations):
                if label in self.classes:
                    known += 1
                else:
                    ignored[label] += 1
            yield images, output
        count = len(examples) - len(examples.unreadable)
        if not count:
            raise EmptyInputError("set of validation images that can be read", "replace the broken files")
        self.valid_loss = total / units
        if self.evaluated_split is not None:
            self.facts["evaluated split"] = f"{self.evaluated_split}, {count:,} {plural('image', count)}"
        if self.base_classes is not None and ignored:
            self._note_ignored(ignored, known)

    def result(self, scores: Mapping[str, float], table: Iterable[Mapping[str, float]]) -> ValidationResult:
        """Return the result of a validation. table: further scores of each class."""
        rows = [{"name": name, **row} for name, row in zip(self.classes, table, strict=True)]
        return ValidationResult(metrics={"loss": self.valid_loss, **scores}, tables={"classes": rows})

    def _note_ignored(self, ignored: Counter[str], known: int) -> None:
        """Note the number of objects whose class the evaluated model does not know; raise if these are all.

        ignored: number of objects by unknown class. known: number of the other objects.
        """
        if not known:
            raise self._no_known_class(list(ignored))
        total, count = len(self.valid_set.classes), ignored.total()
        unknown = [name for name in self.valid_set.classes if name not in self.classes]
        listed = f"{len(unknown):,} of {total:,} {plural('class', total)} of the data ({list_some(unknown)})"
        objects = plural("region" if self.targets == "classes" else "object", count)
        self.facts["unknown classes"] = f"{listed}: {count:,} {objects} ignored"


def without_nan(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores that are defined, e.g. without AP of small objects if there are none."""
    return {name: score for name, score in scores.items() if not math.isnan(score)}


class _Subset(Sequence[AnnotatedImage]):
    """Some images of a set."""

    def __init__(self, images: AnnotationSet, rows: NDArray[np.int64]) -> None:
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.images[int(self.rows[index])]

"""Job `detect`: train an object detector on boxes; evaluated with COCO's average precision."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.bundle import Bundle, save
from glassformer.core import spec as specs
from glassformer.core.build import build_model, unique_state_dict
from glassformer.core.heads import BoxOutput, box_corners
from glassformer.data.annotated_examples import AnnotatedExamples, Targets
from glassformer.data.annotations import AnnotatedImage, AnnotationSet, find_annotations
from glassformer.data.examples import Arrays
from glassformer.data.image_files import single_path
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import fingerprint_files
from glassformer.errors import (
    EmptyInputError,
    FileMissingError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.messages import list_some, plural
from glassformer.metrics.detection import AveragePrecision, Objects, objects_of
from glassformer.training.data_cache import DataCache, no_log
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.labels import classes_of, with_classes
from glassformer.training.model_setup import build_initialized, new_model_spec, supported_options
from glassformer.training.object_learner import MaskLoss, ObjectAugment, ObjectLearner
from glassformer.training.recipe import DEFAULT_MAX_GRAD_NORM, ObjectData
from glassformer.training.set_losses import count_objects
from glassformer.training.task import LearnerTask, ValidationResult, evaluation_batches

MAX_IMAGE_SIDE = 512  # of images resized by default
SIDE_MULTIPLE = 32
SAMPLED_IMAGES = 100  # whose size chooses the default
MIN_QUERIES, MAX_QUERIES = 25, 300
EVALUATION_BATCH = 16
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SPLITS = ("test", "val", "train")  # in the order in which an evaluation looks for them
DEFAULT_VALID_FRACTION = 0.1  # of the images, if the data has no validation split

SectionT = TypeVar("SectionT", bound=ObjectData)


class ObjectJob(Job[SectionT]):
    """What detection and segmentation share: annotated images, resized and augmented on the device."""

    train_set: AnnotationSet
    valid_set: AnnotationSet
    train_rows: NDArray[np.int64] | None = None  # None means all
    valid_rows: NDArray[np.int64] | None = None
    base_classes: Sequence[str] | None = None  # classes of the model to evaluate
    evaluated_split: str | None = None  # None in training, and for data without splits

    @property
    def classes(self) -> Sequence[str]:
        return self.base_classes or self.train_set.classes

    def adopt_base_settings(self) -> None:
        self.base_classes = classes_of(self.base) if self.base else None

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
        if cache.load(no_log) is None:  # only the note is used: the images are read each time
            cache.start()
            cache.commit()

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
        self.facts = {
            "training images": counts[0],
            "validation images": counts[1],
            "image size": f"{height} x {width}",
            "classes": list(self.classes),
        }
        classes = plural("class", len(self.classes))
        splits = f"{counts[0]:,} {plural('image', counts[0])} for training, {counts[1]:,} for validation"
        if self.base_classes is None and self.data.valid == self.data.train and not self._one_file:
            splits += f" (the val split of {self.data.train[0]})"
        self.log(f"{splits}, resized to {height} x {width}, in {len(self.classes)} {classes}")
        if skipped:
            self.facts["skipped"] = skipped
            self.log(skipped)

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
        examples = self.examples(self.train_set, self.train_rows)
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

    @abstractmethod
    def build(self) -> Bundle:
        """Build or load the model with its classes and image preprocessing, as it will be saved."""

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
    def count(self) -> Callable[[Arrays], int]:
        """What the loss is divided by: the number of objects, or of images."""
        return count_objects

    @property
    def mask_loss(self) -> MaskLoss:
        """The loss of masks of object queries; detectors have none."""
        return "cross_entropy"

    def task(self) -> LearnerTask:
        data, training, bundle = self.data, self.recipe.training, self.build()
        mean, std = self.statistics
        augment = ObjectAugment(
            flip=data.flip_prob,
            vertical_flip=data.vertical_flip_prob,
            scale=data.scale_jitter,
            color=data.color_jitter,
            copy_paste=data.copy_paste_prob,
        )
        learner = ObjectLearner(bundle.model, mean=mean, std=std, augment=augment, mask_loss=self.mask_loss)
        valid = self.examples(self.valid_set, self.valid_rows)
        batch = min(training.batch_size or EVALUATION_BATCH, EVALUATION_BATCH)

        def validate(device: torch.device) -> ValidationResult:
            metrics, tables = self.evaluate(learner, valid, device, batch)
            return ValidationResult(metrics=metrics, tables=tables)

        return LearnerTask(
            learner=learner,
            train=self.examples(self.train_set, self.train_rows),
            unit="objects" if self.count is count_objects else "images",
            count=self.count,
            metric=self.metric,
            validate=validate,
            save=lambda folder: save(replace(bundle, model=learner.model), folder),
        )

    metric = "ap"

    @abstractmethod
    def evaluate(
        self, learner: ObjectLearner, examples: AnnotatedExamples, device: torch.device, batch: int
    ) -> tuple[dict[str, float], dict[str, list[dict[str, Any]]]]:
        """Return metrics and tables of all examples. batch: number of images at once."""

    def predictions(
        self, learner: ObjectLearner, examples: AnnotatedExamples, device: torch.device, batch: int
    ) -> Iterator[tuple[list[AnnotatedImage], Any, float, int]]:
        """Yield the images of each batch, the output of the model, its summed loss, and its count.

        Images that cannot be decoded are left out.
        """
        ignored, known = Counter[str](), 0
        for rows, arrays, tensors in evaluation_batches(examples, device, batch):
            good = [n for n, row in enumerate(rows) if int(row) not in examples.unreadable]
            if not good:
                continue
            rows = rows[good]
            arrays = {name: array[good] for name, array in arrays.items()}
            tensors = {name: tensor[good] for name, tensor in tensors.items()}
            output = learner.predict(tensors["images"])
            parts = (tensors.get(name) for name in ("labels", "boxes", "segments"))
            loss = float(learner.loss(output, *parts))
            images = [examples.images[int(row)] for row in rows]
            for label in (note.label for image in images for note in image.annotations):
                if label in self.classes:
                    known += 1
                else:
                    ignored[label] += 1
            yield images, output, loss, self.count(arrays)
        count = len(examples) - len(examples.unreadable)
        if not count:
            raise EmptyInputError("set of validation images that can be read", "replace the broken files")
        if self.evaluated_split is not None:
            self.facts["evaluated split"] = f"{self.evaluated_split}, {count:,} {plural('image', count)}"
        if self.base_classes is not None and ignored:
            self._note_ignored(ignored, known)

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


class _Subset(Sequence[AnnotatedImage]):
    """Some images of a set."""

    def __init__(self, images: AnnotationSet, rows: NDArray[np.int64]) -> None:
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.images[int(self.rows[index])]


def keep_fitting_weights(bundle: Bundle, spec: specs.ModelSpec) -> Bundle:
    """Return a newly initialized model with all weights of the bundle that have the same name and shape.

    spec: of the new model, e.g. with another number of labels.
    """
    model = build_model(spec)
    own = unique_state_dict(model)
    known = {
        name: tensor
        for name, tensor in unique_state_dict(bundle.model).items()
        if name in own and own[name].shape == tensor.shape
    }
    model.load_state_dict(known, strict=False)
    files = {name: bundle.files[name] for name in (IMAGE_PROCESSOR_FILE,) if name in bundle.files}
    return replace(bundle, model=model, family=None, config={}, files=files)


class DetectJob(ObjectJob[ObjectData]):
    """Train an object detector; evaluated with average precision at several IoU thresholds and sizes."""

    default_preset = "detr-tiny"
    fine_tuning_options = frozenset({"num_queries"})
    most_objects: int  # in a training image

    def _prepare_sample(self, sample: Sequence[AnnotatedImage]) -> None:
        if self.train_set.has_class_masks:
            hint = (
                "use the job segment, or annotations of objects, e.g. COCO JSON or 16-bit masks of instances"
            )
            raise UnsupportedError("the job detect", "8-bit masks of classes", hint)
        self.most_objects = max(len(image.annotations) for image in self.train_set)

    def check_model(self) -> None:
        super().check_model()
        if self.base is not None and (queries := self.requested_queries) is not None:
            is_detector = isinstance(self.base.spec.head, specs.BoxesSpec)
            least = count_queries(self.base.spec) if is_detector else 1
            if type(queries) is not int or queries < least:
                hint = f"the detector in model.folder has {least}" if is_detector else ""
                expected = f"an integer of at least {least}"
                raise InvalidValueError("model.num_queries", queries, expected, hint)

    @property
    def targets(self) -> Targets:
        return "boxes"

    @property
    def requested_queries(self) -> int | None:
        """Number of object queries in the recipe, if it has one."""
        return self.recipe.model.overrides.get("num_queries")

    @property
    def required_queries(self) -> int:
        """Half as many again as objects in an image."""
        return min(MAX_QUERIES, math.ceil(1.5 * self.most_objects))

    def model_defaults(self) -> dict[str, Any]:
        return {"num_queries": max(MIN_QUERIES, self.required_queries)}

    def build(self) -> Bundle:
        labels, requested = len(self.classes), self.requested_queries
        if requested is not None and requested < self.most_objects and self.base_classes is None:
            self.log(
                f"model.num_queries is {requested}, but an image has up to {self.most_objects} objects; "
                "the detector cannot find all of them"
            )
        if self.base is None:
            fixed = {"image_size": self.size, "num_labels": labels, "channels": 3}
            spec = new_model_spec(self.recipe.model, supported_options(self.preset, fixed))
            if not isinstance(spec.head, specs.BoxesSpec):
                raise self.unsupported_model("use a detector, e.g. yolos-tiny or detr-tiny")
            return self.finish(Bundle(model=build_initialized(spec)), "DetrImageProcessor")
        spec = self.base.spec
        if isinstance(spec.head, specs.BoxesSpec):
            bundle = self.base
            before = count_queries(spec)
            if self.base_classes is None:  # an evaluation does not change the model
                queries = requested or self.required_queries
                if queries > before:
                    bundle = add_queries(bundle, queries - before)
                    objects = f"an image has up to {self.most_objects} {plural('object', self.most_objects)}"
                    self.log(f"{queries} object queries instead of {before}; {objects}")
            if spec.head.num_labels != labels or classes_of(self.base) != list(self.classes):
                own: Any = bundle.spec
                head = replace(own.head, num_labels=labels)
                bundle = keep_fitting_weights(bundle, replace(own, head=head))
            return self.finish(bundle, "DetrImageProcessor")
        source = getattr(spec, "input", None)
        if not isinstance(spec, specs.EncoderOnlySpec) or not isinstance(source, specs.ImagePatchesSpec):
            raise self.unsupported_model("use a detector, or an image encoder such as vit or dinov2")
        # an image encoder becomes a detector by object queries after its patches
        queries = requested or self.model_defaults()["num_queries"]
        tokens = replace(source, suffix=queries, interpolate=True)
        head = specs.BoxesSpec(num_labels=labels, class_layers=3, num_queries=queries)
        bundle = keep_fitting_weights(self.base, replace(spec, input=tokens, head=head, tied=()))
        keep_positions(self.base, bundle)
        return self.finish(bundle, "DetrImageProcessor")

    def evaluate(
        self, learner: ObjectLearner, examples: AnnotatedExamples, device: torch.device, batch: int
    ) -> tuple[dict[str, float], dict[str, list[dict[str, Any]]]]:
        precision = AveragePrecision(len(self.classes))
        total, count = 0.0, 0
        for images, output, loss, units in self.predictions(learner, examples, device, batch):
            total, count = total + loss, count + units
            found = detected_objects(output, [(image.height, image.width) for image in images])
            for image, objects in zip(images, found, strict=True):
                precision.add(objects, objects_of(image.annotations, self.classes))
        rows = zip(self.classes, precision.per_class(), strict=True)
        known = {name: value for name, value in precision.scores().items() if not math.isnan(value)}
        return {"loss": total / count, **known}, {"classes": [{"name": n, **row} for n, row in rows]}


def count_queries(spec: specs.ModelSpec) -> int:
    """Return the number of object queries of a detector, the most objects that it finds in an image."""
    if isinstance(spec, specs.EncoderDecoderSpec):
        assert isinstance(spec.target, specs.ObjectQueriesSpec)
        return spec.target.num_queries
    assert isinstance(spec.head, specs.BoxesSpec) and spec.head.num_queries is not None
    return spec.head.num_queries


def add_queries(detector: Bundle, number: int) -> Bundle:
    """Return a detector with more object queries; the new ones are copies of the others with some noise."""
    spec: Any = detector.spec
    count = count_queries(spec)
    if spec.head.num_queries is None:  # they are the input of a decoder
        extended = replace(spec, target=replace(spec.target, num_queries=count + number))
    else:
        tokens = replace(spec.input, suffix=count + number)
        extended = replace(spec, input=tokens, head=replace(spec.head, num_queries=count + number))
    result = keep_fitting_weights(detector, extended)
    sources = dict(detector.model.named_parameters())
    with torch.no_grad():
        for name, parameter in result.model.named_parameters():
            source = sources[name]
            if parameter.shape != source.shape:  # (..., tokens, D), with the queries at the end
                queries = source[..., -count:, :]
                copies = queries[..., torch.arange(number, device=source.device) % count, :]
                noise = torch.randn_like(copies) * (0.1 * queries.std())
                parameter.copy_(torch.cat((source, copies + noise), -2))
    return result


def keep_positions(base: Bundle, bundle: Bundle) -> None:
    """Copy the trained positions of prefix and patches to a model with more tokens behind them."""
    old: Any = base.model
    new: Any = bundle.model
    if old.embed.position is not None:
        with torch.no_grad():
            new.embed.position[:, : old.embed.position.shape[1]] = old.embed.position


def detected_objects(output: BoxOutput, sizes: Sequence[tuple[int, int]]) -> list[Objects]:
    """Return the best class, its score and the box of every query, in pixels of each image.

    sizes: height and width of the original images.
    """
    scores, labels = output.logits.float().softmax(-1)[..., :-1].max(-1)
    boxes = box_corners(output.boxes.float()).double()
    arrays = [part.cpu().numpy() for part in (labels, boxes, scores.double())]
    return [
        Objects(labels=arrays[0][n], boxes=arrays[1][n] * (width, height, width, height), scores=arrays[2][n])
        for n, (height, width) in enumerate(sizes)
    ]

"""Job `segment`: train a model that predicts a class per pixel (semantic) or a mask per object (instance)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.vision.heads import MaskOutput
from glassformer.data.annotated_examples import AnnotatedExamples, Targets
from glassformer.data.annotations import AnnotatedImage, Annotation
from glassformer.data.examples import IGNORE_INDEX, Arrays
from glassformer.errors import MissingValueError, UnsupportedError
from glassformer.metrics.detection import MAX_DETECTIONS, AveragePrecision, Objects, objects_of
from glassformer.metrics.segmentation import PanopticQuality, PixelConfusion, paint
from glassformer.schema import setting
from glassformer.tasks.image_segmentation import default_mode, mask_postprocessor
from glassformer.tasks.mask_postprocessing import MaskSegment
from glassformer.tasks.pixel_postprocessing import pixel_classes, pixel_instances
from glassformer.training.job_spec import JobSpec
from glassformer.training.labels import classes_of
from glassformer.training.learner import count_images
from glassformer.training.model_setup import (
    build_initialized,
    keep_fitting_weights,
    new_model_spec,
    supported_options,
)
from glassformer.training.object_job import ObjectData, ObjectJob, without_nan
from glassformer.training.object_learner import MaskLoss, ObjectLearner
from glassformer.training.object_losses import count_objects
from glassformer.training.task import ValidationResult

PANOPTIC_SCORE = 0.5  # instances below it do not enter the panoptic quality


@dataclass(frozen=True, kw_only=True)
class SegmentData(ObjectData):
    """Images with the masks of objects or classes."""

    segmentation: Literal["semantic", "instance"] | None = setting(
        None,
        "semantic: a class per pixel; instance: a mask per object; null is instance if an image has several "
        "masks of one class",
    )
    mask_loss: Literal["cross_entropy", "focal"] = setting(
        "cross_entropy",
        "loss of the masks of object queries, added to the dice loss: cross_entropy as in Mask2Former, or "
        "focal as in MaskFormer",
    )


class SegmentJob(ObjectJob[SegmentData]):
    """Train a segmenter of classes or of objects."""

    def prepare_data(self) -> None:
        super().prepare_data()
        if self.base_classes is None and self.valid_set.has_class_masks:
            # a wrong class number would otherwise stop the run at the first validation
            for row in self._rows(self.valid_set, self.valid_rows):
                self.valid_set[int(row)]

    def _prepare_sample(self, sample: Sequence[AnnotatedImage]) -> None:
        if not any(note.mask is not None for image in sample for note in image.annotations):
            name = "a mask of each object"
            if self.base_classes is not None:
                raise MissingValueError(name, "to evaluate a segmenter", "use a detector for boxes")
            raise MissingValueError(name, "to train a segmenter", "use the job detect for boxes")
        if self.data.segmentation is None:
            labels = [[note.label for note in image.annotations] for image in sample]
            several = any(len(set(names)) < len(names) for names in labels)
            self.update_data(segmentation="instance" if several else "semantic")
        if self.base_classes is None and not self.instances and len(self.classes) < 2:
            hint = "use data.segmentation instance, or annotate the background as a class"
            raise UnsupportedError("semantic segmentation", "a single class", hint=hint)

    def adopt_base_settings(self) -> None:
        super().adopt_base_settings()
        if self.base is not None and self.data.segmentation is None:
            mode = default_mode(self.base)
            self.update_data(segmentation="semantic" if mode == "semantic" else "instance")

    @property
    def instances(self) -> bool:
        return self.data.segmentation == "instance"

    def job_info(self) -> dict[str, Any]:
        return {"segmentation": self.data.segmentation}

    @property
    def targets(self) -> Targets:
        return "instances" if self.instances else "classes"

    @property
    def metric(self) -> str:
        return "ap" if self.instances else "miou"

    @property
    def predicts_pixels(self) -> bool:
        """Whether the model predicts the class of every pixel, instead of masks of object queries."""
        if self.base is not None:
            return self.base.spec.yields != "masks"
        return not supported_options(self.preset, {"num_queries": 1})

    @property
    def count(self) -> Callable[[Arrays], int]:  # type: ignore[override]
        return count_images if self.predicts_pixels else count_objects

    def model_defaults(self) -> dict[str, Any]:
        sizes = {"patch_size": 16, "d_model": 256, "num_heads": 4, "d_ff": 1024, "num_layers": 6}
        return {**sizes, "dropout": 0.0} if self.predicts_pixels else {}

    @property
    def mask_loss(self) -> MaskLoss:
        return self.data.mask_loss

    def build(self) -> Bundle:
        self._check_options()
        labels = len(self.classes)
        spec: Any
        if self.base is None:
            fixed = {"image_size": self.size, "num_labels": labels, "channels": 3}
            spec = new_model_spec(self.recipe.model, supported_options(self.preset, fixed))
            if spec.yields == "masks":
                kind = "EomtImageProcessor" if "encoder" in spec.stacks() else "MaskFormerImageProcessor"
                return self.finish(Bundle(model=build_initialized(spec)), kind)
            spec = self._with_pixel_head(spec)
            return self.finish(Bundle(model=build_initialized(spec)), "ViTImageProcessor")
        spec = self.base.spec
        same = classes_of(self.base) == list(self.classes)
        if spec.yields == "masks":
            bundle = self.base
            if not same or spec.head.num_labels != labels:
                head = replace(spec.head, num_labels=labels)
                bundle = keep_fitting_weights(self.base, replace(spec, head=head))
            kind = self.processor_config.get("image_processor_type", "EomtImageProcessor")
            return self.finish(bundle, kind)
        spec = self._with_pixel_head(spec)
        if same and spec == self.base.spec:
            return self.finish(self.base, "ViTImageProcessor")
        return self.finish(keep_fitting_weights(self.base, spec), "ViTImageProcessor")

    def _check_options(self) -> None:
        """Raise if the model or the masks do not fit a loss or an augmentation."""
        if self.predicts_pixels and self.data.mask_loss == "focal":
            hint = "use a model with object queries, e.g. model.preset eomt-tiny"
            raise UnsupportedError("a pixel decoder", "data.mask_loss focal", hint=hint)
        if self.data.copy_paste_prob and not self.instances:
            hint = "it pastes objects: use data.segmentation instance, or 0"
            raise UnsupportedError("semantic segmentation", "data.copy_paste_prob", hint=hint)

    def _with_pixel_head(self, spec: specs.ModelSpec) -> specs.ModelSpec:
        """Return the spec of an image encoder with a head for pixels."""
        source = getattr(spec, "input", None)
        if not isinstance(spec, specs.EncoderOnlySpec) or not isinstance(source, specs.ImagePatchesSpec):
            raise self.unsupported_model("use an image encoder such as vit or dinov2, or a mask classifier")
        labels = len(self.classes)
        if isinstance(spec.head, specs.PixelsSpec):
            head = replace(spec.head, num_labels=labels)
        else:
            # thin objects such as poles are lost at a stride of 4
            stride: Any = 1 if self.instances else 2
            head = specs.PixelsSpec(num_labels=labels, stride=stride, instances=self.instances)
        interpolate = source.interpolate or source.image_size != self.size
        return replace(spec, head=head, tied=(), input=replace(source, interpolate=interpolate))

    def validate(
        self, learner: ObjectLearner, valid: AnnotatedExamples, device: torch.device
    ) -> ValidationResult:
        score = self._evaluate_instances if self.instances else self._evaluate_classes
        return score(learner, valid, device)

    def _evaluate_classes(
        self, learner: ObjectLearner, valid: AnnotatedExamples, device: torch.device
    ) -> ValidationResult:
        confusion = PixelConfusion(len(self.classes))
        for images, output in self.predictions(learner, valid, device):
            sizes = [(image.height, image.width) for image in images]
            if isinstance(output, MaskOutput):
                maps = mask_postprocessor(learner.model.spec, self.size, 0.0).semantic(output, sizes)
            else:
                maps = pixel_classes(output, sizes)
            for image, predicted in zip(images, maps, strict=True):
                confusion.add(predicted.cpu().numpy(), self._class_map(image))
        return self.result(confusion.scores(), [{"iou": iou} for iou in confusion.iou().tolist()])

    def _class_map(self, image: AnnotatedImage) -> Any:
        """Return the annotated class of every pixel (H, W), IGNORE_INDEX if it has none."""
        classes = np.full((image.height, image.width), IGNORE_INDEX, np.int64)
        for note in image.annotations:
            if note.mask is not None and note.label in self.classes:
                classes[note.mask] = list(self.classes).index(note.label)
        return classes

    def _evaluate_instances(
        self, learner: ObjectLearner, valid: AnnotatedExamples, device: torch.device
    ) -> ValidationResult:
        labels = len(self.classes)
        # COCO's 100 predictions, or more if images have more objects
        most = max(MAX_DETECTIONS, *(len(image.annotations) for image in valid.images))
        precision = AveragePrecision(labels, masks=True, max_detections=most)
        quality = PanopticQuality(labels + 1, things=range(labels))  # and the background
        for images, output in self.predictions(learner, valid, device):
            sizes = [(image.height, image.width) for image in images]
            if isinstance(output, MaskOutput):
                found = mask_postprocessor(learner.model.spec, self.size, 0.0).instance(output, sizes)
            else:
                found = pixel_instances(output, sizes)
            for image, segments in zip(images, found, strict=True):
                predicted, true = segment_objects(segments), objects_of(image.annotations, self.classes)
                precision.add(predicted, true)
                confident = [segment for segment in segments if segment.score >= PANOPTIC_SCORE]
                masks = [(s.label_id, s.mask.cpu().numpy()) for s in sorted(confident, key=lambda s: s.score)]
                true_masks = self._masks(image.annotations)
                size = image.height, image.width
                quality.add(*paint(masks, size, labels), *paint(true_masks, size, labels))
        scores = without_nan({**precision.scores(), **quality.scores(range(labels))})
        return self.result(scores, precision.per_class())

    def _masks(self, notes: Sequence[Annotation]) -> list[tuple[int, Any]]:
        numbers = {name: n for n, name in enumerate(self.classes)}
        return [(numbers[n.label], n.mask) for n in notes if n.mask is not None and n.label in numbers]


def segment_objects(segments: Sequence[MaskSegment]) -> Objects:
    """Return segments as arrays, for the metrics of masks."""
    return Objects(
        labels=np.array([segment.label_id for segment in segments], np.int64),
        boxes=np.zeros((len(segments), 4)),
        scores=np.array([segment.score for segment in segments]),
        masks=np.stack([segment.mask.cpu().numpy() for segment in segments]) if segments else None,
    )


JOB = JobSpec(
    name="segment",
    summary="Train a segmenter of classes (semantic) or of objects (instance) on masks.",
    factory=SegmentJob,
    data=SegmentData,
    metrics=tuple("loss ap ap50 ap75 ap_small ap_medium ap_large pq sq rq miou pixel_accuracy".split()),
    metric="ap",
    preset="vit",
    batch_unit="examples",
)

"""Job `detect`: train an object detector on boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.vision.heads import BoxOutput, box_corners
from glassformer.data.annotated_examples import AnnotatedExamples, Targets
from glassformer.data.annotations import AnnotatedImage
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.messages import plural
from glassformer.metrics.detection import AveragePrecision, Objects, objects_of
from glassformer.training.job_spec import JobSpec
from glassformer.training.labels import classes_of
from glassformer.training.model_setup import (
    add_queries,
    build_initialized,
    count_queries,
    keep_fitting_weights,
    keep_positions,
    new_model_spec,
    supported_options,
)
from glassformer.training.object_job import ObjectData, ObjectJob, without_nan
from glassformer.training.object_learner import ObjectLearner
from glassformer.training.task import ValidationResult

MIN_QUERIES, MAX_QUERIES = 25, 300


class DetectJob(ObjectJob[ObjectData]):
    """Train an object detector."""

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
            is_detector = self.base.spec.yields == "boxes"
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
        spec: Any
        if requested is not None and requested < self.most_objects and self.base_classes is None:
            self.log(
                f"model.num_queries is {requested}, but an image has up to {self.most_objects} objects; "
                "the detector cannot find all of them"
            )
        if self.base is None:
            fixed = {"image_size": self.size, "num_labels": labels, "channels": 3}
            spec = new_model_spec(self.recipe.model, supported_options(self.preset, fixed))
            if spec.yields != "boxes":
                raise self.unsupported_model("use a detector, e.g. yolos-tiny or detr-tiny")
            return self.finish(Bundle(model=build_initialized(spec)), "DetrImageProcessor")
        spec = self.base.spec
        if spec.yields == "boxes":
            bundle = self.base
            before = count_queries(spec)
            if self.base_classes is None:  # an evaluation does not change the model
                queries = requested or self.required_queries
                if queries > before:
                    bundle = add_queries(bundle, queries - before)
                    objects = f"an image has up to {self.most_objects} {plural('object', self.most_objects)}"
                    self.log(f"{queries} object queries instead of {before}; {objects}")
            if spec.head.num_labels != labels or classes_of(self.base) != list(self.classes):
                spec = bundle.spec
                head = replace(spec.head, num_labels=labels)
                bundle = keep_fitting_weights(bundle, replace(spec, head=head))
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

    def validate(
        self, learner: ObjectLearner, valid: AnnotatedExamples, device: torch.device
    ) -> ValidationResult:
        precision = AveragePrecision(len(self.classes))
        for images, output in self.predictions(learner, valid, device):
            found = detected_objects(output, [(image.height, image.width) for image in images])
            for image, objects in zip(images, found, strict=True):
                precision.add(objects, objects_of(image.annotations, self.classes))
        return self.result(without_nan(precision.scores()), precision.per_class())


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


JOB = JobSpec(
    name="detect",
    summary="Train an object detector on boxes.",
    factory=DetectJob,
    data=ObjectData,
    metrics=("loss", "ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    metric="ap",
    preset="detr-tiny",
    batch_unit="examples",
)

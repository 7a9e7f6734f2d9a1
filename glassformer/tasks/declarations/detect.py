"""Detect objects in images."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer import tasks
from glassformer.tasks.registry import IMAGE, PYTHON_ONLY, TaskOptions, TaskSpec, setting
from glassformer.tasks.results import DetectedObjects


@dataclass(frozen=True, kw_only=True)
class DetectOptions(TaskOptions):
    threshold: float = setting(0.5, "Minimum score of an object, from 0 to 1.", interval="[0, 1]")
    batch_size: int = setting(16, "Largest number of images per batch.", interval="[1, inf)", **PYTHON_ONLY)


TASK = TaskSpec(
    name="detect",
    summary="Detect objects in images.",
    description="A box is x_min, y_min, x_max, y_max in pixels of the original image.",
    lines="file, label, score and box of an object, separated by tabs",
    inputs=IMAGE,
    argument="images",
    options=DetectOptions,
    result=DetectedObjects,
    accepts=lambda spec: spec.yields == "boxes",
    make=lambda bundle, options: tasks.Detector(bundle, **options.kwargs()),
    returns="list[Annotation]",
    view=lambda spec: True,
    examples=("street.jpg",),
    metric="ap",
    job="detect",
)

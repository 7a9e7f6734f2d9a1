"""Base class of tasks that find objects in images, and the warnings about images."""

from __future__ import annotations

from glassformer.bundle import Bundle
from glassformer.data.annotations import Annotation
from glassformer.data.image_files import ImageLike
from glassformer.messages import plural
from glassformer.processors.base import ImageWarning
from glassformer.processors.image import LARGE_FACTOR, ProcessedImage, VisionProcessor
from glassformer.tasks.base import BatchTask, check_at_least

BATCH_PIXELS = {"cpu": 1 << 21, "cuda": 1 << 23}  # of one batch, including padding


class ImageTask(BatchTask[ImageLike, list[Annotation]]):
    """A task that finds objects in images: paths, file contents (bytes), PIL images or arrays of any size.

    The result is one list of annotations per image.

    batch_size: largest number of images per batch; large images make smaller batches.
    """

    processor: VisionProcessor

    def __init__(self, bundle: Bundle, processor: VisionProcessor, *, batch_size: int) -> None:
        check_at_least("batch_size", batch_size)
        self.bundle, self.processor, self.read_ahead = bundle, processor, batch_size
        self.budget = BATCH_PIXELS["cpu" if bundle.device.type == "cpu" else "cuda"]

    def postprocess(
        self, input: ImageLike, item: ProcessedImage | None, raw: list[Annotation] | None
    ) -> list[Annotation]:
        return raw or []


def image_warning_message(bundle: Bundle, warning: ImageWarning, images: int) -> str:
    """Return the message of a warning that concerns `images` images."""
    subject, name = f"{images:,} {plural('image', images)}", bundle.display_name
    brightness = f"much {warning}er than the training data of {name}; invert the brightness if needed"
    problems = {
        "blank": "of one shade, without anything to recognize; the result is a guess",
        "color": f"in color, but {name} was trained on grayscale images",
        "large": f"more than {LARGE_FACTOR} times as large as {name} reads; crop to the object",
    }
    return f"{subject} {problems.get(warning, brightness)}"

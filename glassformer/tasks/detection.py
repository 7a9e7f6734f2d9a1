"""Detect objects in images: labels, scores and boxes.

B images, Q object queries, L labels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.heads import BoxOutput
from glassformer.data.annotations import Annotation
from glassformer.data.image_files import ImageLike, is_image_array, is_pillow_image, load_image
from glassformer.data.image_processing import Pixels, Size
from glassformer.errors import FileMissingError, FileProblemError, InvalidValueError, UnsupportedError
from glassformer.tasks.base import (
    NO_CALLBACKS,
    Callbacks,
    Task,
    batches,
    check_at_least,
    check_finite,
    chunks,
)
from glassformer.tasks.classification import label_names
from glassformer.tasks.images import load_image_processor

BATCH_PIXELS = {"cpu": 1 << 21, "cuda": 1 << 23}  # of one batch, including padding


class Detector(Task[ImageLike, list[Annotation]]):
    """Detect objects in images: paths, file contents (bytes), PIL images or arrays.

    An image's objects are ordered by score, the best first, with boxes in pixels of the original image.

    threshold: minimum score of an object, from 0 to 1.
    batch_size: largest number of images per batch; large images make smaller batches.
    """

    def __init__(self, bundle: Bundle, *, threshold: float = 0.5, batch_size: int = 16) -> None:
        head = getattr(bundle.spec, "head", None)
        if not isinstance(head, specs.BoxesSpec):
            hint = "use a detection model such as DETR or YOLOS"
            raise UnsupportedError(bundle.display_name, "object detection", hint=hint)
        if not 0 <= threshold <= 1:
            raise InvalidValueError("threshold", threshold, "a number from 0 to 1")
        check_at_least("batch_size", batch_size)
        self.bundle, self.threshold, self.batch_size = bundle, threshold, batch_size
        self.labels = label_names(bundle, head.num_labels)
        source: Any = getattr(bundle.spec, "source", None) or getattr(bundle.spec, "input", None)
        masked = isinstance(source, specs.FeatureMapSpec)  # whether the model tells padding from pixels
        channels = source.backbone.channels if masked else source.channels
        self.processor = load_image_processor(bundle, channels=channels)
        self.pads = masked and self.processor.do_pad

    def is_single(self, inputs: Any) -> bool:
        return super().is_single(inputs) or is_pillow_image(inputs) or is_image_array(inputs)

    def run(
        self, inputs: Iterable[ImageLike], callbacks: Callbacks = NO_CALLBACKS
    ) -> Iterator[list[Annotation]]:
        first = 1
        for chunk in chunks(inputs, self.batch_size):
            fitted: dict[int, tuple[Pixels, Size]] = {}
            for number, source in enumerate(chunk):
                try:
                    image = load_image(source)
                except (FileMissingError, FileProblemError, InvalidValueError) as error:
                    callbacks.reject("image", first + number, error)
                    continue
                fitted[number] = self.processor.fit(image), (image.height, image.width)
            results: dict[int, list[Annotation]] = {}
            callbacks.on_done(len(chunk) - len(fitted))
            for numbers in self._batches({number: pixels.shape for number, (pixels, _) in fitted.items()}):
                detected = self._detect([fitted[number] for number in numbers])
                results |= zip(numbers, detected, strict=True)
                callbacks.on_done(len(numbers))
            yield from (results.get(number, []) for number in range(len(chunk)))
            first += len(chunk)

    def _batches(self, shapes: dict[int, tuple[int, ...]]) -> Iterator[list[int]]:
        """Group images: with padding, portraits and landscapes apart; without, those of the same size."""
        groups: dict[object, list[int]] = defaultdict(list)
        for number, (height, width, _) in shapes.items():
            groups[height > width if self.pads else (height, width)].append(number)
        budget = BATCH_PIXELS["cpu" if self.bundle.device.type == "cpu" else "cuda"]
        for numbers in groups.values():
            sizes = [shapes[number][0] * shapes[number][1] for number in numbers]
            for rows in batches(sizes, budget):
                yield [numbers[row] for row in rows]

    @torch.inference_mode()
    def _detect(self, images: Sequence[tuple[Pixels, Size]]) -> list[list[Annotation]]:
        """Detect the objects of resized images, given with the sizes of the original ones."""
        pixels, sizes = zip(*images, strict=True)
        batch = self.processor.collate(pixels, sizes)
        device, dtype = self.bundle.device, next(self.bundle.model.parameters()).dtype
        options = {}
        if self.pads and len({p.shape for p in pixels}) > 1 and batch.pixel_mask is not None:
            options["pixel_mask"] = batch.pixel_mask.to(device)
        output: BoxOutput = self.bundle.inference_model()(batch.pixels.to(device, dtype), **options)
        check_finite(self.bundle, output.logits)
        found = select_boxes(output, sizes, self.threshold)
        return [
            [
                Annotation(self.labels[label], (box[0], box[1], box[2], box[3]), score=score)
                for score, label, box in zip(*(values.tolist() for values in image), strict=True)
            ]
            for image in found
        ]


def select_boxes(
    output: BoxOutput, sizes: Sequence[Size], threshold: float = 0.0
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return scores (N,), labels (N,) and boxes (N, 4) of each image, the highest scores first.

    sizes: height and width of the original images. threshold: only queries with a higher score are kept.
    Boxes are x_min, y_min, x_max, y_max in pixels. The class "no object" is never a label.
    """
    scores, labels = output.logits.float().softmax(-1)[..., :-1].max(-1)  # (B, Q)
    center, extent = output.boxes.float().split(2, -1)
    scale = torch.tensor([(width, height) * 2 for height, width in sizes], device=scores.device)
    boxes = torch.cat((center - extent / 2, center + extent / 2), -1) * scale[:, None]  # (B, Q, 4)
    found = []
    for n in range(len(sizes)):
        order = scores[n].argsort(descending=True, stable=True)
        order = order[scores[n][order] > threshold]
        found.append((scores[n][order].cpu(), labels[n][order].cpu(), boxes[n][order].cpu()))
    return found

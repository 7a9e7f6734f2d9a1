"""Detect objects in images: labels, scores and boxes.

B images, Q object queries, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.heads import BoxOutput, box_corners
from glassformer.data.annotations import Annotation
from glassformer.data.image_processing import Pixels, Size
from glassformer.errors import UnsupportedError
from glassformer.tasks.base import check_at_least, check_finite, check_probability
from glassformer.tasks.classification import label_names
from glassformer.tasks.images import ImageTask, load_image_processor


class Detector(ImageTask):
    """Detect objects in images.

    An image's objects are ordered by score, the best first, with boxes in pixels of the original image.

    threshold: minimum score of an object, from 0 to 1.
    batch_size: largest number of images per batch; large images make smaller batches.
    """

    def __init__(self, bundle: Bundle, *, threshold: float = 0.5, batch_size: int = 16) -> None:
        head = getattr(bundle.spec, "head", None)
        if not isinstance(head, specs.BoxesSpec):
            hint = "use a detection model such as DETR or YOLOS"
            raise UnsupportedError(bundle.display_name, "object detection", hint=hint)
        check_probability("threshold", threshold)
        check_at_least("batch_size", batch_size)
        self.bundle, self.threshold, self.batch_size = bundle, threshold, batch_size
        self.labels = label_names(bundle, head.num_labels)
        source: Any = getattr(bundle.spec, "source", None) or getattr(bundle.spec, "input", None)
        masked = isinstance(source, specs.FeatureMapSpec)  # whether the model tells padding from pixels
        channels = source.backbone.channels if masked else source.channels
        self.processor = load_image_processor(bundle, channels=channels)
        self.pads = masked and self.processor.do_pad

    def batch_key(self, size: Size) -> object:
        """With padding, portraits and landscapes form batches; without, images of the same size."""
        return size[0] > size[1] if self.pads else size

    @torch.inference_mode()
    def forward(self, images: Sequence[tuple[Pixels, Size]]) -> list[list[Annotation]]:
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
    Boxes are x_min, y_min, x_max, y_max in pixels, clipped to the image. The class "no object" is never a
    label.
    """
    scores, labels = output.logits.float().softmax(-1)[..., :-1].max(-1)  # (B, Q)
    scale = torch.tensor([(width, height) * 2 for height, width in sizes], device=scores.device)
    boxes = box_corners(output.boxes.float()).clamp(0, 1) * scale[:, None]  # (B, Q, 4)
    found = []
    for n in range(len(sizes)):
        order = scores[n].argsort(descending=True, stable=True)
        order = order[scores[n][order] > threshold]
        found.append((scores[n][order].cpu(), labels[n][order].cpu(), boxes[n][order].cpu()))
    return found

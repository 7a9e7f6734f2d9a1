"""Detect objects in images: labels, scores and boxes.

B images, Q object queries, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.vision.heads import BoxOutput, box_corners
from glassformer.data.annotations import Annotation
from glassformer.data.image_processing import Size
from glassformer.errors import UnsupportedError
from glassformer.processors.image import ProcessedImage, VisionProcessor
from glassformer.tasks.base import check_finite, check_probability
from glassformer.tasks.classification import label_names
from glassformer.tasks.images import ImageTask


class Detector(ImageTask):
    """Detect objects in images.

    An image's objects are ordered by score, best first, with boxes in pixels of the original image.

    threshold: minimum score of an object, from 0 to 1.
    batch_size: largest number of images per batch; large images make smaller batches.
    """

    def __init__(self, bundle: Bundle, *, threshold: float = 0.5, batch_size: int = 16) -> None:
        head = getattr(bundle.spec, "head", None)
        if head is None or head.yields != "boxes":
            hint = "use a detection model such as DETR or YOLOS"
            raise UnsupportedError(bundle.display_name, "object detection", hint=hint)
        check_probability("threshold", threshold)
        super().__init__(bundle, VisionProcessor.from_bundle(bundle), batch_size=batch_size)
        self.threshold, self.labels = threshold, label_names(bundle, head.num_labels)

    def forward(self, items: Sequence[ProcessedImage]) -> list[list[Annotation]]:
        output: BoxOutput = self.bundle.inference_model()(**self.processor.collate(items))
        check_finite(self.bundle, output.logits)
        found = select_boxes(output, [item.size for item in items], self.threshold)
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

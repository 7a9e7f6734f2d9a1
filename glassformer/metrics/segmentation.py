"""Metrics of segmentation: mean IoU and pixel accuracy of classes, and panoptic quality of segments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ClassMap = NDArray[np.integer[Any]]


def paint(
    masks: Sequence[tuple[int, NDArray[np.bool_]]], size: tuple[int, int], background: int
) -> tuple[ClassMap, ClassMap]:
    """Return maps (H, W) of classes and of segment numbers; later masks cover earlier ones.

    masks: class and mask (H, W) of each segment.
    """
    classes = np.full(size, background, np.int64)
    numbers = np.zeros_like(classes)
    for number, (label, mask) in enumerate(masks, 1):
        classes[mask], numbers[mask] = label, number
    return classes, numbers


class PixelConfusion:
    """The confusion matrix of pixels: mean IoU and pixel accuracy.

    num_classes: number of classes; annotated pixels with other numbers, e.g. 255, are ignored.

    >>> confusion = PixelConfusion(2)
    >>> confusion.add(np.array([[0, 1], [1, 1]]), np.array([[0, 0], [1, 255]]))
    >>> confusion.scores()
    {'miou': 0.5, 'pixel_accuracy': 0.6666666666666666}
    """

    def __init__(self, num_classes: int) -> None:
        self.matrix = np.zeros((num_classes, num_classes), np.int64)  # true, predicted

    def add(self, predicted: ClassMap, true: ClassMap) -> None:
        """Add class numbers of the same shape."""
        count = len(self.matrix)
        valid = (true >= 0) & (true < count)
        pairs = true[valid].astype(np.int64) * count + predicted[valid]
        self.matrix += np.bincount(pairs, minlength=count**2).reshape(count, count)

    def iou(self) -> NDArray[np.float64]:
        """Return the IoU of every class; NaN for a class that neither occurs nor is predicted."""
        right = self.matrix.diagonal()
        union = self.matrix.sum(0) + self.matrix.sum(1) - right
        return np.where(union > 0, right / np.maximum(union, 1), np.nan)

    def scores(self) -> dict[str, float]:
        """Return miou, the mean over classes that occur or are predicted, and pixel_accuracy."""
        total = self.matrix.sum()
        known = self.iou()
        known = known[~np.isnan(known)]
        return {
            "miou": float(known.mean()) if known.size else float("nan"),
            "pixel_accuracy": float(self.matrix.trace() / total) if total else float("nan"),
        }


class PanopticQuality:
    """Panoptic quality: segmentation quality times recognition quality, averaged over classes.

    num_classes: number of classes. things: classes whose segments are counted one by one; the others (stuff)
    are one segment per image.

    >>> quality = PanopticQuality(1, things=[0])
    >>> classes, segments = np.zeros((2, 2), int), np.array([[1, 1], [2, 2]])
    >>> quality.add(classes, segments, classes, np.array([[1, 1], [1, 2]]))
    >>> round(quality.scores()["pq"], 4)  # one pair with IoU 2/3; the pair with IoU 1/2 does not match
    0.3333
    """

    def __init__(self, num_classes: int, *, things: Collection[int]) -> None:
        self.num_classes = num_classes
        self._stuff = np.array([n for n in range(num_classes) if n not in things], np.int64)
        self._iou = np.zeros(num_classes)
        self._counts = np.zeros((3, num_classes), np.int64)  # true positives, false positives and negatives

    def add(
        self, classes: ClassMap, segments: ClassMap, true_classes: ClassMap, true_segments: ClassMap
    ) -> None:
        """Add an image: class numbers and segment numbers (H, W), predicted and annotated."""
        predicted, predicted_labels = self._segments(classes, segments)
        true, true_labels = self._segments(true_classes, true_segments)
        areas, true_areas = np.bincount(predicted), np.bincount(true)
        codes, shared = np.unique(predicted * len(true_labels) + true, return_counts=True)
        a, b = np.divmod(codes, len(true_labels))
        iou = shared / (areas[a] + true_areas[b] - shared)
        matched = (iou > 0.5) & (predicted_labels[a] == true_labels[b])
        labels = predicted_labels[a][matched]
        self._iou += np.bincount(labels, iou[matched], self.num_classes)
        right = np.bincount(labels, minlength=self.num_classes)
        found, expected = (
            np.bincount(all_, minlength=self.num_classes) for all_ in (predicted_labels, true_labels)
        )
        self._counts += np.stack((right, found - right, expected - right))

    def _segments(self, classes: ClassMap, segments: ClassMap) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a number from 0 for every pixel's segment, and the class of each number."""
        flat = classes.astype(np.int64).ravel()
        numbers = np.where(np.isin(flat, self._stuff), 0, segments.astype(np.int64).ravel())
        count = int(numbers.max(initial=0)) + 1
        codes, numbers = np.unique(flat * count + numbers, return_inverse=True)
        return numbers.ravel(), codes // count

    def scores(self, classes: Collection[int] | None = None) -> dict[str, float]:
        """Return pq, sq and rq, averaged over the classes that occur or are predicted.

        classes: average over these only, e.g. without a background.
        """
        right, wrong, missed = self._counts
        count = right + (wrong + missed) / 2
        known = count > 0
        if classes is not None:
            known &= np.isin(np.arange(self.num_classes), list(classes))
        if not known.any():
            return dict.fromkeys(("pq", "sq", "rq"), float("nan"))
        sq, rq = self._iou[known] / np.maximum(right[known], 1), right[known] / count[known]
        return {"pq": float((sq * rq).mean()), "sq": float(sq.mean()), "rq": float(rq.mean())}

"""Average precision of boxes and masks, as COCO's evaluation computes it.

Letters: D predicted and G annotated objects of an image, A area ranges, T IoU thresholds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassformer.data.annotations import Annotation

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
AREAS = {"": (0, 1e10), "_small": (0, 32**2), "_medium": (32**2, 96**2), "_large": (96**2, 1e10)}
MAX_DETECTIONS = 100
Floats = NDArray[np.floating[Any]]


class Objects(NamedTuple):
    """The objects of an image, annotated or predicted.

    labels: class numbers (n,). boxes: x_min, y_min, x_max, y_max in pixels (n, 4). scores: (n,), of
    predictions. masks: (n, H, W) or None. crowd: groups of objects, which may match several predictions (n,).
    """

    labels: NDArray[np.integer[Any]]
    boxes: Floats
    scores: Floats | None = None
    masks: NDArray[np.bool_] | None = None
    crowd: NDArray[np.bool_] | None = None


def objects_of(annotations: Sequence[Annotation], classes: Sequence[str]) -> Objects:
    """Return annotations as arrays; those of unknown classes are left out."""
    numbers = {name: n for n, name in enumerate(classes)}
    known = [note for note in annotations if note.label in numbers]
    masks = [note.mask for note in known]
    return Objects(
        labels=np.array([numbers[note.label] for note in known], np.int64),
        boxes=np.array([note.box or (0, 0, 0, 0) for note in known], np.float64).reshape(-1, 4),
        scores=np.array([1.0 if note.score is None else note.score for note in known]),
        masks=np.stack(masks) if known and all(mask is not None for mask in masks) else None,  # type: ignore[arg-type]
        crowd=np.array([note.iscrowd for note in known], bool),
    )


def box_iou(a: Floats, b: Floats, crowd: NDArray[np.bool_] | None = None) -> Floats:
    """Return the IoU (D, G) of boxes (D, 4) and (G, 4) with corners.

    crowd: for these (G,), the intersection is divided by the area of the first box alone, as in COCO.

    >>> box_iou(np.array([[0, 0, 2, 2.0]]), np.array([[0, 0, 2, 1.0], [2, 2, 3, 3]])).tolist()
    [[0.5, 0.0]]
    """
    low, high = np.maximum(a[:, None, :2], b[:, :2]), np.minimum(a[:, None, 2:], b[:, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    return _ratio(shared, _box_areas(a), _box_areas(b), crowd)


def mask_iou(a: NDArray[np.bool_], b: NDArray[np.bool_], crowd: NDArray[np.bool_] | None = None) -> Floats:
    """Return the IoU (D, G) of masks (D, H, W) and (G, H, W). crowd: as in `box_iou`.

    >>> mask_iou(np.ones((1, 2, 2), bool), np.eye(2, dtype=bool)[None]).tolist()
    [[0.5]]
    """
    flat_a, flat_b = (masks.reshape(len(masks), -1).astype(np.float32) for masks in (a, b))
    shared = (flat_a @ flat_b.T).astype(np.float64)  # exact below 2**24 pixels
    return _ratio(shared, a.sum((1, 2)), b.sum((1, 2)), crowd)


def _ratio(shared: Floats, a: Any, b: Any, crowd: NDArray[np.bool_] | None) -> Floats:
    union = a[:, None] + b - shared
    if crowd is not None:
        union = np.where(crowd, a[:, None], union)
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def _box_areas(boxes: Floats) -> Floats:
    return (boxes[:, 2:] - boxes[:, :2]).prod(-1)


class AveragePrecision:
    """Collect the objects of images and compute COCO's average precision.

    num_classes: class numbers are below it. masks: compare masks instead of boxes.
    max_detections: predictions used per image and class, those with the highest scores.

    >>> precision = AveragePrecision(1)
    >>> true = Objects(np.array([0]), np.array([[0, 0, 10, 10.0]]))
    >>> precision.add(true._replace(scores=np.array([0.9])), true)
    >>> round(precision.scores()["ap"], 4)
    1.0
    """

    def __init__(
        self, num_classes: int, *, masks: bool = False, max_detections: int = MAX_DETECTIONS
    ) -> None:
        self.num_classes, self.masks, self.max_detections = num_classes, masks, max_detections
        # per class: scores (D,), matched and ignored (A, T, D) of every image; number of objects (A,)
        self._found: dict[int, list[tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]]] = defaultdict(list)
        self._counts = np.zeros((num_classes, len(AREAS)), np.int64)

    def add(self, predicted: Objects, true: Objects) -> None:
        """Add the predicted and the annotated objects of an image."""
        for label in np.union1d(predicted.labels, true.labels).tolist():
            self._add_class(label, _select(predicted, label), _select(true, label))

    def _add_class(self, label: int, predicted: Objects, true: Objects) -> None:
        assert predicted.scores is not None
        order = np.argsort(-predicted.scores, kind="mergesort")[: self.max_detections]
        predicted = _take(predicted, order)
        crowd = np.zeros(len(true.labels), bool) if true.crowd is None else true.crowd
        overlaps: Floats = np.zeros((len(predicted.labels), len(true.labels)))
        if overlaps.size and self.masks:
            assert predicted.masks is not None and true.masks is not None
            overlaps = mask_iou(predicted.masks, true.masks, crowd)
        elif overlaps.size:
            overlaps = box_iou(predicted.boxes, true.boxes, crowd)
        ranges = np.array(list(AREAS.values()))[:, :, None]  # (A, 2, 1)
        ignore = crowd | _outside(_areas(true, self.masks), ranges)  # (A, G)
        matched, ignored = _match(overlaps, ignore, crowd)
        # predictions of another size that match nothing are no errors
        ignored |= ~matched & _outside(_areas(predicted, self.masks), ranges)[:, None]
        assert predicted.scores is not None
        self._found[label].append((predicted.scores, matched, ignored))
        self._counts[label] += (~ignore).sum(1)

    def scores(self) -> dict[str, float]:
        """Return ap, ap50, ap75, ap_small, ap_medium and ap_large; NaN if there is no such object."""
        precision = np.stack([self._precision(label) for label in range(self.num_classes)])  # (L, A, T, 101)
        scores = {f"ap{name}": _mean(precision[:, n]) for n, name in enumerate(AREAS)}
        at = {"ap50": _mean(precision[:, 0, 0]), "ap75": _mean(precision[:, 0, 5])}
        return {"ap": scores.pop("ap"), **at, **scores}

    def per_class(self) -> list[dict[str, float]]:
        """Return ap and ap50 of every class; NaN if it has no object."""
        precision = [self._precision(label)[0] for label in range(self.num_classes)]
        return [{"ap": _mean(part), "ap50": _mean(part[0])} for part in precision]

    def _precision(self, label: int) -> Floats:
        """Return the precision at every recall (A, T, 101); -1 if there is no object."""
        precision = np.full((len(AREAS), len(THRESHOLDS), len(RECALLS)), -1.0)
        counts = self._counts[label]
        found = self._found.get(label)
        if not found:
            precision[counts > 0] = 0.0
            return precision
        order = np.argsort(-np.concatenate([scores for scores, _, _ in found]), kind="mergesort")
        matched, ignored = (np.concatenate([image[n] for image in found], -1)[..., order] for n in (1, 2))
        right = (matched & ~ignored).cumsum(-1).astype(np.float64)  # (A, T, D)
        wrong = (~matched & ~ignored).cumsum(-1).astype(np.float64)
        for area in np.flatnonzero(counts):
            recall = right[area] / counts[area]
            sharp = right[area] / (right[area] + wrong[area] + np.spacing(1))
            sharp = np.maximum.accumulate(sharp[:, ::-1], -1)[:, ::-1]
            for n in range(len(THRESHOLDS)):
                at = np.searchsorted(recall[n], RECALLS, side="left")
                precision[area, n] = np.append(sharp[n], 0.0)[at]
        return precision


def _match(
    overlaps: Floats, ignore: NDArray[np.bool_], crowd: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Match predictions in the order of their scores, each with the best object that is still free.

    overlaps: (D, G). ignore: objects (A, G) that are matched only if no other one fits, and count neither as
    right nor as wrong. Returns whether each prediction is matched, and with an ignored object: (A, T, D).
    """
    count, objects = overlaps.shape
    matched = np.zeros((len(ignore), len(THRESHOLDS), count), bool)
    ignored = np.zeros_like(matched)
    if not objects:
        return matched, ignored
    free = np.ones((len(ignore), len(THRESHOLDS), objects), bool)
    least = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]
    preferred = np.where(ignore, 0.0, 2.0)[:, None]  # (A, 1, G)
    area, threshold = np.indices(matched.shape[:2])
    for n in range(count):
        fits = (overlaps[n] >= least) & (free | crowd)  # (A, T, G)
        value = np.where(fits, overlaps[n] + preferred, -1.0)
        best = objects - 1 - value[..., ::-1].argmax(-1)  # the last of equal ones, as in COCO
        hit = fits[area, threshold, best]
        matched[..., n] = hit
        ignored[..., n] = hit & ignore[area, best]
        free[area[hit], threshold[hit], best[hit]] = False
    return matched, ignored


def _select(objects: Objects, label: int) -> Objects:
    return _take(objects, np.flatnonzero(objects.labels == label))


def _take(objects: Objects, rows: NDArray[np.integer[Any]]) -> Objects:
    return Objects(*(None if part is None else part[rows] for part in objects))  # type: ignore[arg-type]


def _areas(objects: Objects, masks: bool) -> Floats:
    if masks and objects.masks is not None:
        return objects.masks.sum((1, 2)).astype(np.float64)
    return _box_areas(objects.boxes)


def _outside(areas: Floats, ranges: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which areas (n,) are outside the ranges (A, 2, 1): (A, n)."""
    return (areas < ranges[:, 0]) | (areas > ranges[:, 1])


def _mean(precision: Floats) -> float:
    known = precision[precision > -1]
    return float(known.mean()) if known.size else float("nan")

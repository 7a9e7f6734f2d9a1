"""Losses of object queries: Hungarian matching with the annotated objects, then class, box and mask losses.

All losses are summed, not averaged, so that micro-batches and devices can be added and divided once by the
number of objects (`count_objects`). The class loss is divided by it too, instead of the sum of class weights.
Every layer's predictions are matched and trained (deep supervision); a step copies one tensor to the host.
Letters: N layers, B images, Q queries, M objects of an image (padded), L labels, P points, K matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.vision.heads import BoxOutput, MaskOutput, box_corners
from glassformer.data.annotated_examples import NO_OBJECT
from glassformer.errors import MissingDependencyError

OVERSAMPLE = 3  # random points drawn for each one that is used, to choose the uncertain ones
UNCERTAIN = 0.75  # share of the points that are chosen where the mask is most uncertain


@dataclass(frozen=True, kw_only=True)
class ObjectLossWeights:
    """Weights of the terms in the matching cost and the loss; those of DETR and Mask2Former.

    label: of the class. no_object: of the class "no object", relative to the others.
    l1, giou: of boxes. mask, dice: of masks. num_points: points at which the loss of a mask is computed.
    focal: whether `mask` weighs the focal loss instead of the cross-entropy.
    """

    label: float = 1.0
    no_object: float = 0.1
    l1: float = 5.0
    giou: float = 2.0
    mask: float = 5.0
    dice: float = 5.0
    num_points: int = 4096
    focal: bool = False


DETECTION = ObjectLossWeights()
# by `data.mask_loss`: the weights of Mask2Former and of MaskFormer
SEGMENTATION = {
    "cross_entropy": ObjectLossWeights(label=2.0),
    "focal": ObjectLossWeights(mask=20.0, dice=1.0, focal=True),
}


class Matches(NamedTuple):
    """Which query predicts which object: layers, images, queries and objects, each (K,)."""

    layer: Tensor
    image: Tensor
    query: Tensor
    target: Tensor


def count_objects(batch: Mapping[str, Any]) -> int:
    """Return the number of objects in a batch; an image without any counts as one.

    Objects are counted by their labels (B, M), or as the classes in a map of segments (B, H, W).
    """
    if "labels" in batch:
        return int((batch["labels"] != NO_OBJECT).sum(1).clip(1).sum())
    return sum(len(np.unique(classes)) for classes in batch["segments"])


def generalized_box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the generalized IoU of boxes (..., 4) with corners; shapes are broadcast.

    >>> a, b = torch.tensor([0.0, 0.0, 2.0, 2.0]), torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 2.0]])
    >>> [round(float(iou), 4) for iou in generalized_box_iou(a, b)]
    [1.0, 0.3333]
    """
    area_a, area_b = ((box[..., 2:] - box[..., :2]).prod(-1) for box in (a, b))
    overlap = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).clamp(min=0)
    shared, enclosing = overlap.prod(-1), hull.prod(-1)
    union = area_a + area_b - shared
    return shared / union - (enclosing - union) / enclosing


def sigmoid_focal_loss(logits: Tensor, targets: Tensor, *, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Return the focal loss of every logit. targets: 0 or 1. alpha: weight of the ones."""
    error = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    probability = torch.sigmoid(logits)
    wrong = probability + targets - 2 * probability * targets  # probability of the wrong answer
    return (alpha * targets + (1 - alpha) * (1 - targets)) * error * wrong**gamma


def dice_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the dice loss (...) of masks (..., P)."""
    probability = torch.sigmoid(logits)
    shared, total = (probability * targets).sum(-1), probability.sum(-1) + targets.sum(-1)
    return 1 - (2 * shared + 1) / (total + 1)


def mask_error(logits: Tensor, targets: Tensor, w: ObjectLossWeights) -> Tensor:
    """Return the cross-entropy or focal loss of every logit of a mask. targets: 0 or 1."""
    if w.focal:
        return sigmoid_focal_loss(logits, targets)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none")


@torch.no_grad()
def match(cost: Tensor, labels: Tensor) -> Matches:
    """Assign a query to every object, with the smallest total cost in each layer and image.

    cost: (N, B, Q, M). labels: (B, M), NO_OBJECT for padding. If an image has more objects than queries, the
    most expensive ones are left out.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise MissingDependencyError("scipy", "vision") from None
    largest = torch.finfo(torch.float32).max
    cost = torch.nan_to_num(cost.float(), nan=largest, posinf=largest, neginf=largest)
    # padding is sent as NaN, so that one copy is enough
    numbers = torch.where(labels[:, None] == NO_OBJECT, torch.nan, cost).cpu().numpy()
    found = []
    for layer, images in enumerate(numbers):
        for image, matrix in enumerate(images):
            objects = np.flatnonzero(~np.isnan(matrix[0]))
            queries, targets = linear_sum_assignment(matrix[:, objects])
            place = np.full((2, len(queries)), [[layer], [image]])
            found.append(np.concatenate((place, [queries, objects[targets]])))
    return Matches(*torch.from_numpy(np.concatenate(found, 1)).to(labels.device))


def box_cost(logits: Tensor, boxes: Tensor, labels: Tensor, targets: Tensor, w: ObjectLossWeights) -> Tensor:
    """Return the matching cost (N, B, Q, M) of predictions (N, B, Q, ...) and objects (B, M, ...).

    logits: (N, B, Q, L + 1). boxes: predicted, targets: annotated, with centers. w: weights of the terms.
    """
    distance = torch.cdist(boxes, targets.expand(len(boxes), *targets.shape), p=1)
    overlap = generalized_box_iou(box_corners(boxes)[..., None, :], box_corners(targets)[:, None])
    return w.label * _label_cost(logits, labels) + w.l1 * distance - w.giou * overlap


def mask_cost(
    logits: Tensor, points: Tensor, labels: Tensor, targets: Tensor, w: ObjectLossWeights
) -> Tensor:
    """Return the matching cost (N, B, Q, M) of masks at points (N, B, Q, P) and of objects (B, M, P).

    logits: (N, B, Q, L + 1). points: predicted logits. targets: annotated masks. w: weights of the terms.
    """
    count, across = points.shape[-1], targets.mT
    ones, zeros = (mask_error(points, torch.full_like(points, value), w) for value in (1.0, 0.0))
    error = (zeros.sum(-1, keepdim=True) + (ones - zeros) @ across) / count
    probability = torch.sigmoid(points)
    total = probability.sum(-1, keepdim=True) + targets.sum(-1)[:, None]
    dice = 1 - (2 * probability @ across + 1) / (total + 1)
    return w.label * _label_cost(logits, labels) + w.mask * error + w.dice * dice


def _label_cost(logits: Tensor, labels: Tensor) -> Tensor:
    """Return minus the probability (N, B, Q, M) that each query gives to the label of each object."""
    index = labels.clamp(min=0)[None, :, None].expand(*logits.shape[:3], labels.shape[1])
    return -logits.softmax(-1).gather(-1, index)


def label_loss(logits: Tensor, labels: Tensor, matches: Matches, w: ObjectLossWeights) -> Tensor:
    """Return the summed cross-entropy of all queries (N, B, Q, L + 1); those without an object have none."""
    last = logits.shape[-1] - 1
    targets = torch.full(logits.shape[:3], last, device=logits.device)
    targets[matches.layer, matches.image, matches.query] = labels[matches.image, matches.target]
    weight = torch.ones(last + 1, device=logits.device)
    weight[last] = w.no_object
    return F.cross_entropy(logits.flatten(0, 2), targets.flatten(), weight, reduction="sum")


@torch.compiler.disable
def box_set_loss(
    output: BoxOutput, labels: Tensor, boxes: Tensor, weights: ObjectLossWeights = DETECTION
) -> Tensor:
    """Return the summed loss of a detector's predictions after every layer.

    labels: (B, M), NO_OBJECT for padding. boxes: (B, M, 4), with centers, in fractions of the image.
    """
    with torch.autocast(labels.device.type, enabled=False):
        layers = (*output.layers, output)
        logits = torch.stack([layer.logits.float() for layer in layers])
        predicted = torch.stack([layer.boxes.float() for layer in layers])
        with torch.no_grad():
            cost = box_cost(logits, predicted, labels, boxes, weights)
        matches = match(cost, labels)
        matched = predicted[matches.layer, matches.image, matches.query]  # (K, 4)
        targets = boxes[matches.image, matches.target]
        distance = F.l1_loss(matched, targets, reduction="sum")
        overlap = (1 - generalized_box_iou(box_corners(matched), box_corners(targets))).sum()
        labeled = label_loss(logits, labels, matches, weights)
        return weights.label * labeled + weights.l1 * distance + weights.giou * overlap


@torch.compiler.disable
def mask_set_loss(output: MaskOutput, labels: Tensor, masks: Tensor, weights: ObjectLossWeights) -> Tensor:
    """Return the summed loss of predicted masks after every layer, at random points.

    labels: (B, M), NO_OBJECT for padding. masks: (B, M, H, W), of any resolution.
    """
    with torch.autocast(labels.device.type, enabled=False):
        layers, annotated = (*output.layers, output), masks.float()
        logits = torch.stack([layer.logits.float() for layer in layers])
        predicted = torch.stack([layer.masks.float() for layer in layers])  # (N, B, Q, h, w)
        with torch.no_grad():
            at = torch.rand(len(labels), weights.num_points, 2, device=labels.device)
            points = torch.stack([sample_points(layer, at) for layer in predicted])
            cost = mask_cost(logits, points, labels, sample_points(annotated, at), weights)
        matches = match(cost, labels)
        matched = predicted[matches.layer, matches.image, matches.query][:, None]  # (K, 1, h, w)
        with torch.no_grad():
            at = uncertain_points(matched, weights.num_points)
            targets = sample_points(annotated[matches.image, matches.target][:, None], at)[:, 0]
        points = sample_points(matched, at)[:, 0]  # (K, P)
        error = mask_error(points, targets, weights).mean(-1).sum()
        dice = dice_loss(points, targets).sum()
        labeled = label_loss(logits, labels, matches, weights)
        return weights.label * labeled + weights.mask * error + weights.dice * dice


def sample_points(masks: Tensor, at: Tensor) -> Tensor:
    """Interpolate masks (B, C, H, W) at points (B, P, 2), x and y in fractions: (B, C, P)."""
    return F.grid_sample(masks, 2 * at[:, :, None] - 1, align_corners=False)[..., 0]


def uncertain_points(masks: Tensor, count: int) -> Tensor:
    """Return random points (K, count, 2), most of them where the logits (K, 1, h, w) are close to 0."""
    at = torch.rand(len(masks), count * OVERSAMPLE, 2, device=masks.device)
    distance = sample_points(masks, at)[:, 0].abs()
    chosen = distance.topk(int(UNCERTAIN * count), largest=False).indices
    uncertain = at.gather(1, chosen[..., None].expand(-1, -1, 2))
    rest = torch.rand(len(masks), count - chosen.shape[1], 2, device=masks.device)
    return torch.cat((uncertain, rest), 1)

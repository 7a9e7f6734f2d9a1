"""Segments from the classes of pixels and their offsets to the centers of objects.

L labels, h and w rows and columns of the prediction, H and W those of the image, K objects.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.vision.convolution.pixel_head import PixelOutput
from glassformer.tasks.mask_postprocessing import MaskSegment, Size

WINDOW = 5  # side of the square in which votes for a center are added
MIN_DISTANCE = 3  # pixels between two centers
MIN_VOTES = 4  # pixels of the smallest object
MAX_OBJECTS = 1000  # of an image, those with the most votes


def pixel_classes(output: PixelOutput, sizes: Sequence[Size]) -> list[Tensor]:
    """Return the class number of every pixel (H, W) of each image. sizes: (H, W) of the original images."""
    return [
        F.interpolate(logits[None].float(), size, mode="bilinear", align_corners=False)[0].argmax(0)
        for logits, size in zip(output.logits, sizes, strict=True)
    ]


def pixel_instances(output: PixelOutput, sizes: Sequence[Size]) -> list[list[MaskSegment]]:
    """Return the objects of each image, which do not overlap. sizes: (H, W) of the original images.

    Every pixel of an object votes for a center; each maximum of the votes is an object, and a pixel belongs
    to the center nearest to its vote. The score is the mean probability of the pixels, times the share of
    their votes that hit the center.
    """
    assert output.offsets is not None
    pairs = zip(output.logits.float(), output.offsets.float(), sizes, strict=True)
    return [_instances(logits, offsets, size) for logits, offsets, size in pairs]


def _instances(logits: Tensor, offsets: Tensor, size: Size) -> list[MaskSegment]:
    probabilities = logits.softmax(0)  # (L + 1, h, w)
    inside = probabilities[-1] < 0.5
    places = inside.nonzero()  # (P, 2), y and x
    if not len(places):
        return []
    votes = places + offsets.flip(0)[:, inside].T  # (P, 2)
    centers = _find_centers(votes, (logits.shape[1], logits.shape[2]))
    if not len(centers):
        return []
    distance, owner = torch.cdist(votes, centers.float()).min(1)  # (P,)
    ids = torch.full(inside.shape, -1.0, device=logits.device)
    ids[inside] = owner.float()
    ids = F.interpolate(ids[None, None], size, mode="nearest")[0, 0]
    area = torch.bincount(owner, minlength=len(centers)).clamp(min=1)
    near = (distance <= 2 + 0.15 * area[owner].sqrt()).float()
    labels = torch.zeros(len(centers), len(logits) - 1, device=logits.device)
    labels.index_add_(0, owner, probabilities[:-1, inside].T)
    hits = torch.zeros(len(centers), device=logits.device).index_add_(0, owner, near) / area
    best, names = (labels / area[:, None]).max(1)
    segments = []
    for n, (label, score) in enumerate(zip(names.tolist(), (best * hits).tolist(), strict=True)):
        mask = ids == n
        if area[n] >= MIN_VOTES and bool(mask.any()):
            segments.append(MaskSegment(label, score, mask))
    return segments


def _find_centers(votes: Tensor, size: Size) -> Tensor:
    """Return the places (K, 2) with the most votes (P, 2) around them, y and x."""
    height, width = size
    y, x = votes.round().long().unbind(1)
    index = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
    counts = torch.bincount(index, minlength=height * width).view(1, 1, height, width).double()
    # two passes of a mean filter; the small slope, below float32's precision, breaks ties between neighbors
    smooth = F.avg_pool2d(counts, WINDOW, 1, WINDOW // 2, divisor_override=1)
    smooth = smooth + 1e-3 * F.avg_pool2d(smooth, WINDOW, 1, WINDOW // 2)
    smooth = smooth + 1e-5 * torch.arange(height * width, device=votes.device).view_as(smooth) / (
        height * width
    )
    peak = F.max_pool2d(smooth, 2 * MIN_DISTANCE + 1, 1, MIN_DISTANCE)
    centers = ((smooth == peak) & (smooth >= MIN_VOTES))[0, 0].nonzero()
    if len(centers) > MAX_OBJECTS:
        centers = centers[smooth[0, 0][centers.unbind(1)].topk(MAX_OBJECTS).indices]
    return centers

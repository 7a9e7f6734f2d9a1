"""Augmentation of images together with their boxes and masks, on the device.

Letters: B images, C channels, H height, W width, M objects of an image (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.data.annotated_examples import NO_OBJECT
from glassformer.data.examples import augmentation
from glassformer.schema import Settings

VISIBLE = 0.3  # an object stays a target if at least this share of its box is left after cropping
PASTED = 0.5  # probability that an object of the other image is pasted
COARSE = 4  # the ellipses of pasted objects are computed at this stride


@dataclass(frozen=True, kw_only=True)
class ObjectAugment(Settings):
    """Random augmentation of images and their objects, for training only.

    It draws from torch's generator, which the trainer seeds for each micro-batch, so that a resumed run draws
    the same numbers.
    """

    section = "data"

    flip_prob: float = augmentation("random horizontal flip", 0.5)
    vertical_flip_prob: float = augmentation("random vertical flip")
    scale_jitter: float = augmentation(
        "zoom by up to exp(+-scale_jitter), at a random position", 0.3, "[0, 2]"
    )
    color_jitter: float = augmentation("change of brightness, contrast and saturation", 0.2, unit="fraction")
    copy_paste_prob: float = augmentation(
        "paste objects of another image, cut out by masks (segment) or as ellipses (detect)"
    )

    def transform(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Draw the map from new to old coordinates, both from -1 to 1: factors (B, 2) and shifts (B, 2)."""
        draws = torch.rand(count, 5, device=device)
        signs = torch.where(
            draws[:, :2] < draws.new_tensor([self.flip_prob, self.vertical_flip_prob]), -1.0, 1.0
        )
        zoom = torch.exp((2 * draws[:, 2:3] - 1) * self.scale_jitter)
        free = (1 - 1 / zoom).abs()  # how far the window, or the image in it, may move
        return signs / zoom, (2 * draws[:, 3:] - 1) * free

    def change_colors(self, images: Tensor) -> Tensor:
        """Change brightness, contrast and saturation of images (B, C, H, W) from 0 to 1."""
        if not self.color_jitter:
            return images
        draws = 1 + (2 * torch.rand(3, len(images), 1, 1, 1, device=images.device) - 1) * self.color_jitter
        images = images * draws[0]
        mean = images.mean((1, 2, 3), keepdim=True)
        images = mean + (images - mean) * draws[1]
        gray = images.mean(1, keepdim=True)
        return (gray + (images - gray) * draws[2]).clamp(0, 1)


def move_images(images: Tensor, factor: Tensor, shift: Tensor, mode: str = "bilinear") -> Tensor:
    """Resample images (B, C, H, W) with the map of `ObjectAugment.transform`; outside is 0."""
    zero = torch.zeros_like(factor[:, 0])
    across = torch.stack((factor[:, 0], zero, shift[:, 0]), -1)
    down = torch.stack((zero, factor[:, 1], shift[:, 1]), -1)
    grid = F.affine_grid(torch.stack((across, down), 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode=mode, align_corners=False)


def move_boxes(labels: Tensor, boxes: Tensor, factor: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the map of `ObjectAugment.transform` to boxes (B, M, 4); those mostly outside lose their label.

    labels: (B, M), NO_OBJECT for padding.
    """
    center, extent = boxes.split(2, -1)
    old = torch.stack((center - extent / 2, center + extent / 2), 2) * 2 - 1  # (B, M, 2 corners, 2)
    new = ((old - shift[:, None, None]) / factor[:, None, None] + 1) / 2
    low, high = new.amin(2), new.amax(2)
    area = (high - low).prod(-1)
    low, high = low.clamp(0, 1), high.clamp(0, 1)
    visible = (high - low).prod(-1) >= VISIBLE * area
    return torch.where(visible, labels, NO_OBJECT), torch.cat(((low + high) / 2, high - low), -1)


def choose_pasted(labels: Tensor, probability: float) -> Tensor:
    """Draw which objects (B, M) are pasted into the next image: half of them, in some of the images."""
    chosen = torch.rand(labels.shape, device=labels.device) < PASTED
    chosen &= torch.rand(len(labels), 1, device=labels.device) < probability
    return chosen & (labels != NO_OBJECT)


def paste_boxes(
    images: Tensor, labels: Tensor, boxes: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Paste the chosen objects (B, M) of each image into the next one: the ellipses in their boxes.

    Objects that are mostly covered lose their label. Returns images (B, C, H, W), labels (B, 2 M) and boxes.
    """
    height, width = images.shape[2:]
    y, x = (
        (torch.arange(0, side, COARSE, device=images.device) + COARSE / 2) / side for side in (height, width)
    )
    distance = [  # from the center of each box, 1 at its sides: (B, M, h, 1) and (B, M, 1, w)
        (line - boxes[..., axis, None]).abs() / (boxes[..., axis + 2, None] / 2).clamp(min=1e-6)
        for axis, line in ((1, y), (0, x))
    ]
    down, across = distance[0][..., None], distance[1][..., None, :]
    radius = (down.square() + across.square()).masked_fill(~chosen[..., None, None], 4.0).amin(1).sqrt()
    covered = (radius.roll(1, 0) < 1)[:, None]  # (B, 1, h, w)
    inside = (down < 1) & (across < 1)
    hidden = (inside & covered).flatten(2).sum(-1) > (1 - VISIBLE) * inside.flatten(2).sum(-1)
    opacity = F.interpolate(
        ((1 - radius) * COARSE * 2 + 0.5)[:, None], (height, width), mode="bilinear"
    ).clamp(0, 1)
    images = torch.lerp(images, images.roll(1, 0), opacity.roll(1, 0))
    pasted = torch.where(chosen, labels, NO_OBJECT).roll(1, 0)
    labels = torch.cat((torch.where(hidden, NO_OBJECT, labels), pasted), 1)
    return images, labels, torch.cat((boxes, boxes.roll(1, 0)), 1)


def paste_segments(
    images: Tensor, labels: Tensor, segments: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Paste the chosen objects (B, M) of each image into the next one, cut out along their masks.

    segments: number of the object of each pixel (B, H, W), NO_OBJECT outside; in the result, pasted objects
    have the numbers M to 2 M - 1. Returns images (B, C, H, W), labels (B, 2 M) and segments.
    """
    index = segments.long().clamp(min=0).flatten(1)
    mask = chosen.gather(1, index).view_as(segments) & (segments != NO_OBJECT)
    mask, others = mask.roll(1, 0), segments.roll(1, 0) + labels.shape[1]
    images = torch.where(mask[:, None], images.roll(1, 0), images)
    pasted = torch.where(chosen, labels, NO_OBJECT).roll(1, 0)
    return images, torch.cat((labels, pasted), 1), torch.where(mask, others, segments)

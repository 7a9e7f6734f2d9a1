"""Learners of detectors and segmenters; images are normalized and augmented on the device.

Letters: B images, C channels, H height, W width, M objects of an image (padded), L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.convolution.pixel_head import PixelOutput
from glassformer.core.heads import BoxOutput, MaskOutput, box_corners
from glassformer.data.annotated_examples import NO_OBJECT
from glassformer.data.examples import IGNORE_INDEX
from glassformer.training.learner import Learner
from glassformer.training.set_losses import SEGMENTATION, box_set_loss, mask_set_loss

MaskLoss = Literal["cross_entropy", "focal"]
VISIBLE = 0.3  # an object stays a target if at least this share of its box is left after cropping
OFFSET_UNIT = 16.0  # pixels; offsets to centers are compared in this unit
PASTED = 0.5  # probability that an object of the other image is pasted
COARSE = 4  # the ellipses of pasted objects are computed at this stride


@dataclass(frozen=True, kw_only=True)
class ObjectAugment:
    """Random augmentation of images and their objects, for training only.

    It draws from torch's generator, which the trainer seeds for each micro-batch, so that a resumed run draws
    the same numbers.

    flip: probability of a horizontal flip. vertical_flip: of a vertical one.
    scale: images are zoomed by up to exp(scale) in or out, at a random position.
    color: largest change of brightness, contrast and saturation, as a fraction.
    copy_paste: probability that objects of another image of the batch are pasted into an image.
    """

    flip: float = 0.0
    vertical_flip: float = 0.0
    scale: float = 0.0
    color: float = 0.0
    copy_paste: float = 0.0

    def transform(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Draw the map from new to old coordinates, both from -1 to 1: factors (B, 2) and shifts (B, 2)."""
        draws = torch.rand(count, 5, device=device)
        signs = torch.where(draws[:, :2] < draws.new_tensor([self.flip, self.vertical_flip]), -1.0, 1.0)
        zoom = torch.exp((2 * draws[:, 2:3] - 1) * self.scale)
        free = (1 - 1 / zoom).abs()  # how far the window, or the image in it, may move
        return signs / zoom, (2 * draws[:, 3:] - 1) * free

    def change_colors(self, images: Tensor) -> Tensor:
        """Change brightness, contrast and saturation of images (B, C, H, W) from 0 to 1."""
        if not self.color:
            return images
        draws = 1 + (2 * torch.rand(3, len(images), 1, 1, 1, device=images.device) - 1) * self.color
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
    old = box_corners(boxes).unflatten(-1, (2, 2)) * 2 - 1  # (B, M, 2 corners, 2)
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


class ObjectLearner(Learner):
    """Normalize and augment images, and compare the predictions of the model with the annotated objects.

    mean, std: of each channel. augment: random augmentation in training mode.
    mask_loss: of masks of object queries, "cross_entropy" or "focal".
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augment: ObjectAugment | None = None,
        mask_loss: MaskLoss = "cross_entropy",
    ) -> None:
        super().__init__(model)
        self.augment, self.mask_loss = augment, mask_loss
        self._mean: Tensor
        self._std: Tensor
        self.register_buffer("_mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("_std", torch.tensor(std)[:, None, None], persistent=False)

    def normalize(self, images: Tensor) -> Tensor:
        """Normalize images (B, C, H, W) from 0 to 1."""
        return (images - self._mean) / self._std

    def predict(self, images: Tensor) -> BoxOutput | MaskOutput | PixelOutput:
        """Return the output of the model for bytes (B, C, H, W)."""
        output: BoxOutput | MaskOutput | PixelOutput = self.model(self.normalize(images.float() / 255))
        return output

    def forward(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        boxes: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        pixels = images.float() / 255
        if not self.training or self.augment is None:
            return self.loss(self.model(self.normalize(pixels)), labels, boxes, segments)
        with torch.autocast(images.device.type, enabled=False):  # coordinates need float32
            pixels = self.normalize(self.augment.change_colors(pixels))
            factor, shift = self.augment.transform(len(images), images.device)
            pixels = move_images(pixels, factor, shift)
            if segments is not None:
                outside = IGNORE_INDEX if labels is None else NO_OBJECT
                moved = move_images((segments[:, None] - outside).float(), factor, shift, "nearest")
                segments = moved[:, 0].to(segments.dtype) + outside
                if labels is not None and self.augment.copy_paste:
                    chosen = choose_pasted(labels, self.augment.copy_paste)
                    pixels, labels, segments = paste_segments(pixels, labels, segments, chosen)
            elif labels is not None and boxes is not None:
                labels, boxes = move_boxes(labels, boxes, factor, shift)
                if self.augment.copy_paste:
                    chosen = choose_pasted(labels, self.augment.copy_paste)
                    pixels, labels, boxes = paste_boxes(pixels, labels, boxes, chosen)
        return self.loss(self.model(pixels), labels, boxes, segments)

    def loss(
        self,
        output: BoxOutput | MaskOutput | PixelOutput,
        labels: Tensor | None,
        boxes: Tensor | None,
        segments: Tensor | None,
    ) -> Tensor:
        """Return the summed loss of an output; the arguments are the arrays of a batch."""
        if isinstance(output, BoxOutput):
            assert labels is not None and boxes is not None
            return box_set_loss(output, labels, boxes)
        assert segments is not None
        if isinstance(output, MaskOutput):
            labels, masks = segment_masks(segments, labels, output.logits.shape[-1] - 1)
            return mask_set_loss(output, labels, masks, SEGMENTATION[self.mask_loss])
        if output.offsets is None:
            return pixel_class_loss(output.logits, segments.long())
        assert labels is not None
        return pixel_instance_loss(output, labels, segments.long())


def segment_masks(segments: Tensor, labels: Tensor | None, num_labels: int) -> tuple[Tensor, Tensor]:
    """Return labels (B, M) and masks (B, M, H, W) of a map of objects, or of classes if there are no labels.

    An object without a pixel loses its label.
    """
    if labels is None:
        labels = torch.arange(num_labels, device=segments.device).expand(len(segments), -1)
    numbers = torch.arange(labels.shape[1], device=segments.device)[:, None, None]
    masks = segments[:, None] == numbers
    return torch.where(masks.flatten(2).any(-1), labels, NO_OBJECT), masks


def pixel_class_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the mean cross-entropy of the labeled pixels of each image, summed over images.

    logits: (B, L, H, W). classes: (B, H, W), IGNORE_INDEX for unlabeled pixels.
    """
    errors = F.cross_entropy(logits.float(), classes, ignore_index=IGNORE_INDEX, reduction="none")
    labeled = (classes != IGNORE_INDEX).flatten(1).sum(1).clamp(min=1)
    return (errors.flatten(1).sum(1) / labeled).sum()


def pixel_instance_loss(output: PixelOutput, labels: Tensor, segments: Tensor) -> Tensor:
    """Return the loss of the class and of the center that each pixel points to, summed over images.

    labels: (B, M). segments: number of the object of each pixel (B, H, W), NO_OBJECT outside.
    """
    assert output.offsets is not None
    inside = segments != NO_OBJECT
    index = segments.clamp(min=0).flatten(1)  # (B, H W)
    background = output.logits.shape[1] - 1
    classes = torch.where(inside, labels.gather(1, index).view_as(segments), background)
    total = pixel_class_loss(output.logits, classes)
    offsets, _ = center_offsets(segments, labels.shape[1])
    # every object counts the same, small or large
    area = torch.zeros(labels.shape, device=labels.device)
    area = area.scatter_add(1, index, inside.flatten(1).float()).clamp(min=1)
    weight = (inside.flatten(1) / area.gather(1, index)).view_as(segments)
    distance = F.smooth_l1_loss(output.offsets.float() / OFFSET_UNIT, offsets / OFFSET_UNIT, reduction="none")
    objects = (area > 1).sum(1).clamp(min=1)
    return total + (5 * (distance.sum(1) * weight).flatten(1).sum(1) / objects).sum()


def center_offsets(segments: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the offset x, y (B, 2, H, W) from each pixel to the center of its object, and the centers.

    segments: number of the object of each pixel (B, H, W), NO_OBJECT outside. count: number of objects M.
    The center (B, M, 2) is the mean of the object's pixels; offsets outside of objects have no meaning.
    """
    _, height, width = segments.shape
    y, x = torch.meshgrid(
        torch.arange(height, device=segments.device),
        torch.arange(width, device=segments.device),
        indexing="ij",
    )
    inside = (segments != NO_OBJECT).flatten(1).float()
    index = segments.clamp(min=0).flatten(1)
    places = torch.stack((x, y)).flatten(1).float()  # (2, H W)
    zeros = torch.zeros(len(segments), count, device=segments.device)
    area = zeros.scatter_add(1, index, inside).clamp(min=1)
    centers = torch.stack([zeros.scatter_add(1, index, inside * p) / area for p in places], -1)
    pointed = torch.stack([centers[..., n].gather(1, index) for n in (0, 1)], 1)  # (B, 2, H W)
    return (pointed - places).unflatten(2, (height, width)), centers

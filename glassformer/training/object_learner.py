"""Learners of detectors and segmenters; images are normalized and augmented on the device.

Letters: B images, C channels, H height, W width, M objects of an image (padded), L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.vision.convolution.pixel_head import PixelOutput
from glassformer.core.vision.heads import BoxOutput, MaskOutput
from glassformer.data.annotated_examples import NO_OBJECT
from glassformer.data.augmentation import (
    ObjectAugment,
    choose_pasted,
    move_boxes,
    move_images,
    paste_boxes,
    paste_segments,
)
from glassformer.data.examples import IGNORE_INDEX
from glassformer.training.learner import Learner
from glassformer.training.object_losses import SEGMENTATION, box_set_loss, mask_set_loss

MaskLoss = Literal["cross_entropy", "focal"]
OFFSET_UNIT = 16.0  # pixels; offsets to centers are compared in this unit


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
                if labels is not None and self.augment.copy_paste_prob:
                    chosen = choose_pasted(labels, self.augment.copy_paste_prob)
                    pixels, labels, segments = paste_segments(pixels, labels, segments, chosen)
            elif labels is not None and boxes is not None:
                labels, boxes = move_boxes(labels, boxes, factor, shift)
                if self.augment.copy_paste_prob:
                    chosen = choose_pasted(labels, self.augment.copy_paste_prob)
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

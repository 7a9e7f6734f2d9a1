"""Segments from the classes and masks of object queries: semantic, instance and panoptic segmentation.

Published models differ in two ways, which `MaskPostprocessor` describes: the size to which mask logits are
resized first, and whether masks are resized to the image as probabilities or as logits.

Q object queries, L labels, h and w rows and columns of a mask, H and W those of the image.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.vision.heads import MaskOutput
from glassformer.data.annotations import Annotation, mask_to_box

Size = tuple[int, int]  # rows, columns


class MaskSegment(NamedTuple):
    """One predicted segment of an image."""

    label_id: int
    score: float
    mask: Tensor  # (H, W), bool


@dataclass(frozen=True, kw_only=True)
class MaskPostprocessor:
    """Turn the output of a mask head into segments of the original images.

    mask_size: size that mask logits are resized to first; None: as predicted.
    resize: "probabilities": a mask is resized to the image as probabilities (panoptic) or as a binary mask
    (instance), and a query may yield instances of several classes. "logits": a mask is resized as logits, and
    a query yields one instance of its best class.
    threshold: lowest score of an instance or of a panoptic segment.
    mask_threshold: lowest probability of a pixel of a mask.
    overlap_mask_area_threshold: a panoptic segment is dropped if other segments leave it no more than this
    share of its mask.
    """

    mask_size: Size | None = None
    resize: Literal["probabilities", "logits"] = "probabilities"
    threshold: float = 0.5
    mask_threshold: float = 0.5
    overlap_mask_area_threshold: float = 0.8

    def semantic(
        self, output: MaskOutput, sizes: Sequence[Size], content: Sequence[Size] | None = None
    ) -> list[Tensor]:
        """Return the class id of every pixel (H, W) for each image.

        sizes: (H, W) of the original images. content: see `_masks`.
        """
        return [
            best_classes(class_scores(logits, masks), size)
            for logits, masks, size in self._images(output, sizes, content)
        ]

    def semantic_of_crops(
        self,
        output: MaskOutput,
        crops: Sequence[tuple[int, int, int]],
        sizes: Sequence[Size],
        scaled_sizes: Sequence[Size],
    ) -> list[Tensor]:
        """Return the class id of every pixel (H, W) of images that were split into square crops.

        The scores of overlapping crops are averaged. `mask_size` is the size of a crop.

        crops: (image, start, end) of each row of the output, along the longer side of the resized image.
        sizes, scaled_sizes: (H, W) of the original and of the resized images.
        """
        sums = [torch.zeros(output.logits.shape[-1] - 1, *size) for size in scaled_sizes]
        counts = [torch.zeros(size) for size in scaled_sizes]
        images = self._images(output, [scaled_sizes[n] for n, _, _ in crops], None)
        for (n, start, end), (logits, masks, (high, wide)) in zip(crops, images, strict=True):
            rows, columns = (
                (slice(start, end), slice(None)) if high > wide else (slice(None), slice(start, end))
            )
            sums[n][:, rows, columns] += class_scores(logits, masks).cpu()
            counts[n][rows, columns] += 1
        return [
            best_classes(scores / count.clamp(min=1), size)
            for scores, count, size in zip(sums, counts, sizes, strict=True)
        ]

    def instance(
        self, output: MaskOutput, sizes: Sequence[Size], content: Sequence[Size] | None = None
    ) -> list[list[MaskSegment]]:
        """Return the instances of each image, which may overlap. The arguments are those of `semantic`."""
        return [
            self._instances(logits, masks, size)
            for logits, masks, size in self._images(output, sizes, content)
        ]

    def _instances(self, logits: Tensor, masks: Tensor, size: Size) -> list[MaskSegment]:
        probabilities = logits.softmax(-1)[:, :-1]  # (Q, L)
        if self.resize == "probabilities":
            scores, chosen = probabilities.flatten().topk(len(probabilities))
            queries, label_ids = chosen // probabilities.shape[1], chosen % probabilities.shape[1]
        else:
            scores, label_ids = probabilities.max(-1)
            queries = torch.arange(len(scores), device=scores.device)
        # the score of a mask is at most 1, so the others cannot reach the threshold
        keep = scores >= self.threshold
        segments = []
        for query, label_id, score in zip(queries[keep], label_ids[keep], scores[keep], strict=True):
            mask_logits = masks[query]
            if self.resize == "logits":
                mask_logits = _resize(mask_logits[None], size)[0]
            mask = mask_logits > 0
            total = score * (mask_logits.sigmoid() * mask).sum() / (mask.sum() + 1e-6)
            if self.resize == "probabilities":
                mask = F.interpolate(mask[None, None].float(), size, mode="nearest")[0, 0] > 0
            if bool(mask.any()) and float(total) >= self.threshold:
                segments.append(MaskSegment(int(label_id), float(total), mask))
        return segments

    def panoptic(
        self,
        output: MaskOutput,
        sizes: Sequence[Size],
        content: Sequence[Size] | None = None,
        *,
        label_ids_to_fuse: Collection[int] = (),
    ) -> list[list[MaskSegment]]:
        """Return the segments of each image, which do not overlap.

        label_ids_to_fuse: classes whose segments are merged into one ("stuff", such as sky). The other
        arguments are those of `semantic`.
        """
        return [
            self._segments(logits, masks, size, label_ids_to_fuse)
            for logits, masks, size in self._images(output, sizes, content)
        ]

    def _segments(
        self, logits: Tensor, masks: Tensor, size: Size, fused: Collection[int]
    ) -> list[MaskSegment]:
        scores, label_ids = logits.softmax(-1).max(-1)
        keep = (label_ids != logits.shape[-1] - 1) & (scores > self.threshold)
        scores, label_ids, masks = scores[keep], label_ids[keep], masks[keep]
        if not len(scores):
            return []
        if self.resize == "logits":
            probabilities = _resize(masks, size).sigmoid()
            weighted = probabilities * scores[:, None, None]
        else:
            probabilities = weighted = _resize(masks.sigmoid(), size) * scores[:, None, None]
        owner = weighted.argmax(0)  # (H, W): the query of each pixel
        segments: list[MaskSegment] = []
        by_label: dict[int, int] = {}
        for n, label_id in enumerate(label_ids.tolist()):
            inside, mask = probabilities[n] >= self.mask_threshold, owner == n
            area, full_area = int(mask.sum()), int(inside.sum())
            if self.resize == "logits":
                mask = mask & inside
            if not full_area or not mask.any() or area / full_area <= self.overlap_mask_area_threshold:
                continue
            if label_id in by_label:
                first = segments[by_label[label_id]]
                segments[by_label[label_id]] = first._replace(mask=first.mask | mask)
                continue
            if label_id in fused:
                by_label[label_id] = len(segments)
            segments.append(MaskSegment(label_id, float(scores[n]), mask))
        return segments

    def _images(
        self, output: MaskOutput, sizes: Sequence[Size], content: Sequence[Size] | None
    ) -> Iterator[tuple[Tensor, Tensor, Size]]:
        """Yield class logits (Q, L + 1), mask logits (Q, h, w) and the size of each image.

        content: rows and columns of the masks (of `mask_size`, if set) that show the image; the others show
        padding. None: all of them.
        """
        for n, size in enumerate(sizes):
            masks = output.masks[n].float()
            if self.mask_size is not None:
                masks = _resize(masks, self.mask_size)
            if content is not None:
                masks = masks[:, : content[n][0], : content[n][1]]
            yield output.logits[n].float(), masks, size


def class_scores(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the scores of all classes (L, h, w), from logits (Q, L + 1) and masks (Q, h, w)."""
    return torch.einsum("qc,qhw->chw", logits.softmax(-1)[:, :-1], masks.sigmoid())


def best_classes(scores: Tensor, size: Size) -> Tensor:
    """Resize scores (L, h, w), and return the best class of each pixel (H, W)."""
    best = torch.full(size, -1.0, device=scores.device)
    class_map = torch.zeros(size, dtype=torch.long, device=scores.device)
    for label_id, plane in enumerate(scores):  # one by one: all of them at once may not fit in memory
        resized = _resize(plane[None], size)[0]
        better = resized > best
        best = torch.where(better, resized, best)
        class_map[better] = label_id
    return class_map


def _resize(masks: Tensor, size: Size) -> Tensor:
    """Resize masks (N, h, w) to (N, *size), bilinearly."""
    return F.interpolate(masks[None], size, mode="bilinear", align_corners=False)[0]


def content_size(mask_size: Size, scaled_size: Size, input_size: Size) -> Size:
    """Return the rows and columns of a mask that show the image, not the padding to the right and below.

    scaled_size: of the image in the input. input_size: of the padded input.

    >>> content_size((40, 40), (100, 160), (160, 160))
    (25, 40)
    """
    rows, columns = (math.ceil(m * s / i) for m, s, i in zip(mask_size, scaled_size, input_size, strict=True))
    return rows, columns


def class_map_annotations(class_map: Tensor, labels: Sequence[str]) -> list[Annotation]:
    """Return one annotation for each class in a class map (H, W)."""
    return [
        _annotation(labels[label_id], class_map == label_id, None) for label_id in class_map.unique().tolist()
    ]


def segment_annotations(segments: Sequence[MaskSegment], labels: Sequence[str]) -> list[Annotation]:
    """Return one annotation for each segment, highest score first."""
    ranked = sorted(segments, key=lambda segment: -segment.score)
    return [_annotation(labels[segment.label_id], segment.mask, segment.score) for segment in ranked]


def _annotation(label: str, mask: Tensor, score: float | None) -> Annotation:
    array = mask.cpu().numpy()
    return Annotation(label=label, box=mask_to_box(array), mask=array, score=score)

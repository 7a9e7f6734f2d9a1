"""Segment images: masks of the objects that points and boxes name, or of everything in the image.

An image is encoded once; its embedding is cached in the bundle, so that further prompts only run the decoder.
Points are (x, y) and boxes (x_min, y_min, x_max, y_max), in pixels of the original image.
N prompts, P points per prompt, M masks per prompt, h and w rows and columns of a mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.core.vision.segmenter import PromptedMaskOutput, Prompts
from glassformer.data.annotations import ONE_CLASS, Annotation, Box, mask_to_box
from glassformer.data.image_files import ImageLike, image_digest
from glassformer.data.image_processing import Size
from glassformer.errors import (
    ConflictError,
    GlassformerError,
    InvalidValueError,
    MissingValueError,
    UnsupportedError,
    attempt,
)
from glassformer.processors.image import VisionProcessor
from glassformer.tasks.base import (
    NO_CALLBACKS,
    BatchTask,
    Callbacks,
    check_at_least,
    check_finite,
    check_probability,
)
from glassformer.tasks.declarations.segment import Point

WHOLE_OBJECT_MARGIN = 0.05  # of predicted IoU; see the card of pocket-sam
POINTS_PER_BATCH = {"cpu": 16, "cuda": 64}  # prompts of "everything" that are decoded together
FULL_SIZE_PIXELS = 1 << 26  # of all masks that are resized together; one pixel takes 4 bytes


@dataclass(frozen=True, kw_only=True)
class SegmentationPrompt:
    """Points and a box that name one object.

    points: inside the object. background_points: outside of it. box: around it.
    """

    points: Sequence[Point] = ()
    background_points: Sequence[Point] = ()
    box: Box | None = None

    @property
    def is_single_click(self) -> bool:
        """Whether the prompt is one point inside the object, which may mean a part, the whole or a group."""
        return len(self.points) == 1 and not self.background_points and self.box is None


def make_prompts(points: Any = (), background_points: Any = (), boxes: Any = ()) -> list[SegmentationPrompt]:
    """Return one prompt of the points, with the box if there is one; without points, a prompt for each box.

    The arguments are lists or arrays, of points (x, y) and of boxes (x_min, y_min, x_max, y_max). Each may
    also be a text with commas, e.g. "120,80".

    >>> len(make_prompts([(5, 5), (9, 9)])), len(make_prompts(boxes=[(0, 0, 9, 9), (5, 5, 20, 20)]))
    (1, 2)
    """
    inside = _parse_rows("points", points, "x,y", "120,80")
    outside = _parse_rows("background_points", background_points, "x,y", "120,80")
    around = _parse_rows("boxes", boxes, "x_min,y_min,x_max,y_max", "40,20,200,160")
    if not inside and not outside:
        return [SegmentationPrompt(box=box) for box in around]
    if len(around) > 1:
        names = ("points" if inside else "background_points", "several boxes")
        raise ConflictError(names, "the points may belong to any of them", "use one box, or no points")
    return [SegmentationPrompt(points=inside, background_points=outside, box=around[0] if around else None)]


def _parse_rows(name: str, values: Any, form: str, example: str) -> list[Any]:
    """Return points or boxes as tuples of floats. form: names of their coordinates."""
    rows: list[Any] = []
    for value in values:
        try:
            row = tuple(map(float, value.split(",") if isinstance(value, str) else value))
        except (TypeError, ValueError):
            row = ()
        if len(row) != len(form.split(",")):
            if np.iterable(value) and not isinstance(values, str):
                raise InvalidValueError(name, value, f"{form} in pixels, e.g. {example}")
            # one point or box instead of a list of them
            raise InvalidValueError(name, values, f"a list of ({form}) in pixels, e.g. [({example})]")
        rows.append(row)
    return rows


@dataclass(frozen=True, kw_only=True)
class MaskGeneration:
    """How everything in an image is segmented: a grid of points, whose best masks are kept.

    points_per_side: rows and columns of the grid
    pred_iou_thresh: minimum predicted IoU of a mask
    stability_score_thresh: minimum IoU of the masks at a lower and a higher threshold of the logits
    stability_score_offset: by how much these thresholds differ from 0
    box_nms_thresh: of two masks whose boxes have a higher IoU, the better one is kept
    """

    points_per_side: int = 32
    pred_iou_thresh: float = 0.88
    stability_score_thresh: float = 0.95
    stability_score_offset: float = 1.0
    box_nms_thresh: float = 0.7

    def __post_init__(self) -> None:
        check_at_least("points_per_side", self.points_per_side, most=256)
        for name in ("pred_iou_thresh", "stability_score_thresh", "box_nms_thresh"):
            check_probability(name, getattr(self, name))


@dataclass(frozen=True)
class EncodedImage:
    """The embedding (1, D, h, w) of an image. size, scaled_size: height and width, original and resized."""

    embedding: Tensor
    size: Size
    scaled_size: Size

    @property
    def nbytes(self) -> int:
        return self.embedding.nbytes


def check_takes_prompts(bundle: Bundle) -> None:
    """Raise unless a model is promptable."""
    if bundle.spec.yields != "prompted masks":
        hint = "use a SAM model, e.g. pocket-sam"
        raise UnsupportedError(bundle.display_name, "prompts of points and boxes", hint=hint)


class PromptSegmenter(BatchTask[ImageLike, list[Annotation]]):
    """Segment images by prompts: paths, file contents (bytes), PIL images or arrays.

    The result is one list of masks per image, with their predicted IoU as score: those of the first prompt,
    best first, then those of the next one. The best mask of a single point is the largest whose predicted
    IoU is within 0.05 of the highest, see `rank_masks`; of other prompts, it has the highest predicted IoU.
    Empty masks are left out, but every prompt has at least one mask.

    prompts: the objects to segment
    everything: segment everything in the image, without prompts
    multimask_output: three masks per prompt (a part, the whole, a group) instead of one; by default three for
    a single point, which is ambiguous
    """

    read_ahead = 1
    processor: VisionProcessor

    def __init__(
        self,
        bundle: Bundle,
        *,
        prompts: Sequence[SegmentationPrompt] = (),
        everything: MaskGeneration | None = None,
        multimask_output: bool | None = None,
    ) -> None:
        check_takes_prompts(bundle)
        if everything is not None and prompts:
            name = "boxes" if prompts[0].box else "points"
            raise ConflictError(("everything", name), "everything is segmented with a grid of points")
        if everything is None and not (prompts and all(p.points or p.box for p in prompts)):
            hint = ""
            if any(p.background_points for p in prompts):
                hint = "background points only say what is outside of the object"
            others = ("boxes", "everything")
            raise MissingValueError("points", "for a promptable model", hint, alternatives=others)
        self.bundle, self.prompts, self.everything = bundle, prompts, everything
        self.multimask_output = multimask_output
        self.processor = VisionProcessor.from_bundle(bundle)
        self.image_size: Size = self.processor.read.image_size

    def load(self, inputs: Iterable[ImageLike]) -> list[EncodedImage | GlassformerError]:
        return [attempt(self._load, image, errors=self.processor.errors) for image in inputs]

    def _load(self, image: ImageLike) -> EncodedImage:
        encoded = self.encode(image)
        for prompt in self.prompts:
            _fit_prompt(prompt, encoded.size)
        return encoded

    def run_batches(
        self, items: Sequence[EncodedImage | None], callbacks: Callbacks = NO_CALLBACKS
    ) -> list[list[Annotation]]:
        outputs = [[] if item is None else list(self._annotations(item, callbacks)) for item in items]
        callbacks.on_done(len(items))
        return outputs

    def forward(self, items: Sequence[EncodedImage]) -> list[list[Annotation]]:
        return self.run_batches(items)

    def postprocess(
        self, input: ImageLike, item: EncodedImage | None, raw: list[Annotation]
    ) -> list[Annotation]:
        return raw

    def annotate(self, image: ImageLike, callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Annotation]:
        """Yield the masks of an image one by one: in full size, all of them may not fit into memory."""
        return self._annotations(self._load(image), callbacks)

    def _annotations(self, image: EncodedImage, callbacks: Callbacks) -> Iterator[Annotation]:
        if self.everything is not None:
            yield from self._segment_everything(image, self.everything, callbacks)
        for prompt in self.prompts:
            callbacks.on_step()
            yield from self._segment(image, prompt)

    @torch.inference_mode()
    def encode(self, image: ImageLike) -> EncodedImage:
        """Encode an image, or return its embedding from the cache."""
        return self.bundle.cached_image(image_digest(image), lambda: self._encode(image))

    def _encode(self, image: ImageLike) -> EncodedImage:
        batch = self.processor.stack([self.processor.load(image)])
        embedding: Tensor = self.model.encode_image(**self.processor.inputs(batch))
        return EncodedImage(check_finite(self.bundle, embedding), batch.sizes[0], batch.scaled_sizes[0])

    @property
    def model(self) -> Any:
        """The model prepared for inference."""
        return self.bundle.inference_model().packed

    @torch.inference_mode()
    def decode(self, image: EncodedImage, prompt: SegmentationPrompt) -> PromptedMaskOutput:
        """Decode one prompt to mask logits (1, 1, M, h, w), and their predicted IoU (1, 1, M)."""
        output: PromptedMaskOutput = self.model.decode(image.embedding, self.prompt_inputs(image, prompt))
        return output

    def prompt_inputs(self, image: EncodedImage, prompt: SegmentationPrompt) -> Prompts:
        """Return the model's input for one prompt of an image."""
        prompt = _fit_prompt(prompt, image.size)
        points = [*prompt.points, *prompt.background_points]
        labels = [1] * len(prompt.points) + [0] * len(prompt.background_points)
        corners = torch.tensor(prompt.box).view(1, 1, 2, 2) if prompt.box else None
        multimask = prompt.is_single_click if self.multimask_output is None else self.multimask_output
        return Prompts(
            points=self._scale(torch.tensor(points)[None, None], image) if points else None,
            labels=torch.tensor(labels, device=image.embedding.device)[None, None] if points else None,
            boxes=None if corners is None else self._scale(corners, image).flatten(2),
            multimask_output=multimask,
        )

    def _segment(self, image: EncodedImage, prompt: SegmentationPrompt) -> Iterator[Annotation]:
        """Yield the masks of one prompt, best first, without empty ones; if all are empty, the best."""
        output = self.decode(image, prompt)
        best_empty: Annotation | None = None
        all_empty = True
        for n in self.rank(output, image, prompt):
            found = self._annotation(output.masks[0, 0, n], image, float(output.iou[0, 0, n]))
            if found.box is None:
                best_empty = best_empty or found
            else:
                all_empty = False
                yield found
        if all_empty and best_empty is not None:  # results of several boxes stay aligned
            yield best_empty

    @torch.inference_mode()
    def _annotation(self, mask: Tensor, image: EncodedImage, score: float) -> Annotation:
        """Return an annotation with the mask (h, w) in full size."""
        pixels = (self._full_size(mask[None], image)[0] > 0).cpu().numpy()
        box = mask_to_box(pixels) if pixels.any() else None
        return Annotation(ONE_CLASS, box, pixels, min(max(score, 0.0), 1.0))

    def rank(self, output: PromptedMaskOutput, image: EncodedImage, prompt: SegmentationPrompt) -> list[int]:
        """Return the indices of the masks that `decode` returned for a prompt, best first."""
        rows, columns = self.unpadded(output.masks.shape[-2:], image)
        areas = (output.masks[0, 0, :, :rows, :columns] > 0).flatten(1).sum(1)
        margin = WHOLE_OBJECT_MARGIN if prompt.is_single_click else 0.0
        return rank_masks(output.iou[0, 0].tolist(), areas.tolist(), margin)

    def unpadded(self, grid: Sequence[int], image: EncodedImage) -> Size:
        """Return how many rows and columns of a grid over the padded image have a part of the image."""
        (high, wide), (rows, columns) = image.scaled_size, grid
        return math.ceil(high * rows / self.image_size[0]), math.ceil(wide * columns / self.image_size[1])

    def _segment_everything(
        self, image: EncodedImage, options: MaskGeneration, callbacks: Callbacks
    ) -> Iterator[Annotation]:
        """Yield the masks of a grid of points that are good, stable and not duplicates, best first."""
        masks, scores = self._grid_masks(image, options, callbacks)
        for mask, score in zip(masks, scores.tolist(), strict=True):
            yield self._annotation(mask, image, score)

    @torch.inference_mode()
    def _grid_masks(
        self, image: EncodedImage, options: MaskGeneration, callbacks: Callbacks
    ) -> tuple[Tensor, Tensor]:
        """Return masks (N, h, w) as predicted and their scores (N,), best first."""
        side, (height, width) = options.points_per_side, image.size
        steps = (torch.arange(side) + 0.5) / side
        grid = torch.stack(torch.meshgrid(steps * width, steps * height, indexing="xy"), -1).view(-1, 1, 2)
        good_masks: list[Tensor] = []  # as predicted; in full size, they might not fit into memory
        good_scores: list[Tensor] = []
        boxes: list[Box] = []
        together = max(1, FULL_SIZE_PIXELS // (height * width))
        size = POINTS_PER_BATCH["cpu" if image.embedding.device.type == "cpu" else "cuda"]
        for points in grid.split(size):
            output: PromptedMaskOutput = self.model.decode(image.embedding, self._scale(points[None], image))
            masks, scores = output.masks.flatten(0, 2), output.iou.flatten()
            good = scores > options.pred_iou_thresh
            for part, part_scores in zip(
                masks[good].split(together), scores[good].split(together), strict=True
            ):
                callbacks.on_step()
                logits = self._full_size(part, image)
                stability = stability_score(logits, options.stability_score_offset)
                stable = (stability > options.stability_score_thresh) & (logits > 0).flatten(1).any(1)
                kept = stable.nonzero().flatten().tolist()
                boxes += [mask_to_box((logits[n] > 0).cpu().numpy()) for n in kept]
                good_masks.append(part[stable])
                good_scores.append(part_scores[stable])
        masks, scores = torch.cat(good_masks), torch.cat(good_scores)
        order = suppress_boxes(torch.tensor(boxes).view(-1, 4), scores, options.box_nms_thresh)
        return masks[order], scores[order]

    def _scale(self, points: Tensor, image: EncodedImage) -> Tensor:
        """Scale points (..., 2) of the original image to the resized one."""
        (height, width), (high, wide) = image.size, image.scaled_size
        return (points.float() * torch.tensor((wide / width, high / height))).to(image.embedding.device)

    def _full_size(self, masks: Tensor, image: EncodedImage) -> Tensor:
        """Resize mask logits (M, h, w) to the original image (M, H, W), without the padding."""
        if not len(masks):
            return masks.new_zeros(0, *image.size)
        high, wide = image.scaled_size
        padded = F.interpolate(masks[None].float(), self.image_size, mode="bilinear")[..., :high, :wide]
        return F.interpolate(padded, image.size, mode="bilinear")[0]


def rank_masks(iou: Sequence[float], areas: Sequence[int], margin: float) -> list[int]:
    """Return the indices of masks: the largest within `margin` of the highest predicted IoU, then by IoU.

    After one click, the mask with the highest predicted IoU is often a part of the object, and the mask of
    the whole object is rated almost as high.

    iou: as the model predicts it, which may exceed 1; scores of annotations are clipped.

    >>> rank_masks([0.95, 0.92, 0.6], [100, 900, 5000], margin=0.05)
    [1, 0, 2]
    """
    order = sorted(range(len(iou)), key=lambda n: -iou[n])
    best = max(order, key=lambda n: areas[n] if iou[n] >= iou[order[0]] - margin else -1)
    return [best, *(n for n in order if n != best)]


def stability_score(logits: Tensor, offset: float) -> Tensor:
    """Return the IoU (N,) of the masks (N, H, W) with the thresholds `offset` and -`offset` of the logits."""
    inner, outer = ((logits > limit).flatten(1).sum(1) for limit in (offset, -offset))
    return inner / outer


def suppress_boxes(boxes: Tensor, scores: Tensor, threshold: float) -> list[int]:
    """Non-maximum suppression: return the indices of the kept boxes (N, 4), the highest score first.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 10, 10], [20, 20, 30, 30]])
    >>> suppress_boxes(boxes, torch.tensor([0.5, 0.9, 0.7]), threshold=0.7)
    [1, 2]
    """
    order = scores.argsort(descending=True, stable=True).tolist()
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    alive = torch.ones(len(boxes), dtype=torch.bool)
    indices = []
    for n in order:
        if not alive[n]:
            continue
        indices.append(n)
        overlap = torch.minimum(boxes[n, 2:], boxes[:, 2:]) - torch.maximum(boxes[n, :2], boxes[:, :2])
        shared = overlap.clamp(min=0).prod(1)
        alive &= shared / (area + area[n] - shared) <= threshold
    return indices


def _fit_prompt(prompt: SegmentationPrompt, size: Size) -> SegmentationPrompt:
    """Clip the box to the image; raise if a point or the whole box lies outside of it."""
    height, width = size
    inside = f"inside the image of {width} x {height} pixels"
    for name in ("points", "background_points"):
        for x, y in getattr(prompt, name):
            if not (0 <= x <= width and 0 <= y <= height):
                raise InvalidValueError(name, f"{x:g},{y:g}", f"a point {inside}")
    if prompt.box is None:
        return prompt
    left, top, right, bottom = prompt.box
    clipped = max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))
    if not (clipped[0] < clipped[2] and clipped[1] < clipped[3]):
        corners = ",".join(f"{side:g}" for side in prompt.box)
        raise InvalidValueError("boxes", corners, f"x_min < x_max and y_min < y_max {inside}")
    return replace(prompt, box=clipped)

"""Segment images without prompts: classes of pixels (semantic), objects (instance), or both (panoptic)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.annotations import Annotation, Box
from glassformer.data.image_processing import ImageBatch, Pixels, Size
from glassformer.errors import ConflictError, MissingValueError, UnknownNameError, UnsupportedError
from glassformer.tasks.base import check_at_least, check_finite, check_probability
from glassformer.tasks.classification import label_names
from glassformer.tasks.images import ImageTask, load_image_processor
from glassformer.tasks.mask_postprocessing import (
    MaskPostprocessor,
    MaskSegment,
    SegmentationMode,
    class_map_annotations,
    content_size,
    segment_annotations,
)
from glassformer.tasks.pixel_postprocessing import pixel_classes, pixel_instances
from glassformer.tasks.segmentation import (
    MaskGeneration,
    Point,
    PromptSegmenter,
    check_takes_prompts,
    make_prompts,
)

DEFAULT_THRESHOLD = 0.5
MODES: tuple[SegmentationMode, ...] = ("semantic", "instance", "panoptic")


class ImageSegmenter(ImageTask):
    """Segment images without prompts.

    An image's annotations have masks and boxes in pixels of the original image: one for each class
    ("semantic"), which cover the image; one for each object ("instance"), which may overlap; or one for each
    object and region ("panoptic"), which do not overlap.

    mode: by default what the model was trained for, "panoptic" if that is not known.
    threshold: minimum score of an object or region, from 0 to 1.
    stuff_classes: classes whose segments are merged into one in panoptic mode, such as sky.
    batch_size: largest number of images per batch; large images make smaller batches.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        mode: SegmentationMode | None = None,
        threshold: float = DEFAULT_THRESHOLD,
        stuff_classes: Sequence[str] = (),
        batch_size: int = 16,
    ) -> None:
        head = getattr(bundle.spec, "head", None)
        if not isinstance(head, specs.MasksSpec | specs.PixelsSpec):
            hint = "use a segmentation model such as EoMT or Mask2Former"
            raise UnsupportedError(bundle.display_name, "segmentation without prompts", hint=hint)
        self.mode = mode or default_mode(bundle)
        if self.mode not in MODES:
            raise UnknownNameError("mode", self.mode, MODES)
        if isinstance(head, specs.PixelsSpec) and (self.mode == "semantic") == head.instances:
            trained = "objects" if head.instances else "classes"
            raise UnsupportedError(bundle.display_name, f"{self.mode} segmentation: it predicts {trained}")
        check_probability("threshold", threshold)
        check_at_least("batch_size", batch_size)
        self.bundle, self.threshold, self.batch_size = bundle, threshold, batch_size
        self.labels = label_names(bundle, head.num_labels)
        for name in stuff_classes:
            if name not in self.labels:
                raise UnknownNameError("stuff class", name, self.labels)
        self.fused = {self.labels.index(name) for name in stuff_classes}
        source: specs.InputSpec = bundle.spec.input  # type: ignore[union-attr]  # models with such heads
        self.processor = load_image_processor(bundle, channels=specs.image_channels(source))
        if self.mode != "semantic" and self.processor.do_split_image:  # objects would be cut in pieces
            self.processor = replace(self.processor, do_split_image=False, do_pad=True)

    @torch.inference_mode()
    def forward(self, images: Sequence[tuple[Pixels, Size]]) -> list[list[Annotation]]:
        """Segment resized images, given with the sizes of the original ones."""
        pixels, sizes = zip(*images, strict=True)
        batch = self.processor.collate(pixels, sizes)
        device, dtype = self.bundle.device, next(self.bundle.model.parameters()).dtype
        output = self.bundle.inference_model()(batch.pixels.to(device, dtype))
        check_finite(self.bundle, output.logits)
        if isinstance(self.bundle.spec.head, specs.PixelsSpec):
            if self.mode == "semantic":
                return self._annotations(pixel_classes(output, sizes))
            objects = pixel_instances(output, sizes)
            return self._annotations([[s for s in one if s.score >= self.threshold] for one in objects])
        return self._annotations(self._masks(output, batch))

    def _masks(self, output: Any, batch: ImageBatch) -> list[Any]:
        """Return class maps or segments from the masks of object queries."""
        shape: Size = (batch.pixels.shape[2], batch.pixels.shape[3])
        postprocessor = mask_postprocessor(self.bundle.spec, shape, self.threshold)
        sizes, scaled = batch.sizes, batch.scaled_sizes
        if batch.crops:
            postprocessor = replace(postprocessor, mask_size=shape)
            return postprocessor.semantic_of_crops(output, batch.crops, sizes, scaled)
        mask_size = postprocessor.mask_size or (output.masks.shape[2], output.masks.shape[3])
        content = [content_size(mask_size, size, shape) for size in scaled]
        match self.mode:
            case "semantic":
                return postprocessor.semantic(output, sizes, content)
            case "instance":
                return postprocessor.instance(output, sizes, content)
        return postprocessor.panoptic(output, sizes, content, label_ids_to_fuse=self.fused)

    def _annotations(self, found: Sequence[Tensor] | Sequence[list[MaskSegment]]) -> list[list[Annotation]]:
        return [
            class_map_annotations(one, self.labels)
            if isinstance(one, Tensor)
            else segment_annotations(one, self.labels)
            for one in found
        ]


class SegmentationOptions(TypedDict, total=False):
    """Options of `make_segmenter`."""

    points: Sequence[Point]
    background_points: Sequence[Point]
    boxes: Sequence[Box]
    everything: bool | MaskGeneration
    points_per_side: int | None
    multimask_output: bool | None
    mode: SegmentationMode | None
    threshold: float | None
    stuff_classes: Sequence[str]


def make_segmenter(
    bundle: Bundle,
    *,
    points: Sequence[Point] = (),
    background_points: Sequence[Point] = (),
    boxes: Sequence[Box] = (),
    everything: bool | MaskGeneration = False,
    points_per_side: int | None = None,
    multimask_output: bool | None = None,
    mode: SegmentationMode | None = None,
    threshold: float | None = None,
    stuff_classes: Sequence[str] = (),
) -> PromptSegmenter | ImageSegmenter:
    """Return the segmenter of a model: by prompts (see `PromptSegmenter`), or of whole images.

    points, background_points, boxes: the prompts, see `make_prompts`. everything: True for the default grid
    of points. points_per_side: rows and columns of that grid. The other options are those of the two
    segmenters; options of the segmenter that is not used are errors.
    """
    prompts = make_prompts(points, background_points, boxes)
    grid = MaskGeneration() if everything is True else everything or None
    if points_per_side is not None:
        check_takes_prompts(bundle)
        if grid is None:
            hint = "or leave out the number of points per side"
            raise MissingValueError("everything", "to segment with a grid of points", hint)
        grid = replace(grid, points_per_side=points_per_side)
    prompted = bool(prompts) or grid is not None
    if prompted:
        prompt = "everything" if grid else "boxes" if prompts[0].box else "points"
        options = {"mode": mode, "threshold": threshold, "stuff_classes": stuff_classes or None}
        for name, value in options.items():
            if value is not None:
                raise ConflictError((name, prompt), "the first is for models without prompts")
    if prompted or (isinstance(bundle.spec, specs.PromptedSegmenterSpec) and mode is None):
        return PromptSegmenter(bundle, prompts=prompts, everything=grid, multimask_output=multimask_output)
    return ImageSegmenter(
        bundle,
        mode=mode,
        threshold=DEFAULT_THRESHOLD if threshold is None else threshold,
        stuff_classes=stuff_classes,
    )


def default_mode(bundle: Bundle) -> SegmentationMode:
    """Return what a model was trained for; "panoptic" if that is not known."""
    head, trained = getattr(bundle.spec, "head", None), bundle.job.segmentation
    if isinstance(head, specs.PixelsSpec):
        return "instance" if head.instances else "semantic"
    return next((mode for mode in MODES if mode == trained), "panoptic")


def mask_postprocessor(model: specs.ModelSpec, input_size: Size, threshold: float) -> MaskPostprocessor:
    """Return the postprocessor of the published models with this architecture.

    input_size: of the images. threshold: minimum score of a segment.
    """
    if isinstance(model, specs.EncoderMaskClassifierSpec):
        return MaskPostprocessor(mask_size=input_size, resize="logits", threshold=threshold)
    deformable = isinstance(getattr(model, "input", None), specs.DeformablePixelDecoderSpec)
    return MaskPostprocessor(mask_size=(384, 384) if deformable else None, threshold=threshold)

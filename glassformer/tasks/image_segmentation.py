"""Segment images without prompts: classes of pixels (semantic), objects (instance), or both (panoptic)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.annotations import Annotation
from glassformer.data.image_files import ImageLike
from glassformer.data.image_processing import ImageBatch, Size
from glassformer.errors import UnknownNameError, UnsupportedError
from glassformer.processors.image import ProcessedImage, VisionProcessor
from glassformer.tasks.base import NO_CALLBACKS, Callbacks, check_finite, check_probability
from glassformer.tasks.classification import label_names
from glassformer.tasks.declarations.segment import SegmentationMode
from glassformer.tasks.images import ImageTask
from glassformer.tasks.mask_postprocessing import (
    MaskPostprocessor,
    MaskSegment,
    class_map_annotations,
    content_size,
    segment_annotations,
)
from glassformer.tasks.pixel_postprocessing import pixel_classes, pixel_instances

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
        if head is None or head.yields not in ("masks", "pixels"):
            hint = "use a segmentation model such as EoMT or Mask2Former"
            raise UnsupportedError(bundle.display_name, "segmentation without prompts", hint=hint)
        self.mode = mode or default_mode(bundle)
        if self.mode not in MODES:
            raise UnknownNameError("mode", self.mode, MODES)
        if head.yields == "pixels" and (self.mode == "semantic") == head.instances:
            trained = "objects" if head.instances else "classes"
            raise UnsupportedError(bundle.display_name, f"{self.mode} segmentation: it predicts {trained}")
        check_probability("threshold", threshold)
        self.labels = label_names(bundle, head.num_labels)
        for name in stuff_classes:
            if name not in self.labels:
                raise UnknownNameError("stuff class", name, self.labels)
        self.fused = {self.labels.index(name) for name in stuff_classes}
        processor = VisionProcessor.from_bundle(bundle)
        if self.mode != "semantic" and processor.transform.do_split_image:  # objects would be cut in pieces
            processor.transform = replace(processor.transform, do_split_image=False, do_pad=True)
        super().__init__(bundle, processor, batch_size=batch_size)
        self.threshold = threshold

    def annotate(self, image: ImageLike, callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Annotation]:
        """Yield the annotations of one image."""
        for found in self.run([image], callbacks):
            yield from found

    def forward(self, items: Sequence[ProcessedImage]) -> list[list[Annotation]]:
        batch, sizes = self.processor.stack(items), [item.size for item in items]
        output = self.bundle.inference_model()(**self.processor.inputs(batch))
        check_finite(self.bundle, output.logits)
        if self.bundle.spec.yields == "pixels":
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


def default_mode(bundle: Bundle) -> SegmentationMode:
    """Return what a model was trained for; "panoptic" if that is not known."""
    head, trained = getattr(bundle.spec, "head", None), bundle.job.segmentation
    if head is not None and head.yields == "pixels":
        return "instance" if head.instances else "semantic"
    return next((mode for mode in MODES if mode == trained), "panoptic")


def mask_postprocessor(model: specs.ModelSpec, input_size: Size, threshold: float) -> MaskPostprocessor:
    """Return the postprocessor of the published models with this architecture.

    input_size: of the images. threshold: minimum score of a segment.
    """
    read = model.inputs()[0]
    if isinstance(read, specs.ImagePatchesSpec):
        return MaskPostprocessor(mask_size=input_size, resize="logits", threshold=threshold)
    deformable = isinstance(read, specs.DeformablePixelDecoderSpec)
    return MaskPostprocessor(mask_size=(384, 384) if deformable else None, threshold=threshold)

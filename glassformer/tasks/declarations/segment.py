"""Segment objects and regions in images: those that points and boxes name, or whole images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from glassformer.errors import ConflictError, GlassformerError, MissingValueError
from glassformer.tasks.registry import MARKED_IMAGE, TaskOptions, TaskSpec, setting
from glassformer.tasks.results import SegmentedObject, SegmentedObjects, segmented_object

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.base import Callbacks
    from glassformer.tasks.image_segmentation import ImageSegmenter
    from glassformer.tasks.segmentation import PromptSegmenter

SegmentationMode = Literal["semantic", "instance", "panoptic"]
Point = tuple[float, float]  # x, y in pixels
Box = tuple[float, float, float, float]  # x_min, y_min, x_max, y_max in pixels
MAX_MASK_PIXELS = 1 << 32  # of one response: 64 masks of the largest images


@dataclass(eq=False)
class TooManyMasksError(GlassformerError):
    """The masks of an image are too many for one response."""

    limit: int
    template: ClassVar[str] = "the masks have more than {limit:,} pixels in all, too many for a response"


@dataclass(frozen=True, kw_only=True)
class SegmentOptions(TaskOptions):
    points: Sequence[Point] = setting(
        (), "Point x,y inside the object, in pixels.", flag="--point", max_items=64
    )
    background_points: Sequence[Point] = setting(
        (), "Point x,y outside of the object.", flag="--background-point", max_items=64
    )
    boxes: Sequence[Box] = setting(
        (), "Box x_min,y_min,x_max,y_max around an object.", flag="--box", max_items=64
    )
    everything: bool | Any = setting(
        False, "Segment everything in the image, with a grid of points; in Python also a `MaskGeneration`."
    )
    points_per_side: int | None = setting(
        None, "Rows and columns of the grid for everything (default: 32).", interval="[1, inf)", max=64
    )
    multimask_output: bool | None = setting(
        None, "Return three masks per prompt; by default for a single point, which is ambiguous."
    )
    mode: SegmentationMode | None = setting(
        None, "What to segment, for models without prompts (default: what the model was trained for)."
    )
    threshold: float | None = setting(
        None,
        "Minimum score of an object or region, 0 to 1, for models without prompts (default: 0.5).",
        interval="[0, 1]",
    )
    stuff_classes: Sequence[str] = setting(
        (), "Class whose panoptic segments are merged, e.g. sky.", flag="--stuff-class", max_length=200
    )


def is_promptable(spec: Any) -> bool:
    return bool(spec.yields == "prompted masks")


def make(bundle: Bundle, options: SegmentOptions) -> PromptSegmenter | ImageSegmenter:
    """Create the segmenter of a model; options of the segmenter that is not used are errors."""
    from glassformer.tasks.image_segmentation import DEFAULT_THRESHOLD, ImageSegmenter
    from glassformer.tasks.segmentation import (
        MaskGeneration,
        PromptSegmenter,
        check_takes_prompts,
        make_prompts,
    )

    prompts = make_prompts(options.points, options.background_points, options.boxes)
    grid: Any = MaskGeneration() if options.everything is True else options.everything or None
    if options.points_per_side is not None:
        check_takes_prompts(bundle)
        if grid is None:
            hint = "or leave out the number of points per side"
            raise MissingValueError("everything", "to segment with a grid of points", hint)
        grid = replace(grid, points_per_side=options.points_per_side)
    prompted = bool(prompts) or grid is not None
    if prompted:
        prompt = "everything" if grid else "boxes" if prompts[0].box else "points"
        for name in ("mode", "threshold", "stuff_classes"):
            if getattr(options, name) not in (None, (), []):
                raise ConflictError((name, prompt), "the first is for models without prompts")
    if prompted or (is_promptable(bundle.spec) and options.mode is None):
        return PromptSegmenter(
            bundle, prompts=prompts, everything=grid, multimask_output=options.multimask_output
        )
    return ImageSegmenter(
        bundle,
        mode=options.mode,
        threshold=DEFAULT_THRESHOLD if options.threshold is None else options.threshold,
        stuff_classes=options.stuff_classes,
    )


def prefers(bundle: Bundle, options: SegmentOptions) -> bool:
    """Whether a model takes prompts, if there are some, and else segments whole images."""
    prompted = options.points or options.background_points or options.boxes or options.everything
    return is_promptable(bundle.spec) == bool(prompted)


def parts(
    task: PromptSegmenter | ImageSegmenter, image: Any, callbacks: Callbacks
) -> Iterator[SegmentedObject]:
    """Yield the masks of an image as they are found; all together might not fit into memory."""
    pixels = 0
    for found in task.annotate(image, callbacks):
        pixels += 0 if found.mask is None else found.mask.size
        if pixels > MAX_MASK_PIXELS:
            raise TooManyMasksError(MAX_MASK_PIXELS)
        yield segmented_object(found)


TASK = TaskSpec(
    name="segment",
    summary="Segment objects and regions in images.",
    description="A promptable model (SAM) segments the objects that points and boxes name, or everything; "
    "scores are predicted IoUs. A single point is ambiguous and gives three masks, e.g. of a shirt, a person "
    "and a group; the largest whose predicted IoU is within 0.05 of the highest comes first. An image is "
    "encoded once; a second prompt for it only runs the decoder. Other models (EoMT, Mask2Former, ...) "
    "segment whole images into classes, objects or regions. A box is x_min, y_min, x_max, y_max.",
    lines="file, label, score, box and area in pixels of a mask, separated by tabs",
    inputs=MARKED_IMAGE,
    argument="images",
    options=SegmentOptions,
    result=SegmentedObjects,
    accepts=lambda spec: spec.yields in ("prompted masks", "masks", "pixels"),
    make=make,
    prefers=prefers,
    returns="list[Annotation]",
    parts=parts,
    view=lambda spec: is_promptable(spec),
    examples=("street.jpg",),
    metric="miou",
    job="segment",
)

"""Results that several tasks share: objects in images, and generated text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from glassformer.tasks.registry import TaskResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from glassformer.bundle import Bundle
    from glassformer.data.annotations import Annotation


@dataclass(frozen=True, kw_only=True)
class DetectedObject:
    """An object. box: x_min, y_min, x_max, y_max in pixels of the image."""

    label: str
    score: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class RunLengths:
    """A mask as COCO's run lengths: `size` is height and width, `counts` the compressed runs by column."""

    size: tuple[int, int]
    counts: str


@dataclass(frozen=True, kw_only=True)
class SegmentedObject:
    """A mask. score: its predicted IoU for a prompt, else the score of the segment; null for a class.

    box: x_min, y_min, x_max, y_max in pixels; null for an empty mask.
    """

    label: str
    score: float | None
    box: tuple[float, float, float, float] | None
    mask: RunLengths


@dataclass(frozen=True)
class ObjectsResult(TaskResult):
    """Base class of results that can be drawn on an image. has_masks: whether objects have masks."""

    objects: list[Any]
    has_masks: ClassVar[bool] = False

    def line(self) -> str:
        rows = [(one.label, one.score, one.box) for one in self.objects]
        return "\t".join("\t".join(map(_format, (label, score, *(box or ())))) for label, score, box in rows)


def _format(value: str | float | None) -> str:
    return value if isinstance(value, str) else "" if value is None else f"{value:.4f}"


@dataclass(frozen=True)
class DetectedObjects(ObjectsResult):
    """The objects of an image, the highest score first."""

    objects: list[DetectedObject]

    @classmethod
    def of(cls, output: Sequence[Any]) -> DetectedObjects:
        return cls([DetectedObject(label=one.label, score=one.score, box=one.box) for one in output])


@dataclass(frozen=True)
class SegmentedObjects(ObjectsResult):
    """The masks of the first prompt, best first, then those of the next one; or all segments.

    After a single point, the best mask is the largest whose predicted IoU is within 0.05 of the highest.
    """

    objects: list[SegmentedObject]
    has_masks = True

    @classmethod
    def of(cls, output: Sequence[Annotation]) -> SegmentedObjects:
        return cls(list(map(segmented_object, output)))


def segmented_object(found: Annotation) -> SegmentedObject:
    """Convert an annotation with a mask."""
    from glassformer.data.mask_encoding import encode_rle

    assert found.mask is not None  # segmenters return masks
    runs = encode_rle(found.mask)
    mask = RunLengths(size=tuple(runs["size"]), counts=runs["counts"])
    return SegmentedObject(label=found.label, score=found.score, box=found.box, mask=mask)


@dataclass(frozen=True, kw_only=True)
class GeneratedResult(TaskResult):
    """A generated text. score: its log-probability; warnings: why it may be wrong."""

    text: str
    score: float
    num_tokens: int
    finish_reason: Literal["end", "length", "stop"]
    warnings: list[str]

    column: ClassVar[str] = "generated"

    @classmethod
    def of(cls, output: Any) -> GeneratedResult:
        return cls(
            text=output.text,
            score=output.score,
            num_tokens=output.num_tokens,
            finish_reason=output.finish_reason,
            warnings=list(output.warnings),
        )

    @classmethod
    def column_types(cls, bundle: Bundle, options: Any) -> Mapping[str, type]:
        return {cls.column: str}

    def cells(self) -> dict[str, object]:
        return {self.column: self.text}

    def line(self) -> str:
        return self.text

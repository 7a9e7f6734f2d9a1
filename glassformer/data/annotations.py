"""Objects in images: labels, boxes and masks.

Boxes are (x_min, y_min, x_max, y_max) in pixels of the original image; masks are bool arrays (H, W) of the
same size. H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]  # x_min, y_min, x_max, y_max in pixels
Mask = NDArray[np.bool_]  # (H, W)


@dataclass(frozen=True, eq=False)
class Annotation:
    """An object or a region of an image, as annotated or as predicted.

    label: name of the class. box: in pixels. mask: (H, W), True inside the object.
    score: confidence from 0 to 1; None for ground truth.
    iscrowd: whether the region covers a group of objects, which metrics ignore (COCO's `iscrowd`).
    """

    label: str
    box: Box | None = None
    mask: Mask | None = None
    score: float | None = None
    iscrowd: bool = False


@dataclass(frozen=True, eq=False)
class AnnotatedImage:
    """An image file with its annotations. width, height: of the image after its EXIF rotation."""

    path: Path
    width: int
    height: int
    annotations: tuple[Annotation, ...] = ()
    captions: tuple[str, ...] = ()


def mask_to_box(mask: Mask) -> Box:
    """Return the smallest box around a mask (H, W) that is not empty.

    >>> mask_to_box(np.array([[0, 0, 0], [0, 1, 1]], bool))
    (1.0, 1.0, 3.0, 2.0)
    """
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)

"""Write annotations as JSON, COCO JSON and PNG masks. H height, W width."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.data.annotations import IGNORE_INDEX, AnnotatedImage, Annotation
from glassformer.data.mask_encoding import encode_rle
from glassformer.errors import InvalidValueError, UnknownNameError


def annotation_to_dict(annotation: Annotation) -> dict[str, Any]:
    """Convert to JSON types: label, score, box (x_min, y_min, x_max, y_max) and mask (COCO's compressed RLE).

    >>> annotation_to_dict(Annotation("cat", (1, 2, 3.25, 4), score=0.5))
    {'label': 'cat', 'score': 0.5, 'box': [1, 2, 3.25, 4]}
    """
    values: dict[str, Any] = {"label": annotation.label}
    if annotation.score is not None:
        values["score"] = round(annotation.score, 5)
    if annotation.box is not None:
        values["box"] = [round(side, 2) for side in annotation.box]
    if annotation.mask is not None:
        values["mask"] = encode_rle(annotation.mask)
    return values


def to_coco(
    images: Iterable[AnnotatedImage], classes: Sequence[str], folder: Path | None = None
) -> dict[str, Any]:
    """Convert annotated images to a COCO data set, with masks as compressed RLE and ids from 1.

    classes: names of the categories, in the order of their ids. folder: the file names are relative to it;
    None: names without folders.
    """
    ids = {name: number for number, name in enumerate(classes, 1)}
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number, "name": name} for name, number in ids.items()],
    }
    for number, image in enumerate(images, 1):
        size = {"width": image.width, "height": image.height}
        name = Path(image.path.name if folder is None else os.path.relpath(image.path, folder))
        content["images"].append({"id": number, "file_name": name.as_posix(), **size})
        for result in coco_results([(number, image.annotations)], ids):
            row = {"id": len(content["annotations"]) + 1, **result}
            content["annotations"].append(row)
        for caption in image.captions:
            row = {"id": len(content["annotations"]) + 1, "image_id": number, "caption": caption}
            content["annotations"].append(row)
    return content


def coco_results(
    predictions: Iterable[tuple[int, Iterable[Annotation]]], category_ids: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Convert predictions to the rows of a COCO results file, as pycocotools' `loadRes` reads it.

    Empty masks without a box are left out.
    predictions: pairs of an image id and its annotations. category_ids: id of each label.
    """
    rows = []
    for image_id, things in predictions:
        for thing in things:
            if thing.label not in category_ids:
                raise UnknownNameError("label", thing.label, category_ids)
            if thing.box is None and thing.mask is not None and not thing.mask.any():
                continue
            row: dict[str, Any] = {"image_id": image_id, "category_id": category_ids[thing.label]}
            area = 0.0
            if thing.box is not None:
                x_min, y_min, x_max, y_max = thing.box
                row["bbox"] = [round(side, 2) for side in (x_min, y_min, x_max - x_min, y_max - y_min)]
                area = (x_max - x_min) * (y_max - y_min)
            if thing.mask is not None:
                row["segmentation"] = encode_rle(thing.mask)
                area = float(thing.mask.sum())
            row |= {"area": round(area, 2), "iscrowd": int(thing.iscrowd)}
            if thing.score is not None:
                row["score"] = round(thing.score, 5)
            rows.append(row)
    return rows


def class_map(
    annotations: Sequence[Annotation], classes: Sequence[str], height: int, width: int
) -> NDArray[np.uint8]:
    """Return the class number of each pixel, 255 where there is none: (H, W), for an 8-bit PNG.

    classes: names of the classes 0, 1, ...
    """
    if len(classes) > IGNORE_INDEX:
        raise InvalidValueError("classes", len(classes), f"at most {IGNORE_INDEX} for an 8-bit mask")
    numbers = np.full((height, width), IGNORE_INDEX, np.uint8)
    for thing in sorted(annotations, key=lambda thing: thing.score or 0.0):
        if thing.label not in classes:
            raise UnknownNameError("label", thing.label, classes)
        numbers[_mask(thing)] = classes.index(thing.label)
    return numbers


def _mask(annotation: Annotation) -> NDArray[np.bool_]:
    if annotation.mask is None:
        raise InvalidValueError("mask", None, f"a mask of each object, also of {annotation.label!r}")
    return annotation.mask

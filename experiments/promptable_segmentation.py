"""Measure promptable segmentation: the IoU of a mask after one click and after one box.

    python -m experiments.promptable_segmentation pocket-sam --data DATA

The click is the point of an object that is farthest from its border (Euclidean distance transform). Of the
three masks for a click, the first counts, which is the largest whose predicted IoU is within 0.05 of the
highest. `highest score` is the mask with the highest predicted IoU, `oracle` the best of the three, and
`single` the one mask of the model if it is not asked for three.
Objects are emoji in composed scenes, and those of photographs in coco-mini with an area of at least 1 %.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

import glassformer
from experiments.paths import data_folder
from experiments.scenes import SceneComposer, SceneOptions, read_emoji
from glassformer.data.annotations import Annotation, read_coco
from glassformer.data.image_files import ImageLike

Sample = tuple[ImageLike, tuple[Annotation, ...]]
SCENES = SceneOptions(size=256, max_objects=6)
MIN_AREA = 0.01  # of the image


def center_of(mask: NDArray[np.bool_]) -> tuple[float, float]:
    """Return (x, y) of the pixel that is farthest from the border of a mask; the image's edge is a border."""
    distance = distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1]
    y, x = np.unravel_index(distance.argmax(), mask.shape)
    return float(x), float(y)


def iou(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Return the intersection over union of two masks."""
    return float((one & other).sum() / max(1, (one | other).sum()))


def scenes(data: Path, count: int) -> Iterator[Sample]:
    """Compose scenes of emoji in two styles."""
    composer = SceneComposer(
        read_emoji(data / "emoji-captions", styles=("noto", "fluent-flat")), SCENES, seed=1
    )
    for index in range(count):
        scene = composer.scene(index)
        yield scene.image, scene.annotations


def photographs(data: Path, count: int) -> Iterator[Sample]:
    """Read the photographs of coco-mini."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(data / "coco-mini" / "coco-mini.tar") as archive:
            archive.extractall(folder, filter="data")
        for image in read_coco(Path(folder, "coco-mini", "annotations.json"))[:count]:
            yield image.path, image.annotations


def measure(pipeline: glassformer.Pipeline, samples: Iterator[Sample]) -> dict[str, float]:
    """Return the mean IoU after a click (of four choices of its mask) and after a box."""
    clicks, highest, oracles, singles, boxes = [], [], [], [], []
    for image, objects in samples:
        for thing in objects:
            if thing.mask is None or thing.box is None or thing.iscrowd or thing.mask.mean() < MIN_AREA:
                continue
            points = [center_of(thing.mask)]
            found = pipeline.segment(image, points=points)
            ious = [iou(other.mask, thing.mask) for other in found if other.mask is not None]
            clicks.append(ious[0])
            highest.append(ious[max(range(len(found)), key=lambda n: found[n].score or 0.0)])
            oracles.append(max(ious))
            (single,) = pipeline.segment(image, points=points, multimask_output=False)
            (boxed,) = pipeline.segment(image, boxes=[thing.box])
            for values, other in ((singles, single), (boxes, boxed)):
                values.append(0.0 if other.mask is None else iou(other.mask, thing.mask))
    means = {
        "click": clicks,
        "highest score": highest,
        "oracle": oracles,
        "single": singles,
        "box": boxes,
    }
    shares = {"click above 0.5": float(np.mean(np.array(clicks) > 0.5))}
    return {
        "objects": len(clicks),
        **{name: float(np.mean(values)) for name, values in means.items()},
        **shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a model folder or the name of a shipped model")
    parser.add_argument("--data", type=Path, default=data_folder(), help="the folder of data sets")
    parser.add_argument(
        "--images", type=int, default=500, help="number of scenes, and largest number of photographs"
    )
    options = parser.parse_args()
    pipeline = glassformer.load(options.model)
    for name, samples in (("scenes", scenes), ("photographs", photographs)):
        figures = measure(pipeline, samples(options.data, options.images))
        print(
            json.dumps({"set": name, **{key: round(value, 4) for key, value in figures.items()}}), flush=True
        )


if __name__ == "__main__":
    main()

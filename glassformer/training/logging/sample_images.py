"""The images of validations: PNG files in the folder `samples` of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.training.task import SampleImage
from glassformer.weights.atomic_write import write_file

SAMPLES = "samples"
MIN_SIDE = 64  # of the images of a grid
MAX_BYTES = 8 << 20  # of an image in a report


def tile_images(
    images: Iterable[Any], columns: int, gap: int = 2, min_side: int = MIN_SIDE
) -> NDArray[np.uint8]:
    """Arrange images of one size in rows, with white lines between them: (height, width, C).

    images: PIL images, or pixels (H, W, C). min_side: smaller images are enlarged by a whole factor.

    >>> tile_images(np.zeros((5, 64, 64, 3), np.uint8), columns=3).shape
    (130, 196, 3)
    """
    pixels = np.stack([np.atleast_3d(np.asarray(image, np.uint8)) for image in images])
    scale = max(1, min_side // max(pixels.shape[1:3]))
    pixels = pixels.repeat(scale, 1).repeat(scale, 2)
    count, height, width, channels = pixels.shape
    rows = -(-count // columns)
    cells = np.full((rows * columns, height + gap, width + gap, channels), 255, np.uint8)
    cells[:count, :height, :width] = pixels
    grid = cells.reshape(rows, columns, *cells.shape[1:]).swapaxes(1, 2)
    return grid.reshape(rows * (height + gap), columns * (width + gap), channels)[:-gap, :-gap]


def write_images(root: Path, step: int, images: Sequence[SampleImage]) -> list[dict[str, str]]:
    """Write the images of a validation; return the file and the caption of each for metrics.jsonl."""
    listed = []
    for image in images:
        from PIL import Image

        pixels = image.pixels
        png = BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(png, format="PNG")
        name = f"step-{step:08}-{image.name}.png"
        (root / SAMPLES).mkdir(parents=True, exist_ok=True)
        write_file(root / SAMPLES / name, png.getvalue())
        listed.append({"file": name, "caption": image.caption})
    return listed


def read_images(root: Path, listed: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, bytes]]:
    """Yield the caption and the content of the images of a validation; missing files are skipped."""
    for image in listed:
        path = root / SAMPLES / Path(str(image.get("file"))).name
        if path.is_file() and path.stat().st_size <= MAX_BYTES:
            yield str(image.get("caption", "")), path.read_bytes()

"""Images without labels: their pixels are written once, and read as model inputs.

Letters: N images, B of a batch, H height, W width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glassformer.data.captions import PIXELS, write_pixels
from glassformer.data.examples import Arrays, EqualLengths
from glassformer.data.image_files import ImageLike
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment
from glassformer.data.randomness import hash_draws
from glassformer.data.row_errors import RowErrors
from glassformer.data.store import map_file
from glassformer.errors import EmptyInputError

Rows = NDArray[np.int64]


def prepare_pixels(
    folder: Path, images: Sequence[ImageLike], processor: ImageProcessor, errors: RowErrors
) -> list[int]:
    """Write the pixels of images (N, H, W, 3) to a folder; return the numbers of those that can be read."""
    reasons = write_pixels(folder, images, processor)
    good = [number for number, reason in enumerate(reasons) if not reason]
    counter = errors.start_file(folder.name, unit="image", items="images")
    counter.good += len(good)
    for number, reason in enumerate(reasons, 1):
        if reason:
            counter.add_error(number, reason)
    if not good:
        raise EmptyInputError("list of images that can be read", hint=next(filter(None, reasons), ""))
    return good


class PixelExamples(EqualLengths):
    """Images of one size as model inputs: channels first, normalized.

    rows: numbers of the images to use. augment: random augmentation, for training only. seed: of its numbers.
    """

    def __init__(
        self,
        folder: Path,
        processor: ImageProcessor,
        rows: Rows,
        *,
        augment: Augment | None = None,
        seed: int = 0,
    ) -> None:
        shape = (-1, processor.size["height"], processor.size["width"], 3)
        self.pixels = map_file(folder / PIXELS, np.uint8).reshape(shape)
        self.processor, self.rows, self.augment, self.seed = processor, rows, augment, seed

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Rows, *, epoch: int) -> Arrays:
        """Return images (B, 3, H, W)."""
        numbers = self.rows[rows]
        pixels = np.asarray(self.pixels[numbers])
        if self.augment is not None:
            pixels = self.augment.augment(pixels, numbers, seed=self.seed, epoch=epoch)
        return {"images": self.processor.normalize(pixels)}

    def split(self, fraction: float, *, seed: int) -> tuple[Rows, Rows]:
        """Return the numbers of a training and a validation split; equal images are in the same one."""
        digests = [hashlib.blake2b(self.pixels[row].tobytes(), digest_size=8).digest() for row in self.rows]
        draws = hash_draws(np.frombuffer(b"".join(digests), np.uint64), seed)
        held_out = draws < max(fraction, float(draws.min()) * 1.000001)  # at least one image
        if held_out.all():
            raise EmptyInputError("set of training images", "use more images, or separate validation images")
        return self.rows[~held_out], self.rows[held_out]

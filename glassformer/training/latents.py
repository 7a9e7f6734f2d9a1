"""Latents or codes of the images of a run: encoded once, stored next to the pixels, and memory-mapped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.data.captions import PIXELS, CaptionExamples
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment, ImageExamples, ImageSet
from glassformer.data.randomness import uniform
from glassformer.data.store import Store

LATENTS = "latents.npy"
BATCH_PIXELS = 1 << 20  # that are encoded together


@torch.no_grad()
def write_latents(
    folder: Path,
    shape: tuple[int, int, int],
    encode: Callable[[Tensor], Tensor],
    device: torch.device,
    *,
    flip: bool,
) -> None:
    """Encode the pixels in a folder, images of one shape (H, W, C); with `flip`, also their mirror images."""
    pixels = np.memmap(folder / PIXELS, np.uint8, "r").reshape(-1, *shape)
    normalize = ImageProcessor(image_mean=(0.5,) * shape[2], image_std=(0.5,) * shape[2]).normalize
    rows = max(1, BATCH_PIXELS // (shape[0] * shape[1]))
    stored: Any = None
    for start in range(0, len(pixels), rows):
        images = torch.from_numpy(normalize(pixels[start : start + rows])).to(device)
        for mirrored in range(1 + flip):
            latents = encode(images.flip(-1) if mirrored else images).cpu().numpy()
            if stored is None:
                size = (len(pixels), 1 + flip, *latents.shape[1:])
                stored = np.lib.format.open_memmap(folder / LATENTS, "w+", latents.dtype, size)
            stored[start : start + rows, mirrored] = latents
    if stored is not None:
        stored.flush()


class Latents:
    """Stored latents or codes; the mirror image of each is chosen at random, as the augmentation says."""

    def __init__(self, folder: Path) -> None:
        self.stored: NDArray[Any] = np.load(folder / LATENTS, mmap_mode="r", allow_pickle=False)

    def read(
        self, numbers: NDArray[np.int64], rows: NDArray[np.int64], augment: Augment | None, **draw: int
    ) -> NDArray[Any]:
        """Return the latents (B, L, h, w) or codes (B, N) of images by number.

        rows, draw: of the random numbers
        """
        mirrored = np.zeros(len(numbers), np.int64)
        if augment is not None and self.stored.shape[1] > 1:
            mirrored = (uniform(rows=rows, count=1, **draw)[:, 0] < augment.flip_prob).astype(np.int64)
        return np.asarray(self.stored[numbers, mirrored])


class ClassImages(ImageExamples):
    """Images, or their latents if these are stored, and their classes."""

    def __init__(self, images: ImageSet, **options: Any) -> None:
        half = (0.5,) * images.shape[2]
        super().__init__(images, mean=half, std=half, **options)
        self.latents = Latents(images.folder) if (images.folder / LATENTS).is_file() else None

    def inputs(self, indices: NDArray[Any], epoch: int) -> NDArray[Any]:
        if self.latents is None:
            return super().inputs(indices, epoch)
        return self.latents.read(indices, indices, self.augment, seed=self.seed, epoch=epoch)


class CaptionedImages(CaptionExamples):
    """Images, or their latents if these are stored, and their captions."""

    def __init__(self, store: Store, folder: Path, **options: Any) -> None:
        super().__init__(store, folder, **options)
        self.latents = Latents(folder) if (folder / LATENTS).is_file() else None

    def images(self, numbers: NDArray[Any], rows: NDArray[Any], epoch: int) -> NDArray[Any]:
        if self.latents is None:
            return super().images(numbers, rows, epoch)
        return self.latents.read(numbers, rows, self.augment, seed=self.seed, epoch=epoch)

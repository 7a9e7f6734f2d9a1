"""Latents of the images of a run: encoded once, stored next to the pixels, and memory-mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment
from glassformer.data.randomness import uniform

LATENTS = "latents.npy"
BATCH_PIXELS = 1 << 20  # that are encoded together


@torch.no_grad()
def write_latents(
    folder: Path, shape: tuple[int, int, int], autoencoder: Any, device: torch.device, *, flip: bool
) -> None:
    """Encode the pixels in a folder, images of one shape (H, W, C); with `flip`, also their mirror images."""
    pixels = np.memmap(folder / "pixels.u8", np.uint8, "r").reshape(-1, *shape)
    normalize = ImageProcessor(image_mean=(0.5,) * shape[2], image_std=(0.5,) * shape[2]).normalize
    model, rows = autoencoder.to(device).eval(), max(1, BATCH_PIXELS // (shape[0] * shape[1]))
    stored: Any = None
    for start in range(0, len(pixels), rows):
        images = torch.from_numpy(normalize(pixels[start : start + rows])).to(device)
        for mirrored in range(1 + flip):
            images = images.flip(-1) if mirrored else images
            latents = model.scale_latents(model.encode(images).latents).float().cpu().numpy()
            if stored is None:
                size = (len(pixels), 1 + flip, *latents.shape[1:])
                stored = np.lib.format.open_memmap(folder / LATENTS, "w+", np.float32, size)
            stored[start : start + rows, mirrored] = latents
    if stored is not None:
        stored.flush()


class Latents:
    """Stored latents; the mirror image of each is chosen at random, as the augmentation says."""

    def __init__(self, folder: Path) -> None:
        self.stored: NDArray[np.float32] = np.load(folder / LATENTS, mmap_mode="r", allow_pickle=False)

    def read(
        self, numbers: NDArray[np.int64], rows: NDArray[np.int64], augment: Augment | None, **draw: int
    ) -> NDArray[np.float32]:
        """Return the latents (B, L, h, w) of images by number. rows, draw: of the random numbers."""
        mirrored = np.zeros(len(numbers), np.int64)
        if augment is not None and self.stored.shape[1] > 1:
            mirrored = (uniform(rows=rows, count=1, **draw)[:, 0] < augment.flip_prob).astype(np.int64)
        return np.asarray(self.stored[numbers, mirrored])

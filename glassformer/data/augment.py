"""Images changed a little each time they are seen, and made ready for a model.

What happens to an image follows from seed, epoch and row alone, so a run that is taken up again sees the same
ones. Letters: B images, H height, W width, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from glassformer.data.by_row import uniform
from glassformer.data.images import ImageSet, Rows
from glassformer.errors import GlassformerError

Bytes = NDArray[np.uint8]
_BLOCK = 512
_SIDES = (0.15, 0.4)  # the least and the most of a side that is erased


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What may happen to an image; for training only.

    flip: how likely left and right are swapped.
    shift: the most pixels it moves, each way.
    rotate: the most degrees it turns, each way.
    erase: how likely a rectangle of it is painted over with its mean colour.
    padding: what comes in at the edge: the image mirrored, or black.
    """

    flip: float = 0.0
    shift: int = 0
    rotate: float = 0.0
    erase: float = 0.0
    padding: Literal["reflect", "zero"] = "reflect"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("flip", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                raise GlassformerError(f"{name} is {getattr(self, name)}; it must be from 0 to 1")
        if self.shift < 0 or not 0 <= self.rotate <= 180:
            raise GlassformerError("shift must be at least 0, and rotate from 0 to 180 degrees")
        if self.padding not in ("reflect", "zero"):
            raise GlassformerError(f"padding is '{self.padding}'; it must be reflect or zero")

    def __call__(self, images: Bytes, rows: Rows, *, epoch: int) -> Bytes:
        """(B, H, W, C) and the row of each -> the same shape, changed."""
        drawn = uniform(self.seed, epoch, rows, 9)  # (B, 9)
        shift = np.floor(drawn[:, 0:2] * (2 * self.shift + 1)).astype(np.int64) - self.shift  # (B, 2)
        flip = drawn[:, 2] < self.flip
        if self.rotate:
            images = self._turned(images, shift, flip, (2 * drawn[:, 3] - 1) * self.rotate)
        elif self.shift or self.flip:
            images = self._moved(images, shift, flip)
        return self._erased(images, drawn[:, 4:]) if self.erase else images

    def _moved(self, images: Bytes, shift: NDArray[np.int64], flip: NDArray[np.bool_]) -> Bytes:
        """Whole pixels only: one look-up, every pixel exact."""
        _, height, width, _ = images.shape
        down = np.arange(height) + shift[:, :1]  # (B, H), where each line comes from
        across = np.arange(width) + shift[:, 1:]  # (B, W)
        across = np.where(flip[:, None], width - 1 - across, across)
        return self._taken(images, down[:, :, None], across[:, None, :])

    def _turned(
        self,
        images: Bytes,
        shift: NDArray[np.int64],
        flip: NDArray[np.bool_],
        degrees: NDArray[np.float64],
    ) -> Bytes:
        """About the centre, between pixels by the four around."""
        _, height, width, _ = images.shape
        angle = np.deg2rad(degrees).astype(np.float32)[:, None, None]
        y = np.arange(height, dtype=np.float32)[:, None] - np.float32((height - 1) / 2)
        x = np.arange(width, dtype=np.float32)[None, :] - np.float32((width - 1) / 2)
        moved = shift.astype(np.float32)[:, :, None, None]
        down = np.cos(angle) * y - np.sin(angle) * x + moved[:, 0]  # (B, H, W), from the centre
        across = np.sin(angle) * y + np.cos(angle) * x + moved[:, 1]
        across = np.where(flip[:, None, None], -across, across)
        # as shares of half a side, which is how the sampler measures
        places = np.stack((across * (2 / max(1, width - 1)), down * (2 / max(1, height - 1))), -1)
        mixed = F.grid_sample(
            torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32)),
            torch.from_numpy(places.astype(np.float32)),
            padding_mode="zeros" if self.padding == "zero" else "reflection",
            align_corners=True,
        )
        return mixed.round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()

    def _taken(self, images: Bytes, down: NDArray[np.int64], across: NDArray[np.int64]) -> Bytes:
        """The pixels at these places, also beyond the edge."""
        count, height, width, channels = images.shape
        lines = np.arange(count)[:, None, None] * height + _mirrored(down, height)
        taken = images.reshape(-1, channels).take(lines * width + _mirrored(across, width), 0)
        if self.padding == "zero":
            inside = (down >= 0) & (down < height) & (across >= 0) & (across < width)
            taken = taken * inside[..., None].astype(np.uint8)
        return taken

    def _erased(self, images: Bytes, drawn: NDArray[np.float64]) -> Bytes:
        chosen = np.flatnonzero(drawn[:, 0] < self.erase)
        some, drawn = images[chosen], drawn[chosen]  # (N, H, W, C)
        _, height, width, channels = images.shape
        down, across = _stretch(height, drawn[:, 1], drawn[:, 2]), _stretch(width, drawn[:, 3], drawn[:, 4])
        inside = down[:, :, None] & across[:, None, :]  # (N, H, W)
        flat = some.reshape(len(some), height * width, channels)
        # a product is many times quicker than a mean over the middle axes, and as exact
        total = np.ones(height * width) @ flat.astype(np.float64)  # (N, C)
        colour = np.rint(total / (height * width)).astype(np.uint8)
        images = images.copy()
        images[chosen] = np.where(inside[..., None], colour[:, None, None], some)
        return images


def _stretch(side: int, place: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which pixels of a side lie in a stretch of it: (B, side)."""
    long = (_SIDES[0] + size * (_SIDES[1] - _SIDES[0])) * side
    begin = place * (side - long)
    at = np.arange(side)
    return (at >= begin[:, None]) & (at < (begin + long)[:, None])


def _mirrored(at: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Places beyond the edge as the mirror shows them, the edge itself not repeated."""
    if size == 1:
        return np.zeros_like(at)
    around = at % (2 * size - 2)
    return np.minimum(around, 2 * size - 2 - around)


def channel_statistics(
    images: ImageSet, rows: Rows | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread of each channel over these rows, of pixels from 0 to 1; exact, in a stream.

    A channel that never changes gets a spread of 1, so that it can be divided by.
    """
    rows = np.arange(len(images)) if rows is None else rows
    channels = images.shape[2]
    counts = np.zeros((channels, 256), np.int64)
    for begin in range(0, len(rows), _BLOCK):
        block = images.images(rows[begin : begin + _BLOCK])
        for channel in range(channels):
            counts[channel] += np.bincount(block[..., channel].ravel(), minlength=256)
    levels = np.arange(256) / 255
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    mean = share @ levels
    spread = np.sqrt((share * (levels - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.where(spread > 0, spread, 1.0).tolist())


class ImageExamples:
    """Images as a model takes them: channels first, each brought to mean 0 and spread 1.

    rows: those of the set that are used, all without it.    mean, std: of the training set, by channel.
    augment: for training; without it the images are as they are.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        rows: Rows | None = None,
        augment: Augment | None = None,
    ) -> None:
        if not len(mean) == len(std) == images.shape[2]:
            raise GlassformerError(
                f"the images have {images.shape[2]} channels, but mean has {len(mean)} and std {len(std)}"
            )
        self.images, self.augment = images, augment
        self.rows = np.arange(len(images)) if rows is None else rows
        levels = np.arange(256)[None] / 255
        scaled = (levels - np.array(mean)[:, None]) / np.array(std)[:, None]
        self._levels = scaled.astype(np.float32)  # (C, 256): a look-up is faster than the arithmetic

    def __len__(self) -> int:
        return len(self.rows)

    def lengths(self, rows: Rows) -> NDArray[np.int64]:
        return self.images.lengths(rows)

    def batch(self, rows: Rows, *, epoch: int) -> dict[str, NDArray[np.generic]]:
        """inputs (B, C, H, W): the images as float32; labels (B,)."""
        inside = self.rows[rows]
        pixels = self.images.images(inside)
        if self.augment is not None:
            pixels = self.augment(pixels, inside, epoch=epoch)
        scaled = [levels[pixels[..., n]] for n, levels in enumerate(self._levels)]
        return {"inputs": np.stack(scaled, 1), "labels": self.images.labels(inside)}

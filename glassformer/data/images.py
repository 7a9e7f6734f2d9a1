"""Labeled images on disk, streamed to a folder once and then memory-mapped; and image augmentation.

A folder holds the pixels of all images, (N, H, W, C) bytes, the labels, and a hash of each image. The
augmentation of an image depends only on seed, epoch and row, so a resumed run reads the same images.
Letters: B images, H height, W width, C channels.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from glassformer.data.examples import EqualLengths, augmentation
from glassformer.data.image_files import MAX_PIXELS, ImageSource, Label, Split, find_images
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.randomness import hash_draws, uniform
from glassformer.data.row_errors import RowErrors
from glassformer.data.store import map_file, sync_file
from glassformer.errors import (
    EmptyInputError,
    FileExistsAlreadyError,
    FileProblemError,
    InvalidValueError,
    UnknownNameError,
)
from glassformer.schema import Settings
from glassformer.weights.atomic_write import atomic_folder

FORMAT = 1
_HINT = "prepare the data again"
Rows = NDArray[np.int64]
Bytes = NDArray[np.uint8]
_BLOCK = 512
_ERASED_SIDES = (0.15, 0.4)  # smallest and largest side of the rectangle, as a fraction of the image's


def prepare_images(
    path: str | Path,
    folder: str | Path,
    *,
    errors: RowErrors,
    size: int | tuple[int, int] | None = None,
    fit: Callable[[int, int], tuple[int, int]] = lambda height, width: (height, width),
    channels: int | None = None,
    split: Split = "train",
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """Write the images at `path` to `folder` and open the result.

    size: height and width; by default a common one of the images (at most 224).
    fit: returns the height and width to use, given those by default.
    channels: number of channels; grayscale is repeated, color is never converted to grayscale.
    split: which split to read, if the path has several.
    classes: class names of the training set, so that a validation set gets the same class numbers.
    The folder is written atomically.
    """
    target = Path(folder)
    if target.exists():
        raise FileExistsAlreadyError(target)
    source = find_images(path, split)
    height, width, depth = source.shape()
    height, width = fit(height, width)
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
    if not 0 < height * width <= MAX_PIXELS:
        raise InvalidValueError(
            f"size of the images of {path}", [height, width], f"at most {MAX_PIXELS:,} pixels"
        )
    shape = (height, width, channels if channels is not None and depth == 1 else depth)
    with atomic_folder(target) as part:
        fixed = list(classes) if classes is not None else source.classes()
        distinct_labels, numbers = _write_pixels(part, source, shape, errors, fixed)
        names = fixed or [
            str(label) for label in sorted(distinct_labels, key=lambda name: (isinstance(name, str), name))
        ]
        empty = (
            [] if classes is not None else [name for name in names if name not in map(str, distinct_labels)]
        )
        if empty:
            raise EmptyInputError(f"class '{empty[0]}' of {path}", hint="add images or remove the class")
        if classes is None and len(names) < 2:
            raise InvalidValueError(f"classes of {path}", names, "at least two")
        labels = np.array([names.index(str(label)) for label in distinct_labels], np.int64)[
            np.frombuffer(numbers, np.int64)
        ]
        metadata = {"format": FORMAT, "rows": len(labels), "shape": shape, "classes": names}
        with (part / "labels.i64").open("wb") as file, (part / "images.json").open("wb") as metadata_file:
            file.write(labels.tobytes())
            metadata_file.write(json.dumps(metadata, ensure_ascii=False).encode())
            sync_file(file)
            sync_file(metadata_file)
    return ImageSet(target)


def _write_pixels(
    part: Path, source: ImageSource, shape: tuple[int, int, int], errors: RowErrors, fixed: list[str]
) -> tuple[list[Label], array[int]]:
    """Write pixels and hashes; return the distinct labels, and the index of each image's label among them.

    fixed: the only class names allowed; if empty, any label is.
    """
    label_ids: dict[Label, int] = {}
    numbers = array("q")
    with (part / "pixels.u8").open("wb") as pixels, (part / "hashes.u64").open("wb") as hashes:
        for image, label in source.read(shape, errors):
            if label not in label_ids and fixed and str(label) not in fixed:
                raise UnknownNameError("class", str(label), fixed)
            numbers.append(label_ids.setdefault(label, len(label_ids)))
            data = image.tobytes()
            pixels.write(data)
            hashes.write(hashlib.blake2b(data, digest_size=8).digest())
        sync_file(pixels)
        sync_file(hashes)
    if not label_ids:
        raise EmptyInputError("set of images")
    return list(label_ids), numbers


class ImageSet:
    """The images of a prepared folder, by number.

    classes: the names of the labels 0, 1, ...    shape: (H, W, C) of every image
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            metadata = json.loads((self.folder / "images.json").read_text("utf-8"))
            self.classes: tuple[str, ...] = tuple(metadata["classes"])
            height, width, channels = metadata["shape"]
            self.shape: tuple[int, int, int] = (height, width, channels)
            rows = metadata["rows"]
            if metadata["format"] != FORMAT:
                raise ValueError("unknown format")
        except (OSError, ValueError, KeyError, TypeError):
            raise FileProblemError(folder, "is not a set of images", hint=_HINT) from None
        self._pixels = map_file(self.folder / "pixels.u8", np.uint8, (rows, *self.shape))
        self._labels = map_file(self.folder / "labels.i64", np.int64, (rows,))
        self._hashes = map_file(self.folder / "hashes.u64", np.uint64, (rows,))

    def __len__(self) -> int:
        return len(self._labels)

    def images(self, rows: Rows) -> NDArray[np.uint8]:
        """Return the pixels of these rows: (B, H, W, C)."""
        return np.asarray(self._pixels[rows], dtype=np.uint8)

    def labels(self, rows: Rows) -> NDArray[np.int64]:
        """Return the class numbers of these rows: (B,)."""
        return np.asarray(self._labels[rows], dtype=np.int64)

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Rows, Rows]:
        """Return the row numbers of a training and a validation split; validation gets about `fraction`.

        Identical images are in the same split. A class with at least two different images is in both splits.
        """
        draws = hash_draws(self._hashes, seed)
        which = np.unique(self._hashes, return_inverse=True)[1]
        held_out, labels = draws < fraction, np.asarray(self._labels)
        for label in range(len(self.classes)):
            rows = np.flatnonzero(labels == label)
            if len(rows) and len(np.unique(which[rows])) > 1:
                if not held_out[rows].any():
                    held_out[which == which[rows[draws[rows].argmin()]]] = True
                elif held_out[rows].all():
                    held_out[which == which[rows[draws[rows].argmax()]]] = False
        if held_out.all() or not held_out.any():
            raise EmptyInputError(
                f"training or validation split at a fraction of {fraction:g}",
                hint="use at least two different images per class, or separate validation images",
            )
        return np.flatnonzero(~held_out), np.flatnonzero(held_out)


@dataclass(frozen=True, kw_only=True)
class Augment(Settings):
    """Random augmentation, for training only. Shifted and rotated images are mirrored at their edges."""

    section = "data"

    flip_prob: float = augmentation("random horizontal flip")
    max_shift: int = augmentation("maximum random shift", 0, "[0, inf)", "pixels")
    max_rotation: float = augmentation("maximum random rotation", 0.0, "[0, 180]", "degrees")
    erase_prob: float = augmentation("random erasing of a rectangle, which gets the mean color")

    def augment(self, images: Bytes, rows: Rows, *, seed: int, epoch: int) -> Bytes:
        """Augment images (B, H, W, C) with these row numbers; the shape stays the same."""
        draws, most = uniform(seed, epoch, rows, 9), self.max_shift  # (B, 9)
        shift = np.floor(draws[:, 0:2] * (2 * most + 1)).astype(np.int64) - most  # (B, 2)
        flip = draws[:, 2] < self.flip_prob
        if self.max_rotation:
            images = self._rotate(images, shift, flip, (2 * draws[:, 3] - 1) * self.max_rotation)
        elif most or self.flip_prob:
            images = self._translate(images, shift, flip)
        return self._erase(images, draws[:, 4:]) if self.erase_prob else images

    def _translate(self, images: Bytes, shift: NDArray[np.int64], flip: NDArray[np.bool_]) -> Bytes:
        """Translate and flip by whole pixels, which needs no interpolation."""
        count, height, width, channels = images.shape
        down = _reflect(np.arange(height) + shift[:, :1], height)  # (B, H), the source of each line
        across = np.arange(width) + shift[:, 1:]  # (B, W)
        across = _reflect(np.where(flip[:, None], width - 1 - across, across), width)
        lines = np.arange(count)[:, None] * height + down
        pixels = images.reshape(-1, channels)
        return pixels.take(lines[:, :, None] * width + across[:, None, :], 0)

    def _rotate(
        self,
        images: Bytes,
        shift: NDArray[np.int64],
        flip: NDArray[np.bool_],
        degrees: NDArray[np.float64],
    ) -> Bytes:
        """Rotate about the center, with bilinear interpolation, after shift and flip."""
        _, height, width, _ = images.shape
        angle = np.deg2rad(degrees).astype(np.float32)[:, None, None]
        y = np.arange(height, dtype=np.float32)[:, None] - np.float32((height - 1) / 2)
        x = np.arange(width, dtype=np.float32)[None, :] - np.float32((width - 1) / 2)
        offset = shift.astype(np.float32)[:, :, None, None]
        down = np.cos(angle) * y - np.sin(angle) * x + offset[:, 0]  # (B, H, W), from the center
        across = np.sin(angle) * y + np.cos(angle) * x + offset[:, 1]
        across = np.where(flip[:, None, None], -across, across)
        # relative to half a side, as grid_sample expects
        grid = np.stack((across * (2 / max(1, width - 1)), down * (2 / max(1, height - 1))), -1)
        sampled = F.grid_sample(
            torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32)),
            torch.from_numpy(grid.astype(np.float32)),
            padding_mode="reflection",
            align_corners=True,
        )
        return sampled.round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()

    def _erase(self, images: Bytes, draws: NDArray[np.float64]) -> Bytes:
        chosen = np.flatnonzero(draws[:, 0] < self.erase_prob)
        selected, draws = images[chosen], draws[chosen]  # (N, H, W, C)
        _, height, width, channels = images.shape
        down, across = _in_span(height, draws[:, 1], draws[:, 2]), _in_span(width, draws[:, 3], draws[:, 4])
        inside = down[:, :, None] & across[:, None, :]  # (N, H, W)
        flat = selected.reshape(len(selected), height * width, channels)
        # much faster than a mean over the middle axes, and equally exact
        total = np.ones(height * width) @ flat.astype(np.float64)  # (N, C)
        color = np.rint(total / (height * width)).astype(np.uint8)
        images = images.copy()
        images[chosen] = np.where(inside[..., None], color[:, None, None], selected)
        return images


def _in_span(side: int, offset: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask (B, side) of the pixels in a random interval of an image side."""
    length = (_ERASED_SIDES[0] + size * (_ERASED_SIDES[1] - _ERASED_SIDES[0])) * side
    start = offset * (side - length)
    position = np.arange(side)
    return (position >= start[:, None]) & (position < (start + length)[:, None])


def _reflect(positions: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Reflect positions beyond the edges, without repeating the edge pixel."""
    if size == 1:
        return np.zeros_like(positions)
    period = positions % (2 * size - 2)
    return np.minimum(period, 2 * size - 2 - period)


def channel_statistics(
    images: ImageSet, rows: Rows | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel over `rows` (default: all), for pixels from 0 to 1.

    The standard deviation of a constant channel is reported as 1, so that dividing by it is safe.
    """
    rows = np.arange(len(images)) if rows is None else rows
    channels = images.shape[2]
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(rows), _BLOCK):
        block = images.images(rows[start : start + _BLOCK])
        for channel in range(channels):
            counts[channel] += np.bincount(block[..., channel].ravel(), minlength=256)
    levels = np.arange(256) / 255
    frequency = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    mean = frequency @ levels
    std = np.sqrt((frequency * (levels - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


class ImageExamples(EqualLengths):
    """Images as model inputs: channels first, normalized.

    rows: row numbers of the images to use; by default all.    mean, std: per channel, of the training set.
    augment: random augmentation, for training only. seed: of its random numbers.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        rows: Rows | None = None,
        augment: Augment | None = None,
        seed: int = 0,
    ) -> None:
        self.images, self.augment, self.seed = images, augment, seed
        self.rows = np.arange(len(images)) if rows is None else rows
        self._processor = ImageProcessor(image_mean=mean, image_std=std)

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Rows, *, epoch: int) -> dict[str, NDArray[np.generic]]:
        """Return inputs (B, C, H, W), the images as float32, and labels (B,)."""
        indices = self.rows[rows]
        return {"inputs": self.inputs(indices, epoch), "labels": self.images.labels(indices)}

    def inputs(self, indices: Rows, epoch: int) -> NDArray[np.float32]:
        """Return images by number, augmented and normalized (B, C, H, W)."""
        pixels = self.images.images(indices)
        if self.augment is not None:
            pixels = self.augment.augment(pixels, indices, seed=self.seed, epoch=epoch)
        return self._processor.normalize(pixels)

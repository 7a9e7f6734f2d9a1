"""Labelled images on disk: written once in a stream, then memory-mapped.

A folder holds all pixels concatenated, (N, H, W, C) bytes, the labels, and a hash of each image. Neither
writing nor reading keeps the set in memory.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glassformer.data.image_files import MAX_PIXELS, ImageSource, Label, Split, find_images, resize_image
from glassformer.data.row_errors import RowErrors
from glassformer.data.store import sync_file
from glassformer.errors import (
    EmptyInputError,
    FileExistsAlreadyError,
    FileProblemError,
    InvalidValueError,
    UnknownNameError,
)

FORMAT = 1
Rows = NDArray[np.int64]


def prepare_images(
    path: str | Path,
    folder: str | Path,
    *,
    errors: RowErrors,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    split: Split = "train",
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """Write the images at `path` to `folder` and open the result.

    size: height and width; by default that of the arrays, or a common one for encoded images (at most 224).
    channels: repeats a gray channel if more are wanted. Color is never removed.
    split: which part, if the path has several.
    classes: those of the training set, so that a validation set has the same numbers.
    The folder appears under its name only when it is complete.
    """
    target = Path(folder)
    if target.exists():
        raise FileExistsAlreadyError(target)
    source = find_images(path, split)
    height, width, found = source.shape()
    if height * width > MAX_PIXELS:
        raise FileProblemError(path, f"claims images of {height:,} x {width:,} pixels")
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        if min(height, width) < 1:
            raise InvalidValueError("size", size, "at least 1")
    depth = channels if channels is not None and found == 1 else found
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        fixed = list(classes) if classes is not None else source.classes()
        numbers = _write(part, source, (height, width, depth), errors, fixed)
        names = fixed or _sort_classes(part, numbers)
        if classes is None:
            _check_classes(path, names, {str(label) for label in numbers})
        rows = (part / "labels.i64").stat().st_size // 8
        metadata = {"format": FORMAT, "rows": rows, "shape": [height, width, depth], "classes": names}
        with (part / "images.json").open("w", encoding="utf-8") as file:
            json.dump(metadata, file, ensure_ascii=False)
            sync_file(file)
        part.rename(target)
    except OSError as error:
        raise FileProblemError(target, f"cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return ImageSet(target)


def _check_classes(path: str | Path, names: list[str], found: set[str]) -> None:
    for name in names:
        if name not in found:
            raise EmptyInputError(f"class '{name}' of {path}", hint="add images or remove the class")
    if len(names) < 2:
        raise InvalidValueError(f"classes of {path}", names, "at least two")


def _write(
    part: Path, source: ImageSource, shape: tuple[int, int, int], errors: RowErrors, fixed: list[str]
) -> dict[Label, int]:
    """Write pixels, labels and hashes; returns the number of each label."""
    numbers: dict[Label, int] = {}
    known = {name: n for n, name in enumerate(fixed)}
    with (
        (part / "pixels.u8").open("wb") as pixels,
        (part / "labels.i64").open("wb") as labels,
        (part / "hashes.u64").open("wb") as hashes,
    ):
        for images, named in source.blocks(shape, errors):
            for label in named:
                if label not in numbers:
                    if fixed and str(label) not in known:
                        raise UnknownNameError("class", str(label), fixed)
                    numbers[label] = known[str(label)] if fixed else len(numbers)
            for image in images:
                resized = resize_image(image, shape[:2])
                data = np.ascontiguousarray(np.broadcast_to(resized, shape)).tobytes()
                pixels.write(data)
                hashes.write(hashlib.blake2b(data, digest_size=8).digest())
            labels.write(np.array([numbers[label] for label in named], np.int64).tobytes())
        for stream in (pixels, labels, hashes):
            sync_file(stream)
    if not numbers:
        raise EmptyInputError("set of images")
    return numbers


def _sort_classes(part: Path, numbers: dict[Label, int]) -> list[str]:
    """Number the classes by name (or size of a number) rather than by first occurrence."""
    ordered = sorted(numbers, key=lambda label: (isinstance(label, str), label))
    new = np.empty(len(numbers), np.int64)
    new[[numbers[label] for label in ordered]] = np.arange(len(numbers))
    path = part / "labels.i64"
    labels = np.fromfile(path, np.int64)
    with path.open("wb") as file:
        file.write(new[labels].tobytes())
        sync_file(file)
    return [str(label) for label in ordered]


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
            raise FileProblemError(folder, "is not a set of images", hint="prepare the data again") from None
        self._pixels = self._map("pixels.u8", np.uint8, (rows, *self.shape))
        self._labels = self._map("labels.i64", np.int64, (rows,))
        self._hashes = self._map("hashes.u64", np.uint64, (rows,))

    def _map(self, name: str, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
        path = self.folder / name
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if not path.is_file() or path.stat().st_size != size:
            raise FileProblemError(path, "is missing or truncated", hint="prepare the data again")
        return np.memmap(path, dtype, mode="r", shape=shape) if size else np.empty(shape, dtype)

    def __len__(self) -> int:
        return len(self._labels)

    def lengths(self, rows: Rows) -> NDArray[np.int64]:
        """Every image costs the same: (rows, 1) ones."""
        return np.ones((len(rows), 1), np.int64)

    def images(self, rows: Rows) -> NDArray[np.uint8]:
        """The pixels of these rows: (B, H, W, C)."""
        return np.asarray(self._pixels[rows], dtype=np.uint8)

    def labels(self, rows: Rows) -> NDArray[np.int64]:
        """The classes of these rows, by number: (B,)."""
        return np.asarray(self._labels[rows], dtype=np.int64)

    def batch(self, rows: Rows, *, epoch: int = 0) -> dict[str, NDArray[np.generic]]:
        """Bytes and labels as stored, the same in every epoch."""
        return {"images": self.images(rows), "labels": self.labels(rows)}

    def split(self, share: float, *, seed: int = 0) -> tuple[Rows, Rows]:
        """Rows for training and, about `share` of them, for validation; equal images are on one side."""
        if not 0 < share < 1:
            raise InvalidValueError("share", share, "a number between 0 and 1")
        key = seed.to_bytes(16, "little", signed=True)
        distinct, which = np.unique(self._hashes, return_inverse=True)
        keyed = [hashlib.blake2b(value.tobytes(), digest_size=8, key=key).digest() for value in distinct]
        held_out = np.frombuffer(b"".join(keyed), "<u8")[which] / 2.0**64 < share
        if held_out.all() or not held_out.any():
            raise EmptyInputError(f"split of a share of {share:g}", hint="use another share or more images")
        return np.flatnonzero(~held_out), np.flatnonzero(held_out)

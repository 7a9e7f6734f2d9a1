"""Sets of labelled images on disk: written once in a stream, then memory-mapped.

A folder holds all pixels end to end, (N, H, W, C) bytes, the labels, and a fingerprint of each image. Neither
writing nor reading keeps the set in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from glassformer.data.image_arrays import ImageSource, Label
from glassformer.data.image_sources import Split, find_images
from glassformer.data.pictures import MOST_PIXELS, resized
from glassformer.data.problems import Problems
from glassformer.errors import GlassformerError

FORMAT = 1
Rows = NDArray[np.int64]


def prepare_images(
    path: str | Path,
    folder: str | Path,
    *,
    problems: Problems,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    split: Split = "train",
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """Write the images at `path` to `folder` and open the result.

    size: height and width; without it, that of the arrays, or the usual one of the pictures (at most 224).
    channels: how many are wanted; grey pictures have the same in each. Colour is never taken away.
    split: which part, where the path holds several.
    classes: those of the training set, for a set to be judged by the same numbers.
    The folder appears under its name only when it is whole.
    """
    target = Path(folder)
    if target.exists():
        raise GlassformerError(f"'{folder}' exists already; remove it or give another folder")
    source = find_images(path, split)
    height, width, found = source.shape()
    if height * width > MOST_PIXELS:
        raise GlassformerError(f"{path} claims images of {height:,} x {width:,} pixels, too many to be held")
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        if min(height, width) < 1:
            raise GlassformerError(f"size is {size}; it must be at least 1")
    depth = channels if channels is not None and found == 1 else found
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        fixed = list(classes) if classes is not None else source.classes()
        seen = _write(part, source, (height, width, depth), problems, fixed)
        names = fixed or _in_order(part, seen)
        if classes is None:
            _check(path, names, {str(label) for label in seen})
        rows = (part / "labels.i64").stat().st_size // 8
        about = {"format": FORMAT, "rows": rows, "shape": [height, width, depth], "classes": names}
        with (part / "images.json").open("w", encoding="utf-8") as file:
            json.dump(about, file, ensure_ascii=False)
            _settle(file)
        part.rename(target)
    except OSError as error:
        raise GlassformerError(f"'{folder}' could not be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return ImageSet(target)


def _check(path: str | Path, names: list[str], seen: set[str]) -> None:
    """There is something to tell apart, and something to learn every class from."""
    empty = [name for name in names if name not in seen]
    if empty:
        more = f" (nor in {len(empty) - 1} others)" if len(empty) > 1 else ""
        raise GlassformerError(
            f"{path} has no image that can be read in class '{empty[0]}'{more}; add some or remove the class"
        )
    if len(names) < 2:
        raise GlassformerError(f"{path} has only the class '{names[0]}'; telling images apart takes two")


def _write(
    part: Path, source: ImageSource, shape: tuple[int, int, int], problems: Problems, fixed: list[str]
) -> dict[Label, int]:
    """Write pixels, labels and fingerprints; returns the number each label was given."""
    numbers: dict[Label, int] = {}
    known = {name: n for n, name in enumerate(fixed)}
    with (
        (part / "pixels.u8").open("wb") as pixels,
        (part / "labels.i64").open("wb") as labels,
        (part / "hashes.u64").open("wb") as hashes,
    ):
        for block, named in source.blocks(shape, problems):
            for label in named:
                if label not in numbers:
                    if fixed and str(label) not in known:
                        raise GlassformerError(
                            f"An image is of class '{label}', which is not among {', '.join(fixed[:10])}"
                        )
                    numbers[label] = known[str(label)] if fixed else len(numbers)
            for image in block:
                sized = resized(image, shape[:2])
                data = np.ascontiguousarray(np.broadcast_to(sized, shape)).tobytes()
                pixels.write(data)
                hashes.write(hashlib.blake2b(data, digest_size=8).digest())
            labels.write(np.array([numbers[label] for label in named], np.int64).tobytes())
        for stream in (pixels, labels, hashes):
            _settle(stream)
    return numbers


def _in_order(part: Path, seen: dict[Label, int]) -> list[str]:
    """Number the classes by their names (numbers by size), not by which came first."""
    ordered = sorted(seen, key=lambda label: (isinstance(label, str), label))
    new = np.empty(len(seen), np.int64)
    new[[seen[label] for label in ordered]] = np.arange(len(seen))
    path = part / "labels.i64"
    labels = np.fromfile(path, np.int64)
    with path.open("wb") as file:
        file.write(new[labels].tobytes())
        _settle(file)
    return [str(label) for label in ordered]


def _settle(file: IO[bytes] | IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())


class ImageSet:
    """The images of a prepared folder, by number.

    classes: the names of the labels 0, 1, ...    shape: (H, W, C) of every image
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            about = json.loads((self.folder / "images.json").read_text("utf-8"))
            self.classes: tuple[str, ...] = tuple(about["classes"])
            height, width, channels = about["shape"]
            self.shape: tuple[int, int, int] = (height, width, channels)
            rows, fits = about["rows"], about["format"] == FORMAT
        except (OSError, ValueError, KeyError, TypeError):
            raise GlassformerError(f"'{folder}' is not a set of images; prepare it again") from None
        if not fits:
            raise GlassformerError(f"'{folder}' was written by another version; prepare it again")
        self._pixels = self._map("pixels.u8", np.uint8, (rows, *self.shape))
        self._labels = self._map("labels.i64", np.int64, (rows,))
        self._hashes = self._map("hashes.u64", np.uint64, (rows,))

    def _map(self, name: str, kind: type[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
        path = self.folder / name
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        if not path.is_file() or path.stat().st_size != size:
            raise GlassformerError(f"{path} is missing or cut short; prepare the data again")
        return np.memmap(path, kind, mode="r", shape=shape) if size else np.empty(shape, kind)

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
        """Bytes and labels as they lie on disk, the same in every epoch."""
        return {"images": self.images(rows), "labels": self.labels(rows)}

    def held_out(self, share: float, *, seed: int = 0) -> tuple[Rows, Rows]:
        """Rows to learn from and rows to judge by, about `share` of them; equal images are on one side."""
        if not 0 < share < 1:
            raise GlassformerError(f"the share held out is {share}; it must be between 0 and 1")
        key = seed.to_bytes(16, "little", signed=True)
        distinct, which = np.unique(self._hashes, return_inverse=True)
        keyed = [hashlib.blake2b(value.tobytes(), digest_size=8, key=key).digest() for value in distinct]
        drawn = np.frombuffer(b"".join(keyed), "<u8")[which] / 2.0**64
        held = drawn < share
        if held.all() or not held.any():
            raise GlassformerError(
                f"holding out {share} of {len(self):,} images ({len(distinct):,} different) leaves one side "
                "empty; give another share or more images"
            )
        return np.flatnonzero(~held), np.flatnonzero(held)

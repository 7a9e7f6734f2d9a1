"""Training examples of annotated images: resized pixels with labels, boxes and a map of segments.

B images, C channels, H height, W width, M objects of an image (padded).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from glassformer.data.annotations import AnnotatedImage, Annotation, mask_to_box, warn_once
from glassformer.data.examples import IGNORE_INDEX, Arrays, EqualLengths
from glassformer.errors import FileProblemError

NO_OBJECT = -1  # padding in labels (B, M), and pixels without an object in segments (B, H, W)
CACHE_BYTES = 2 << 30  # resized images kept in memory; the others are read again in each epoch
MAX_THREADS = 16  # that read images; decoding and resizing run outside of Python's global lock
Targets = Literal["boxes", "instances", "classes"]


class _Example(NamedTuple):
    pixels: NDArray[np.uint8]  # (C, H, W)
    labels: NDArray[np.int64]  # (n,)
    boxes: NDArray[np.float32]  # (n, 4)
    segments: NDArray[np.int16] | None  # (H, W)


class AnnotatedExamples(EqualLengths):
    """Annotated images, resized to one size.

    images: with their annotations. classes: names of the labels 0, 1, ...; other labels are left out.
    size: height and width. targets: "boxes"; or "instances", also a map with the number of the object of each
    pixel (the smaller of two that overlap); or "classes", a map of class numbers, IGNORE_INDEX if unlabeled.
    Regions with crowds of objects are no targets. An image that cannot be decoded, e.g. a truncated file, is
    replaced by another one of its batch (if there is none, by a black image without targets); a warning names
    it, and `unreadable` has its row.
    """

    def __init__(
        self,
        images: Sequence[AnnotatedImage],
        classes: Sequence[str],
        *,
        size: tuple[int, int],
        targets: Targets = "boxes",
    ) -> None:
        self.images, self.classes, self.size, self.targets = images, classes, size, targets
        self._numbers = {name: n for n, name in enumerate(classes)}
        self._cache: dict[int, _Example] = {}
        self._cached_bytes = 0
        self.unreadable: set[int] = set()  # rows, as far as they were read

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return images (B, C, H, W), labels (B, M), boxes (B, M, 4) and segments (B, H, W).

        Boxes are center x, center y, width and height in fractions of the image. For the targets "classes",
        there are only images and segments.
        """
        examples = self._examples(rows.tolist())
        arrays: Arrays = {"images": np.stack([example.pixels for example in examples])}
        if self.targets != "boxes":
            arrays["segments"] = np.stack([e.segments for e in examples if e.segments is not None])
        if self.targets != "classes":
            most = max(1, max(len(example.labels) for example in examples))
            labels = np.full((len(rows), most), NO_OBJECT, np.int64)
            boxes = np.zeros((len(rows), most, 4), np.float32)
            for n, example in enumerate(examples):
                labels[n, : len(example.labels)] = example.labels
                boxes[n, : len(example.labels)] = example.boxes
            arrays |= {"labels": labels, "boxes": boxes}
        return arrays

    def _examples(self, rows: Sequence[int]) -> list[_Example]:
        """Return the examples of these rows; those that are not in the cache are read in parallel."""
        missing = [row for row in dict.fromkeys(rows) if row not in self._cache]
        known = {row: self._cache[row] for row in rows if row in self._cache}
        for row, example in zip(missing, self._threads.map(self._read, missing), strict=True):
            known[row] = example
            size = sum(part.nbytes for part in example if part is not None)
            if self._cached_bytes + size <= CACHE_BYTES:
                self._cache[row] = example
                self._cached_bytes += size
        good = [row for row in rows if row not in self.unreadable] or rows
        return [known[good[0] if row in self.unreadable else row] for row in rows]

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "images")

    def _read(self, row: int) -> _Example:
        image, (height, width) = self.images[row], self.size
        notes = [note for note in image.annotations if note.label in self._numbers and not note.iscrowd]
        try:
            pixels = image.load().resize((width, height), Image.Resampling.BILINEAR)
        except FileProblemError as error:
            warn_once(f"{error}; it is left out")
            self.unreadable.add(row)
            pixels, notes = Image.new("RGB", (width, height)), []
        labels = np.array([self._numbers[note.label] for note in notes], np.int64)
        return _Example(
            pixels=np.ascontiguousarray(np.asarray(pixels).transpose(2, 0, 1)),
            labels=labels,
            boxes=fractional_boxes(notes, image.width, image.height),
            segments=None if self.targets == "boxes" else self._segments(image, notes, labels),
        )

    def _segments(
        self, image: AnnotatedImage, notes: Sequence[Annotation], labels: NDArray[np.int64]
    ) -> NDArray[np.int16]:
        """Return the number of the object, or the class, of every pixel (H, W)."""
        by_class = self.targets == "classes"
        segments = np.full((image.height, image.width), IGNORE_INDEX if by_class else NO_OBJECT, np.int32)
        sizes = [0 if note.mask is None else int(note.mask.sum()) for note in notes]
        for n in sorted(range(len(notes)), key=lambda n: -sizes[n]):
            mask = notes[n].mask
            if mask is not None:
                segments[mask] = labels[n] if by_class else n
        resized = Image.fromarray(segments).resize(self.size[::-1], Image.Resampling.NEAREST)
        return np.asarray(resized).astype(np.int16)


def fractional_boxes(notes: Sequence[Annotation], width: int, height: int) -> NDArray[np.float32]:
    """Return center x, center y, width and height of the boxes in fractions of the image (n, 4).

    Boxes are clipped to the image; without a box, that of the mask is taken.

    >>> fractional_boxes([Annotation("cat", (0, 10, 50, 30))], 100, 50).tolist()
    [[0.25, 0.4000000059604645, 0.5, 0.4000000059604645]]
    """
    corners = [
        note.box or (mask_to_box(note.mask) if note.mask is not None and note.mask.any() else (0, 0, 0, 0))
        for note in notes
    ]
    scaled = np.array(corners, np.float64).reshape(-1, 2, 2) / (width, height)
    low, high = scaled.clip(0, 1).transpose(1, 0, 2)
    return np.concatenate(((low + high) / 2, high - low), 1).astype(np.float32)

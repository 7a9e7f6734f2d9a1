"""Annotated images on disk for training detection and segmentation, memory-mapped; and their augmentation.

A prepared folder holds decoded pixels, boxes and run lengths of masks, so that a row is read without opening
image files. The augmentation of an image depends only on seed, epoch and row, so a resumed run reads the same
batches. Letters: B images, M objects of an image (padded), H height, W width, C channels.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from glassformer.data.annotations import AnnotatedImage, Annotation, AnnotationSet
from glassformer.data.image_processing import ImageProcessor, Pixels
from glassformer.data.images import FORMAT, hash_draws
from glassformer.data.mask_encoding import Mask, counts_to_mask, mask_to_counts
from glassformer.data.randomness import uniform
from glassformer.data.row_errors import RowErrors
from glassformer.data.store import map_file, sync_file
from glassformer.errors import (
    EmptyInputError,
    FileExistsAlreadyError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    UnknownNameError,
)

NO_OBJECT = -1  # padding in labels
MIN_VISIBLE = 0.2  # an object of which less is left in a crop is dropped
_FILE = "annotations.json"
_ARRAYS: Mapping[str, Any] = {
    "pixels": np.uint8,  # of all images, (H, W, 3) each
    "sizes": np.int64,  # height, width of each image
    "hashes": np.uint64,  # of each image
    "ends": np.int64,  # number of objects up to each image
    "labels": np.int64,
    "boxes": np.float32,  # of each object, in pixels of the stored image
    "crowds": np.bool_,
    "counts": np.uint32,  # run lengths of masks
    "count_ends": np.int64,  # number of run lengths up to each object
}
Rows = NDArray[np.int64]


def prepare_detection(
    annotations: AnnotationSet,
    folder: str | Path,
    *,
    errors: RowErrors,
    longest_edge: int = 1333,
    classes: Sequence[str] | None = None,
) -> DetectionSet:
    """Write annotated images to a folder and open the result. The folder is written atomically.

    errors: collects images that cannot be used, which are skipped. longest_edge: larger images are made
    smaller.
    classes: class names of the training set, so that a validation set gets the same class numbers.
    """
    target = Path(folder)
    if target.exists():
        raise FileExistsAlreadyError(target)
    names = list(annotations.classes if classes is None else classes)
    if unknown := [name for name in annotations.classes if name not in names]:
        raise UnknownNameError("class", unknown[0], names)
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    counter = errors.start_file(target.name, unit="image")
    totals = {"objects": 0, "counts": 0}
    try:
        part.mkdir(parents=True)
        with ExitStack() as stack:
            files = {name: stack.enter_context((part / f"{name}.bin").open("wb")) for name in _ARRAYS}
            for number in range(len(annotations)):
                try:
                    item = annotations[number]
                    arrays = _encode(item, item.load(), names, longest_edge)
                except GlassformerError as error:
                    counter.add_error(None, str(error), file=annotations.paths[number])
                    continue
                totals["objects"] += len(arrays["labels"])
                arrays["ends"] = np.array([totals["objects"]])
                arrays["count_ends"] += totals["counts"]
                totals["counts"] += len(arrays["counts"])
                for name, dtype in _ARRAYS.items():
                    files[name].write(arrays[name].astype(dtype).tobytes())
                counter.good += 1
            counter.finish()
            metadata = {"format": FORMAT, "rows": counter.good, "classes": names}
            files["metadata"] = stack.enter_context((part / _FILE).open("wb"))
            files["metadata"].write(json.dumps(metadata, ensure_ascii=False).encode())
            for file in files.values():
                sync_file(file)
        part.rename(target)
    except OSError as error:
        raise FileProblemError(target, f"cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return DetectionSet(target)


def _encode(
    item: AnnotatedImage, image: Image.Image, names: Sequence[str], longest_edge: int
) -> dict[str, NDArray[Any]]:
    """Return the arrays of one image, as they are stored."""
    scale = min(1.0, longest_edge / max(image.size))
    width, height = (max(1, round(side * scale)) for side in image.size)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    known = [thing for thing in item.annotations if thing.box is not None]
    factors = np.array([width / image.width, height / image.height] * 2)
    counts = [_mask_counts(thing.mask, (width, height)) for thing in known]
    digest = hashlib.blake2b(pixels.tobytes(), digest_size=8).digest()
    return {
        "pixels": pixels,
        "sizes": np.array([height, width]),
        "hashes": np.frombuffer(digest, np.uint64),
        "labels": np.array([names.index(thing.label) for thing in known], np.int64),
        "boxes": np.array([thing.box for thing in known], np.float64).reshape(-1, 4) * factors,
        "crowds": np.array([thing.iscrowd for thing in known], bool),
        "counts": np.concatenate([np.empty(0, np.int64), *counts]),
        "count_ends": np.cumsum([len(part) for part in counts], dtype=np.int64),
    }


def _mask_counts(mask: Mask | None, size: tuple[int, int]) -> NDArray[np.int64]:
    """Return the run lengths of a mask resized to (width, height); none without a mask."""
    return np.empty(0, np.int64) if mask is None else mask_to_counts(_resize_mask(mask, size, None))


def _resize_mask(mask: Mask, size: tuple[int, int], box: tuple[float, float, float, float] | None) -> Mask:
    """Resize the region `box` of a mask to (width, height), to the nearest pixel."""
    if box is None and mask.shape == size[::-1]:
        return mask
    resized = Image.fromarray(mask.astype(np.uint8)).resize(size, Image.Resampling.NEAREST, box)
    return np.asarray(resized).astype(bool)


class DetectionSet:
    """The annotated images of a prepared folder, by number. classes: the names of the labels 0, 1, ..."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            metadata = json.loads((self.folder / _FILE).read_text("utf-8"))
            self.classes: tuple[str, ...] = tuple(metadata["classes"])
            rows = metadata["rows"]
            if metadata["format"] != FORMAT:
                raise ValueError("unknown format")
        except (OSError, ValueError, KeyError, TypeError):
            hint = "prepare the data again"
            raise FileProblemError(folder, "is not a set of annotated images", hint=hint) from None
        arrays = {name: map_file(self.folder / f"{name}.bin", dtype) for name, dtype in _ARRAYS.items()}
        self._pixels, self._hashes, self._counts = arrays["pixels"], arrays["hashes"], arrays["counts"]
        self.sizes: NDArray[np.int64] = arrays["sizes"].reshape(rows, 2)  # height, width of each image
        self._labels, self._crowds = arrays["labels"], arrays["crowds"]
        self._boxes = arrays["boxes"].reshape(-1, 4)
        self._ends = np.concatenate(([0], arrays["ends"]))
        self._count_ends = np.concatenate(([0], arrays["count_ends"]))
        self._starts = np.concatenate(([0], np.cumsum(self.sizes.prod(1) * 3)))

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def has_masks(self) -> bool:
        """Whether all objects have masks."""
        return len(self._labels) > 0 and bool((np.diff(self._count_ends) > 0).all())

    def label_counts(self) -> NDArray[np.int64]:
        """Return the number of objects of each class."""
        return np.bincount(self._labels, minlength=len(self.classes))

    def lengths(self, rows: Rows) -> NDArray[np.int64]:
        """Return ones (rows, 1): every image has the same cost."""
        return np.ones((len(rows), 1), np.int64)

    def pixels(self, row: int) -> Pixels:
        """Return the pixels of an image: (H, W, 3)."""
        height, width = self.sizes[row]
        return np.asarray(self._pixels[self._starts[row] : self._starts[row + 1]]).reshape(height, width, 3)

    def annotations(self, row: int) -> list[Annotation]:
        """Return the objects of an image with boxes and masks for its stored size."""
        height, width = map(int, self.sizes[row])
        found = []
        for n in range(self._ends[row], self._ends[row + 1]):
            counts = self._counts[self._count_ends[n] : self._count_ends[n + 1]]
            mask = counts_to_mask(np.asarray(counts, np.int64), height, width) if len(counts) else None
            x_min, y_min, x_max, y_max = map(float, self._boxes[n])
            label = self.classes[self._labels[n]]
            found.append(Annotation(label, (x_min, y_min, x_max, y_max), mask, iscrowd=bool(self._crowds[n])))
        return found

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Rows, Rows]:
        """Return the row numbers of a training and a validation split; validation gets about `fraction`.

        Identical images are in the same split.
        """
        if not 0 < fraction < 1:
            raise InvalidValueError("fraction", fraction, "a number between 0 and 1")
        draws = hash_draws(self._hashes, seed)
        held_out = draws < max(fraction, np.min(draws) + 1e-12)  # at least one image
        if held_out.all():
            raise EmptyInputError(
                f"training split at a fraction of {fraction:g}",
                hint="use at least two different images, or separate validation images",
            )
        return np.flatnonzero(~held_out), np.flatnonzero(held_out)


@dataclass(frozen=True, kw_only=True)
class DetectionAugment:
    """Random augmentation of annotated images, for training only.

    flip: the probability of a horizontal flip.
    scale: smallest and largest factor of the size (large-scale jitter). What is larger than without scaling
    is cropped at a random position.
    color: the largest relative change of brightness, contrast and saturation.
    """

    flip: float = 0.5
    scale: tuple[float, float] = (1.0, 1.0)
    color: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("flip", "color"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidValueError(name, getattr(self, name), "from 0 to 1")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise InvalidValueError(
                "scale", list(self.scale), "a positive factor and one that is not smaller"
            )


class DetectionExamples:
    """Annotated images as model inputs with their targets.

    data: the images. processor: how images are resized, normalized and padded.
    rows: row numbers of the images to use; by default all. augment: for training only.
    masks: whether batches have masks.
    """

    def __init__(
        self,
        data: DetectionSet,
        processor: ImageProcessor,
        *,
        rows: Rows | None = None,
        augment: DetectionAugment | None = None,
        masks: bool = False,
    ) -> None:
        if masks and not data.has_masks:
            raise InvalidValueError("masks", True, f"masks of all objects in {data.folder}")
        self.data, self.processor, self.augment, self.masks = data, processor, augment, masks
        self.rows = np.arange(len(data)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def lengths(self, rows: Rows) -> NDArray[np.int64]:
        return self.data.lengths(rows)

    def batch(self, rows: Rows, *, epoch: int) -> dict[str, NDArray[Any]]:
        """Return the inputs and targets of these examples; crowd regions are left out.

        inputs: (B, C, H, W) float32. pixel_mask: (B, H, W) bool, if the model needs it.
        labels: (B, M), NO_OBJECT for padding. boxes: (B, M, 4): center x, center y, width, height in shares
        of the image without padding. masks: (B, M, H, W) bool, if asked for.
        """
        indices = self.rows[rows]
        seed = 0 if self.augment is None else self.augment.seed
        examples = [
            self._example(int(row), draws)
            for row, draws in zip(indices, uniform(seed, epoch, indices, 7), strict=True)
        ]
        batch = self.processor.collate(
            [image for image, *_ in examples], [tuple(self.data.sizes[row]) for row in indices]
        )
        count = max(1, *(len(labels) for _, labels, _, _ in examples))
        labels = np.full((len(rows), count), NO_OBJECT, np.int64)
        boxes = np.zeros((len(rows), count, 4), np.float32)
        arrays: dict[str, NDArray[Any]] = {"inputs": batch.pixels.numpy(), "labels": labels, "boxes": boxes}
        if batch.pixel_mask is not None:
            arrays["pixel_mask"] = batch.pixel_mask.numpy()
        if self.masks:
            arrays["masks"] = np.zeros((len(rows), count, *batch.pixels.shape[2:]), bool)
        for n, (image, numbers, sides, masks) in enumerate(examples):
            labels[n, : len(numbers)], boxes[n, : len(numbers)] = numbers, sides
            if self.masks:
                arrays["masks"][n, : len(numbers), : image.shape[0], : image.shape[1]] = masks
        return arrays

    def _example(
        self, row: int, draws: NDArray[np.float64]
    ) -> tuple[Pixels, NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]:
        """Return an image (H, W, C), labels (M), boxes (M, 4) and masks (M, H, W)."""
        image = Image.fromarray(self.data.pixels(row))
        things = [thing for thing in self.data.annotations(row) if not thing.iscrowd]
        augment = self.augment or DetectionAugment(flip=0.0)
        high, wide = self.processor.scaled_size((image.height, image.width))
        factor = augment.scale[0] + draws[0] * (augment.scale[1] - augment.scale[0])
        scaled = np.array([max(1, round(wide * factor)), max(1, round(high * factor))])  # width, height
        size = np.minimum(scaled, (wide, high))  # of the crop
        offset = np.floor(draws[1:3] * (scaled - size + 1))  # of the crop in the scaled image
        stretch = np.array(image.size) / scaled  # from scaled to original pixels
        region = tuple(np.concatenate((offset, offset + size)) * np.tile(stretch, 2))
        fitted = image.resize(tuple(size.tolist()), Image.Resampling(self.processor.resample), region)
        channels = len(self.processor.image_mean)
        fitted = _jitter(fitted, augment.color, draws[3:6]).convert("L" if channels == 1 else "RGB")
        pixels = np.asarray(fitted).reshape(fitted.height, fitted.width, channels)
        corners = np.array([thing.box for thing in things], np.float64).reshape(-1, 2, 2)
        moved = corners / stretch - offset  # (M, 2, 2) in pixels of the crop
        clipped = np.clip(moved, 0, size)
        area, left = (np.diff(sides, axis=1)[:, 0].prod(-1) for sides in (moved, clipped))
        kept = np.flatnonzero(left > MIN_VISIBLE * area)
        masks = np.zeros((len(kept), *pixels.shape[:2]), bool)
        if self.masks:
            for n, index in enumerate(kept):
                mask = things[index].mask
                assert mask is not None
                masks[n] = _resize_mask(mask, fitted.size, region)
            visible = masks.any((1, 2))
            kept, masks = kept[visible], masks[visible]
        canvas = np.array((wide, high)) if "height" in self.processor.size else size
        if (canvas != size).any():  # the model needs images of one size
            color = np.rint(np.array(self.processor.image_mean) * 255).astype(np.uint8)
            pixels, small = np.tile(color, (high, wide, 1)), pixels
            pixels[: small.shape[0], : small.shape[1]] = small
            masks = np.pad(masks, ((0, 0), (0, high - small.shape[0]), (0, wide - small.shape[1])))
        first, last = clipped[kept, 0] / canvas, clipped[kept, 1] / canvas
        if draws[6] < augment.flip:
            pixels, masks = pixels[:, ::-1], masks[..., ::-1]
            first[:, 0], last[:, 0] = 1 - last[:, 0], 1 - first[:, 0]
        boxes = np.concatenate(((first + last) / 2, last - first), 1).astype(np.float32)
        labels = np.array([self.data.classes.index(things[n].label) for n in kept], np.int64)
        return pixels, labels, boxes, masks


def _jitter(image: Image.Image, strength: float, draws: NDArray[np.float64]) -> Image.Image:
    """Change brightness, contrast and saturation by random factors."""
    if not strength:
        return image
    for enhance, draw in zip(
        (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), draws, strict=True
    ):
        image = enhance(image).enhance(1 + (2 * float(draw) - 1) * strength)
    return image

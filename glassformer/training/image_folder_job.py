"""The base of jobs that train on a folder of images per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from glassformer.data.image_files import list_files, list_names, single_path
from glassformer.data.images import ImageSet, prepare_images
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Stamp, fingerprint_files
from glassformer.errors import ConflictError
from glassformer.messages import plural, quantity
from glassformer.training import sections
from glassformer.training.data_cache import DataCache
from glassformer.training.job import Job
from glassformer.training.labels import classes_of
from glassformer.training.sections import DataSection, Paths


@dataclass(frozen=True, kw_only=True)
class ImageFolderData(DataSection):
    """Images and their classes."""

    train: Paths = sections.train_files(
        "a folder with a subfolder per class, or Parquet", unit="folder or file"
    )
    valid: Paths | float = sections.valid_split(0.1)
    image_size: tuple[int, ...] | None = sections.image_sides("null keeps the most common size")


ImageFolderSection = TypeVar("ImageFolderSection", bound=ImageFolderData)


class ImageFolderJob(Job[ImageFolderSection]):
    """Train on images with classes; the pixels are stored once in the data cache.

    train_rows, valid_rows: row numbers of the splits; None means all. base_classes: classes of the model to
    evaluate.
    """

    classes: Sequence[str] = ()
    train_set: ImageSet
    valid_set: ImageSet
    train_rows: NDArray[np.int64] | None = None
    valid_rows: NDArray[np.int64] | None = None
    base_classes: Sequence[str] | None = None

    @property
    def channels(self) -> int | None:
        """Number of channels that the base model reads; None: that of the images."""
        return None

    @property
    def cache_key(self) -> tuple[object, ...]:
        """Further settings that the prepared data depends on."""
        return ()

    def size(self) -> tuple[int, int] | None:
        """Return height and width of the recipe, else of the base model."""
        size = self.data.image_size
        return None if size is None else (size[0], size[-1])

    def fit(self, height: int, width: int) -> tuple[int, int]:
        """Return the image size to use, given the default size."""
        return height, width

    def finish_split(self, folder: Path, shape: tuple[int, int, int]) -> None:
        """Add to the prepared images of a split. shape: (H, W, C)."""
        return  # most jobs read the pixels

    def adopt_base_settings(self) -> None:
        self.base_classes = classes_of(self.base)

    def prepare_data(self) -> None:
        data = self.data
        train = single_path(data.train)
        valid = None if isinstance(data.valid, float) else single_path(data.valid)
        paths = [path for path in (train, valid) if path is not None]

        def fingerprints(stamp: Stamp) -> tuple[object, ...]:
            files = [fingerprint_files(list_files(path), stamp=stamp) for path in paths]
            return files, self.size(), self.recipe.model.folder, *self.cache_key

        names = fingerprint_files([], *map(list_names, paths))
        cache = DataCache(self.folder / "data", fingerprints, extra={"names": names})
        notes = cache.load(self.log)
        if notes is None:
            cache.start()
            problems = RowErrors()
            images = prepare_images(
                train,
                cache.folder / "train",
                errors=problems,
                size=self.size(),
                fit=self.fit,
                channels=self.channels,
                classes=self.base_classes,
                split="test" if self.base_classes else "train",
            )
            if valid is not None and self.base_classes is None:
                valid_images = prepare_images(
                    valid,
                    cache.folder / "valid",
                    errors=problems,
                    size=images.shape[:2],
                    channels=images.shape[2],
                    split="test",
                    classes=images.classes,
                )
                if valid_images.shape != images.shape:
                    raise ConflictError(
                        ("data.train", "data.valid"),
                        f"the images have {images.shape[2]} and {valid_images.shape[2]} channels",
                    )
            for split in sorted(cache.folder.iterdir()):
                self.finish_split(split, images.shape)
            notes = cache.commit(bad=problems.summary())
        self.train_set = self.valid_set = ImageSet(cache.folder / "train")
        if isinstance(data.valid, float):
            self.train_rows, self.valid_rows = self.train_set.split(data.valid, seed=self.recipe.seed)
        elif not self.base_classes:
            self.valid_set = ImageSet(cache.folder / "valid")
        self.classes = self.train_set.classes
        self._log_counts(notes["bad"])

    def _log_counts(self, skipped: str) -> None:
        height, width, channels = self.train_set.shape
        self.facts = {
            "image size": f"{height} x {width}, {channels} {plural('channel', channels)}",
            "classes": list(self.classes),
        }
        what = f" of {height} x {width} in {quantity(len(self.classes), 'class')}"
        rows = ((self.train_set, self.train_rows), (self.valid_set, self.valid_rows))
        train, valid = (len(images if chosen is None else chosen) for images, chosen in rows)
        self.log_counts("image", train, valid, what, skipped)

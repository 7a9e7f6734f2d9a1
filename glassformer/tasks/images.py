"""Decode, resize and normalize images according to the model's `preprocessor_config.json`.

B images, H x W pixels, C channels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.annotations import Annotation
from glassformer.data.image_files import ImageLike, load_image
from glassformer.data.image_processing import ImageProcessor, Pixels, Size
from glassformer.errors import (
    FileMissingError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
    ShapeError,
    UnsupportedError,
)
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.messages import plural
from glassformer.tasks.base import NO_CALLBACKS, Callbacks, Task, batches, chunks, input_kind

IMAGE_ERRORS = (FileMissingError, FileProblemError, InvalidValueError)  # that concern a single image
BATCH_PIXELS = {"cpu": 1 << 21, "cuda": 1 << 23}  # of one batch, including padding

# How an image differs from the training data: it is blank (one shade), in color for a grayscale model, much
# larger than the model's input size, or much lighter or darker.
ImageWarning = Literal["blank", "color", "large", "light", "dark"]
BLANK_RANGE = 8  # of 255: maximum range between the lightest and darkest pixel of a blank image
COLOR_SHARE, COLOR_RANGE = 0.05, 48  # of pixels in an image with color; between the channels of such a pixel
LARGE_FACTOR = 16  # times as high and wide as the model's input: details are lost
BRIGHTNESS_STDS = 1.5  # standard deviations from the mean of the training pixels


@dataclass(frozen=True, kw_only=True)
class ProcessedImage:
    """A decoded and resized image. pixels (H, W, C): before normalization."""

    pixels: Pixels
    warnings: tuple[ImageWarning, ...]


def reads_images(bundle: Bundle) -> bool:
    """Whether a model reads images."""
    return isinstance(getattr(bundle.spec, "input", None), specs.ImagePatchesSpec)


def load_image_processor(
    bundle: Bundle, *, channels: int = 3, image_size: Size = (224, 224)
) -> ImageProcessor:
    """Return the image processor of a model.

    channels: of the model's input. image_size: for a file that has no size.
    """
    config: dict[str, Any] | None = bundle.files.get(IMAGE_PROCESSOR_FILE)
    if config is None:
        raise MissingValueError(
            IMAGE_PROCESSOR_FILE, "to normalize images", hint="put it into the model's folder"
        )
    return ImageProcessor.from_dict(config, channels=channels, image_size=image_size)


class ImageTask(Task[ImageLike, list[Annotation]]):
    """A task that finds objects in images: paths, file contents (bytes), PIL images or arrays of any size.

    The result is one list of annotations per image.

    batch_size: largest number of images per batch; large images make smaller batches.
    """

    processor: ImageProcessor
    batch_size: int

    @abstractmethod
    def forward(self, images: Sequence[tuple[Pixels, Size]]) -> list[list[Annotation]]:
        """Run the model on a batch of resized images, given with the sizes of the original ones."""

    def batch_key(self, size: Size) -> object:
        """Return what the resized images of a batch have in common: by default their size."""
        return size

    def run(
        self, inputs: Iterable[ImageLike], callbacks: Callbacks = NO_CALLBACKS
    ) -> Iterator[list[Annotation]]:
        first = 1
        for chunk in chunks(inputs, self.batch_size):
            fitted: dict[int, tuple[Pixels, Size]] = {}
            for number, source in enumerate(chunk):
                try:
                    image = load_image(source)
                except IMAGE_ERRORS as error:
                    callbacks.reject("image", first + number, error)
                    continue
                fitted[number] = self.processor.fit(image), (image.height, image.width)
            callbacks.on_done(len(chunk) - len(fitted))
            results: dict[int, list[Annotation]] = {}
            for numbers in self._batches({number: pixels.shape for number, (pixels, _) in fitted.items()}):
                found = self.forward([fitted[number] for number in numbers])
                results |= zip(numbers, found, strict=True)
                callbacks.on_done(len(numbers))
            yield from (results.get(number, []) for number in range(len(chunk)))
            first += len(chunk)

    def _batches(self, shapes: dict[int, tuple[int, ...]]) -> Iterator[list[int]]:
        """Group images by `batch_key`, and split the groups by their number of pixels."""
        groups: dict[object, list[int]] = defaultdict(list)
        for number, (height, width, _) in shapes.items():
            groups[self.batch_key((height, width))].append(number)
        budget = BATCH_PIXELS["cpu" if self.bundle.device.type == "cpu" else "cuda"]
        for numbers in groups.values():
            sizes = [shapes[number][0] * shapes[number][1] for number in numbers]
            for rows in batches(sizes, budget):
                yield [numbers[row] for row in rows]


class ImageCollator:
    """Decode and resize images, and stack them to batches for a model."""

    def __init__(self, bundle: Bundle) -> None:
        read = getattr(bundle.spec, "input", None)
        if not isinstance(read, specs.ImagePatchesSpec):
            raise UnsupportedError(
                bundle.display_name, "image input", hint=f"it reads {input_kind(bundle.spec)}"
            )
        self.bundle, self.read = bundle, read
        self.processor = load_image_processor(bundle, channels=read.channels, image_size=read.image_size)
        self.image_size = (read.interpolate and self.processor.fixed_size) or read.image_size
        rows, columns = (i // p for i, p in zip(self.image_size, read.patch_size, strict=True))
        self.num_tokens = rows * columns + read.prefix + read.registers + read.suffix  # of one image

    def collate(self, images: Sequence[ProcessedImage]) -> Tensor:
        """Stack images to one normalized batch (B, C, H, W), on the model's device and in its dtype."""
        pixels = np.stack([image.pixels for image in images])
        batch = torch.from_numpy(self.processor.normalize(pixels))
        return batch.to(self.bundle.device, next(self.bundle.model.parameters()).dtype)

    def process(self, image: ImageLike) -> ProcessedImage:
        """Decode and resize one image."""
        color = load_image(image)
        fitted = self.processor.fit(color)
        if fitted.shape[:2] != self.image_size:
            raise ShapeError(
                "the image", fitted.shape, f"{self.image_size}", hint=f"fix {IMAGE_PROCESSOR_FILE}"
            )
        return ProcessedImage(pixels=fitted, warnings=self._warnings(np.asarray(color), fitted))

    def _warnings(self, color: Pixels, fitted: Pixels) -> tuple[ImageWarning, ...]:
        """Return how an image differs from the training data. color (H, W, 3): the original image."""
        read, job = self.read, self.bundle.job
        flat = fitted.reshape(-1, read.channels)
        if (np.ptp(flat, 0) < BLANK_RANGE).all():
            return ("blank",)
        warnings: list[ImageWarning] = []
        if read.channels == 1:
            spread = color.max(-1).astype(np.int16) - color.min(-1)
            if (spread > COLOR_RANGE).mean() > COLOR_SHARE:
                warnings.append("color")
        if all(
            side > LARGE_FACTOR * most for side, most in zip(color.shape[:2], self.image_size, strict=True)
        ):
            warnings.append("large")
        if (
            job.mean is not None and job.std is not None
        ):  # the values of a published folder may come from other data
            distance = float(((flat.mean(0) / 255 - np.asarray(job.mean)) / np.asarray(job.std)).mean())
            if abs(distance) > BRIGHTNESS_STDS:
                warnings.append("light" if distance > 0 else "dark")
        return tuple(warnings)


def image_warning_message(bundle: Bundle, warning: ImageWarning, images: int) -> str:
    """Return the message of a warning that concerns `images` images."""
    subject, name = f"{images:,} {plural('image', images)}", bundle.display_name
    brightness = f"much {warning}er than the training data of {name}; invert the brightness if needed"
    problems = {
        "blank": "of one shade, without anything to recognize; the label is a guess",
        "color": f"in color, but {name} was trained on grayscale images",
        "large": f"more than {LARGE_FACTOR} times as large as {name} reads; crop to the object",
    }
    return f"{subject} {problems.get(warning, brightness)}"

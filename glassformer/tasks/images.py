"""Decode, resize and normalize images according to the model's `preprocessor_config.json`.

B images, H x W pixels, C channels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.image_files import BadImageError, decode_image, read_image_shape
from glassformer.errors import (
    FileMissingError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    MissingValueError,
    ShapeError,
    UnsupportedError,
)
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.tasks.base import input_kind

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

Image: TypeAlias = "str | PathLike[str] | bytes | PillowImage"  # a file's path or contents, or decoded pixels
Pixels = NDArray[np.uint8]

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


def is_pillow_image(value: object) -> bool:
    """Whether a value is a PIL image; does not import PIL."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def reads_images(bundle: Bundle) -> bool:
    """Whether a model reads images."""
    return isinstance(getattr(bundle.spec, "input", None), specs.ImagePatchesSpec)


class ImageProcessor:
    """Convert images to the input of a model."""

    def __init__(self, bundle: Bundle) -> None:
        read = getattr(bundle.spec, "input", None)
        if not isinstance(read, specs.ImagePatchesSpec):
            raise UnsupportedError(
                bundle.display_name, "image input", hint=f"it reads {input_kind(bundle.spec)}"
            )
        config: dict[str, Any] | None = bundle.files.get(IMAGE_PROCESSOR_FILE)
        if config is None:
            raise MissingValueError(
                IMAGE_PROCESSOR_FILE, "to normalize images", hint="put it into the model's folder"
            )
        self.bundle, self.read = bundle, read
        self.config = {name: value for name, value in config.items() if value is not None}
        self.num_tokens = read.num_patches + read.prefix  # of one image
        normalize = self.config.get("do_normalize") is not False
        self.mean = self._per_channel("image_mean", 0.5 if normalize else 0.0, normalize)
        self.std = self._per_channel("image_std", 0.5 if normalize else 1.0, normalize)
        rescale = self.config.get("do_rescale") is not False
        self.factor = np.float32(self.config.get("rescale_factor", 1 / 255) if rescale else 1)

    def _per_channel(self, name: str, default: float, configured: bool) -> NDArray[np.float32]:
        values = np.asarray(self.config.get(name, default) if configured else default, np.float32).reshape(-1)
        if values.size not in (1, self.read.channels):
            expected = f"{self.read.channels} numbers"
            raise InvalidValueError(f"{IMAGE_PROCESSOR_FILE}: {name}", values.tolist(), expected)
        return np.broadcast_to(values, (self.read.channels,))

    def collate(self, images: Sequence[ProcessedImage]) -> Tensor:
        """Stack images to one normalized batch (B, C, H, W)."""
        return self.normalize(np.stack([image.pixels for image in images]))

    def normalize(self, pixels: Pixels) -> Tensor:
        """Normalize pixels (B, H, W, C) -> (B, C, H, W), on the model's device and in its dtype."""
        scaled = (pixels.astype(np.float32) * self.factor - self.mean) / self.std
        batch = torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))
        return batch.to(self.bundle.device, next(self.bundle.model.parameters()).dtype)

    def process(self, image: Image) -> ProcessedImage:
        """Decode and resize one image."""
        if not (isinstance(image, str | PathLike | bytes) or is_pillow_image(image)):
            raise InvalidValueError("image", type(image).__name__, "a path, bytes or a PIL image")
        source = Path(image) if isinstance(image, str | PathLike) else image
        name = str(source)[:200] if isinstance(source, Path) else "the image"
        try:
            if isinstance(source, Path) and not source.is_file():
                raise FileMissingError(name, kind="image", hint="this model takes image files")
            height, width, _ = read_image_shape(source)
            color = decode_image(source, (height, width, 3))
            pixels = color
            if self.read.channels != 3:
                pixels = decode_image(source, (height, width, self.read.channels))
        except (BadImageError, OSError, ValueError) as error:
            if isinstance(error, GlassformerError):
                raise
            raise FileProblemError(name, f"cannot be read ({error})") from None
        fitted = self._crop(self._resize(pixels))
        if fitted.shape[:2] != self.read.image_size:
            raise ShapeError(
                name, fitted.shape, f"{self.read.image_size}", hint=f"fix {IMAGE_PROCESSOR_FILE}"
            )
        return ProcessedImage(pixels=fitted, warnings=self._warnings(color, fitted))

    def _resize(self, image: Pixels) -> Pixels:
        """Resize to the configured height and width, or shorter side."""
        if self.config.get("do_resize") is False:
            return image
        height, width = image.shape[:2]
        size = self.config.get("size", self.read.image_size)
        match size:
            case {"shortest_edge": int(side)}:
                long = int(side * max(height, width) / min(height, width))
                target = (side, long) if height <= width else (long, side)
            case _:
                target = _height_and_width("size", size)
        if image.shape[:2] == target:
            return image
        from PIL import Image as pillow

        try:
            resample = pillow.Resampling(self.config.get("resample", 2))
        except ValueError:
            known = f"a filter of Pillow, 0 to {len(pillow.Resampling) - 1}"
            name = f"{IMAGE_PROCESSOR_FILE}: resample"
            raise InvalidValueError(name, self.config["resample"], known) from None
        flat = pillow.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        resized = flat.resize((target[1], target[0]), resample)
        return np.asarray(resized).reshape(*target, image.shape[2])

    def _crop(self, image: Pixels) -> Pixels:
        """Crop the center, if configured."""
        if not self.config.get("do_center_crop"):
            return image
        high, wide = _height_and_width("crop_size", self.config.get("crop_size", self.read.image_size))
        top, left = (image.shape[0] - high) // 2, (image.shape[1] - wide) // 2
        if min(top, left) < 0:
            raise InvalidValueError(
                f"{IMAGE_PROCESSOR_FILE}: crop_size", (high, wide), f"at most {image.shape[:2]}"
            )
        return image[top : top + high, left : left + wide]

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
            side > LARGE_FACTOR * most for side, most in zip(color.shape[:2], read.image_size, strict=True)
        ):
            warnings.append("large")
        if (
            job.mean is not None and job.std is not None
        ):  # the values of a published folder may come from other data
            distance = float(((flat.mean(0) / 255 - np.asarray(job.mean)) / np.asarray(job.std)).mean())
            if abs(distance) > BRIGHTNESS_STDS:
                warnings.append("light" if distance > 0 else "dark")
        return tuple(warnings)


def _height_and_width(name: str, size: Any) -> tuple[int, int]:
    match size:
        case {"height": int(high), "width": int(wide)} | (int(high), int(wide)):
            return high, wide
        case int(side):
            return side, side
    raise InvalidValueError(f"{IMAGE_PROCESSOR_FILE}: {name}", size, "a height and a width")


def image_warning_message(bundle: Bundle, warning: ImageWarning, images: int) -> str:
    """Return the message of a warning that concerns `images` images."""
    subject, name = f"{images:,} image{'s' if images > 1 else ''}", bundle.display_name
    brightness = f"much {warning}er than the training data of {name}; invert the brightness if needed"
    problems = {
        "blank": "of one shade, without anything to recognize; the label is a guess",
        "color": f"in color, but {name} was trained on grayscale images",
        "large": f"more than {LARGE_FACTOR} times as large as {name} reads; crop to the object",
    }
    return f"{subject} {problems.get(warning, brightness)}"

"""Decode, resize and normalize images according to the model's `preprocessor_config.json`.

B images, H x W pixels, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.inputs import ImageInputs
from glassformer.data.image_files import ImageLike, image_digest, is_single_image, load_image
from glassformer.data.image_processing import ImageBatch, ImageProcessor, Pixels, Size
from glassformer.errors import (
    FileMissingError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
    ShapeError,
    UnsupportedError,
)
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.inference.prepare import evaluation_mode
from glassformer.processors.base import ForwardInputs, ImageWarning, Processor, input_kind

BLANK_RANGE = 8  # of 255: maximum range between the lightest and darkest pixel of a blank image
COLOR_SHARE, COLOR_RANGE = 0.05, 48  # of pixels in an image with color; between the channels of such a pixel
LARGE_FACTOR = 16  # times as high and wide as the model's input: details are lost
BRIGHTNESS_STDS = 1.5  # standard deviations from the mean of the training pixels


@dataclass(frozen=True, kw_only=True)
class ProcessedImage:
    """A decoded and resized image. pixels (H, W, C): before normalization. size: of the original image.

    key: digest of its content, if it may be cached.
    """

    pixels: Pixels
    size: Size
    warnings: tuple[ImageWarning, ...] = ()
    key: bytes | None = None

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes


class VisionProcessor(Processor[ImageLike, ProcessedImage]):
    """Prepare images of any size: paths, file contents (bytes), PIL images, arrays or tensors.

    transform: resizes and normalizes images as the model's folder says.
    """

    name = "image"
    errors = (FileMissingError, FileProblemError, InvalidValueError)

    def __init__(self, bundle: Bundle, transform: ImageProcessor) -> None:
        self.bundle, self.transform = bundle, transform
        self.read = image_input(bundle)
        self._has_pixel_mask = isinstance(self.read, specs.FeatureMapSpec)  # tells padding from pixels

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        read = image_input(bundle)
        feature_map = isinstance(read, specs.FeatureMapSpec)
        channels = read.backbone.channels if feature_map else specs.image_channels(read)
        return cls(bundle, load_image_processor(bundle, channels=channels))

    def is_single(self, inputs: Any) -> bool:
        return is_single_image(inputs)

    def load(self, source: ImageLike) -> ProcessedImage:
        image = load_image(source)
        return ProcessedImage(pixels=self.transform.fit(image), size=(image.height, image.width))

    def load_cached(self, source: ImageLike) -> ProcessedImage:
        """Load an image, or return it from the cache of the model."""
        key = image_digest(source)
        name = None if key is None else b"pixels" + key
        return replace(self.bundle.cached_image(name, lambda: self.load(source)), key=key)

    @torch.inference_mode()
    def encode(
        self, images: Sequence[ProcessedImage], encode: Callable[[Tensor], Tensor], *, batch_size: int
    ) -> list[Tensor]:
        """Return the vectors (S, W) of images: from the cache, or each image encoded once, in batches.

        encode: maps images of one size (N, C, H, W) to their vectors (N, S, W).
        """
        unique, rows = unique_images(images)

        def encode_missing(missing: list[int]) -> Iterator[Tensor]:
            first = next(self.bundle.model.parameters())
            for _, group in groupby([unique[n] for n in missing], lambda image: image.pixels.shape):
                same = list(group)
                for start in range(0, len(same), batch_size):
                    pixels = self.stack(same[start : start + batch_size]).pixels
                    with evaluation_mode(self.bundle.model):
                        yield from map(torch.clone, encode(pixels.to(first.device, first.dtype)))

        vectors = self.bundle.cached_images([image.key for image in unique], encode_missing)
        return [vectors[row] for row in rows]

    def size(self, item: ProcessedImage) -> int:
        """Return the number of pixels."""
        return item.pixels.shape[0] * item.pixels.shape[1]

    def group(self, item: ProcessedImage) -> Hashable:
        """With padding, portraits and landscapes form batches; without, images of the same size."""
        height, width, _ = item.pixels.shape
        return height > width if self._has_pixel_mask and self.transform.do_pad else (height, width)

    def stack(self, items: Sequence[ProcessedImage]) -> ImageBatch:
        """Normalize and pad images to one batch, on the CPU."""
        return self.transform.collate([item.pixels for item in items], [item.size for item in items])

    def inputs(self, batch: ImageBatch) -> ForwardInputs:
        """Return a batch as model inputs."""
        device, dtype = self.bundle.device, next(self.bundle.model.parameters()).dtype
        pixels = batch.pixels.to(device, dtype)
        images: Tensor | ImageInputs = pixels
        if self._has_pixel_mask and batch.pixel_mask is not None and len(set(batch.scaled_sizes)) > 1:
            images = ImageInputs(pixels, batch.pixel_mask.to(device))
        architecture = self.bundle.spec.architecture
        if architecture == "encoder-decoder":
            return {"src": images}
        return {"inputs": images} if architecture == "encoder-only" else {"images": images}

    def collate(self, items: Sequence[ProcessedImage]) -> ForwardInputs:
        return self.inputs(self.stack(items))


class FixedSizeVisionProcessor(VisionProcessor):
    """Prepare images for a model that classifies or embeds images of one size.

    image_size: height and width of its input. num_tokens: of one image.
    """

    read: specs.ImagePatchesSpec

    def __init__(self, bundle: Bundle, transform: ImageProcessor) -> None:
        super().__init__(bundle, transform)
        read = self.read
        self.image_size = (read.interpolate and transform.fixed_size) or read.image_size
        self.num_tokens = read.num_tokens((1, read.channels, *self.image_size))

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        read = image_input(bundle)
        if not isinstance(read, specs.ImagePatchesSpec):
            hint = f"it reads {input_kind(bundle.spec)}"
            raise UnsupportedError(bundle.display_name, "image input", hint=hint)
        size = read.image_size
        return cls(bundle, load_image_processor(bundle, channels=read.channels, image_size=size))

    def load(self, source: ImageLike) -> ProcessedImage:
        color = load_image(source)
        fitted = self.transform.fit(color)
        if fitted.shape[:2] != self.image_size:
            hint = f"fix {IMAGE_PROCESSOR_FILE}"
            raise ShapeError("the image", fitted.shape, f"{self.image_size}", hint=hint)
        warnings = self._warnings(np.asarray(color), fitted)
        return ProcessedImage(pixels=fitted, size=(color.height, color.width), warnings=warnings)

    def size(self, item: ProcessedImage) -> int:
        """Return the number of tokens."""
        return self.num_tokens

    def read_ahead(self, budget: int) -> int:
        return max(1, budget // self.num_tokens)  # decoded images are large: only one batch is held

    def stack(self, items: Sequence[ProcessedImage]) -> ImageBatch:
        pixels = self.transform.normalize(np.stack([item.pixels for item in items]))
        sizes = tuple(item.size for item in items)
        return ImageBatch(torch.from_numpy(pixels), None, sizes, (self.image_size,) * len(items))

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


def unique_images(images: Sequence[ProcessedImage]) -> tuple[list[ProcessedImage], list[int]]:
    """Return the different images, and for each image the index of its own."""
    index: dict[object, int] = {}
    rows = [index.setdefault(id(image) if image.key is None else image.key, len(index)) for image in images]
    return [images[rows.index(n)] for n in range(len(index))], rows


def image_input(bundle: Bundle) -> Any:
    """Return the spec of the images that a model reads; of its first input if it reads none."""
    parts = bundle.spec.inputs()
    return next((part for part in parts if part.modality == "image"), parts[0])


def reads_images(bundle: Bundle) -> bool:
    """Whether a model reads images as patches."""
    return bundle.spec.modalities == ("image",) and isinstance(
        bundle.spec.inputs()[0], specs.ImagePatchesSpec
    )


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

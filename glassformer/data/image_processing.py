"""Resize, crop, normalize and pad images as `preprocessor_config.json` says.

The pixels equal those of transformers' PIL image processors. `image_processor_type` names one of them: it
sets the defaults of keys that the file leaves out, and a few rules that have no key. Images arrive upright
and with 8 bits per channel, from `image_files.load_image`.
B images, H x W pixels, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.errors import InvalidValueError, ShapeError, UnknownNameError

if TYPE_CHECKING:
    from PIL import Image

_FILE = "preprocessor_config.json"
Size = tuple[int, int]  # height, width
Pixels = NDArray[np.uint8]  # (H, W, C)

_HALF = (0.5, 0.5, 0.5)
_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
_CLIP = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_BICUBIC, _LANCZOS = 3, 1
_SHORTEST_224 = {
    **_CLIP,
    "size": {"shortest_edge": 224},
    "resample": _BICUBIC,
    "do_center_crop": True,
    "crop_size": (224, 224),
}
_UP_TO_1333 = {**_IMAGENET, "size": {"shortest_edge": 800, "longest_edge": 1333}, "do_pad": True}
_TILED = {"resample": _LANCZOS, "do_image_splitting": True}
# The defaults of each type, as far as they differ from those of `ImageProcessor`.
_TYPES: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": {},
    "DeiTImageProcessor": {
        "size": {"height": 256, "width": 256},
        "resample": _BICUBIC,
        "do_center_crop": True,
        "crop_size": (224, 224),
    },
    "BitImageProcessor": _SHORTEST_224,
    "CLIPImageProcessor": _SHORTEST_224,
    "SiglipImageProcessor": {"resample": _BICUBIC},
    "LlavaImageProcessor": _SHORTEST_224,
    "Idefics3ImageProcessor": {**_TILED, "size": {"longest_edge": 4 * 364}, "max_image_size": 364},
    "SmolVLMImageProcessor": {**_TILED, "size": {"longest_edge": 4 * 364}, "max_image_size": 364},
    "BlipImageProcessor": {**_CLIP, "size": {"height": 384, "width": 384}, "resample": _BICUBIC},
    "DetrImageProcessor": _UP_TO_1333,
    "YolosImageProcessor": _UP_TO_1333,
    "SamImageProcessor": {
        **_IMAGENET,
        "size": {"longest_edge": 1024},
        "do_pad": True,
        "pad_size": (1024, 1024),
    },
    "MaskFormerImageProcessor": {**_UP_TO_1333, "size_divisor": 32},
    "Mask2FormerImageProcessor": {**_UP_TO_1333, "size_divisor": 32},
    "EomtImageProcessor": {**_IMAGENET, "size": {"shortest_edge": 640, "longest_edge": 640}},
    "ViltImageProcessor": {
        "size": {"shortest_edge": 384},
        "resample": _BICUBIC,
        "do_pad": True,
        "size_divisor": 32,
    },
}
# An integer `size` is the shorter side, not a square.
_INT_IS_SHORTEST = {name for name, defaults in _TYPES.items() if "shortest_edge" in defaults.get("size", ())}
_WITH_PIXEL_MASK = {name for name, defaults in _TYPES.items() if "do_pad" in defaults} - {"SamImageProcessor"}
_PAD_TO_SQUARE = {"LlavaImageProcessor"}  # before resizing, in the color of the mean
_MAX_TILED_SIDE = 4096
_ROUND_DOWN = {"YolosImageProcessor": 16}  # sides are rounded down to a multiple of this
_PAD_BLACK = {"EomtImageProcessor"}  # padded before normalization, to the size of the crops
_KEYS = (
    "do_resize size resample do_center_crop crop_size do_rescale rescale_factor do_normalize image_mean"
    " image_std do_pad pad_size size_divisor do_split_image do_image_splitting max_image_size"
).split()
_SIZE_KEYS = (
    {"height", "width"},
    {"shortest_edge"},
    {"longest_edge"},
    {"shortest_edge", "longest_edge"},
    {"max_height", "max_width"},
)


class Tiles(NamedTuple):
    """Tiles of an image, row by row, and then the whole image, all (H, W, C) of one size.

    rows, columns: of the tiles; 0 if the image is not split.
    """

    pixels: tuple[Pixels, ...]
    rows: int
    columns: int


class ImageBatch(NamedTuple):
    """Images as model inputs.

    pixels: (B, C, H, W) float32. pixel_mask: (B, H, W) bool, True for real pixels; None if the model needs
    none.
    sizes: height and width of each original image. scaled_sizes: of each image in `pixels`, without padding.
    crops: for images split into crops, the (image, start, end) of each of the B crops along the longer side.
    """

    pixels: Tensor
    pixel_mask: Tensor | None
    sizes: tuple[Size, ...]
    scaled_sizes: tuple[Size, ...]
    crops: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """Convert images to model inputs. The fields have the names of `preprocessor_config.json`.

    size: `height` and `width`; or `shortest_edge`, optionally with `longest_edge` as upper limit; or
    `longest_edge`; or `max_height` and `max_width`. All but the first keep the aspect ratio.
    resample: filter of Pillow (2 bilinear, 3 bicubic).
    crop_size: height and width of the center crop. rescale_factor: multiplies the pixels.
    image_mean, image_std: per channel, for rescaled pixels. do_pad: pad on the right and at the bottom.
    pad_size: height and width to pad to; None for the largest of the batch.
    size_divisor: sides are rounded up to a multiple of it; 0 for none.
    do_split_image: split images into square crops with the shorter side's length.
    do_image_splitting, max_image_size: split images into square tiles of this size, or only resize to it.

    >>> processor = ImageProcessor(size={"shortest_edge": 224})
    >>> processor.scaled_size((480, 640))
    (224, 298)
    """

    image_processor_type: str = "ViTImageProcessor"
    do_resize: bool = True
    size: Mapping[str, int] = field(default_factory=lambda: {"height": 224, "width": 224})
    resample: int = 2
    do_center_crop: bool = False
    crop_size: Size | None = None
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: tuple[float, ...] = _HALF
    image_std: tuple[float, ...] = _HALF
    do_pad: bool = False
    pad_size: Size | None = None
    size_divisor: int = 0
    do_split_image: bool = False
    do_image_splitting: bool = False
    max_image_size: int | None = None

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], *, channels: int = 3, image_size: Size = (224, 224)
    ) -> ImageProcessor:
        """Read the content of `preprocessor_config.json`.

        channels: of the model's input. image_size: used if the file has neither a type nor a size.
        """
        config = {name: value for name, value in config.items() if value is not None}
        published = config.get("image_processor_type", config.get("feature_extractor_type"))
        kind = str(published or "ViTImageProcessor").replace("FeatureExtractor", "ImageProcessor")
        kind = kind.removesuffix("Fast").removesuffix("Pil")
        if kind not in _TYPES:
            raise UnknownNameError("image processor", str(published), _TYPES, where=_FILE)
        values: dict[str, Any] = dict(_TYPES[kind])
        if published is None:
            values |= {
                "size": {"height": image_size[0], "width": image_size[1]},
                "crop_size": image_size,
            }
        values |= {name: config[name] for name in _KEYS if name in config}
        if "size" in config:
            values["size"] = _parse_size(config["size"], kind, config.get("max_size"))
        elif "max_size" in config and kind in _INT_IS_SHORTEST:
            values["size"] = {**values["size"], "longest_edge": config["max_size"]}
        for name in ("crop_size", "pad_size"):
            if name in values:
                values[name] = _parse_height_and_width(name, values[name])
        if isinstance(side := values.get("max_image_size"), Mapping):
            values["max_image_size"] = side.get("longest_edge")
        for name in ("image_mean", "image_std"):
            numbers = np.asarray(values.get(name, 0.5), np.float64).reshape(-1).tolist()
            if len(set(numbers)) == 1:
                numbers = numbers[:1] * channels
            if len(numbers) != channels:
                raise InvalidValueError(f"{_FILE}: {name}", numbers, f"{channels} numbers")
            values[name] = tuple(numbers)
        processor = cls(image_processor_type=kind, **values)
        if processor.resample not in range(6):
            known = "a filter of Pillow, 0 to 5"
            raise InvalidValueError(f"{_FILE}: resample", processor.resample, known)
        return processor

    def to_dict(self) -> dict[str, Any]:
        """Convert to the content of `preprocessor_config.json`, as transformers writes it."""
        config: dict[str, Any] = {"image_processor_type": self.image_processor_type}
        default = ImageProcessor()
        optional = ("do_center_crop", "crop_size", "do_pad", "pad_size", "size_divisor", "do_split_image")
        for name in _KEYS:
            value = getattr(self, name)
            known = name not in optional or name in _TYPES[self.image_processor_type]
            if value is None or not (known or value != getattr(default, name)):
                continue
            if name in ("crop_size", "pad_size"):
                value = {"height": value[0], "width": value[1]}
            config[name] = (
                dict(value) if name == "size" else list(value) if isinstance(value, tuple) else value
            )
        return config

    def __call__(self, images: Sequence[Image.Image]) -> ImageBatch:
        """Convert PIL images to one batch. Without padding, all must have the same size after resizing."""
        return self.collate([self.fit(image) for image in images], [image.size[::-1] for image in images])

    def collate(self, images: Sequence[Pixels], sizes: Sequence[Size]) -> ImageBatch:
        """Normalize and pad images that were resized and cropped by `fit`. sizes: of the original images."""
        scaled = tuple(image.shape[:2] for image in images)
        crops: list[tuple[int, int, int]] = []
        if self.do_split_image:
            crops = [crop for number, size in enumerate(scaled) for crop in self._split(number, size)]
            images = [
                images[number][start:end] if _is_portrait(scaled[number]) else images[number][:, start:end]
                for number, start, end in crops
            ]
        before = self.image_processor_type in _PAD_BLACK
        if before and self.do_pad:
            short = self.size["shortest_edge"]
            images = [_pad(image, (short, self.size.get("longest_edge", short))) for image in images]
        largest = (max(image.shape[0] for image in images), max(image.shape[1] for image in images))
        target = self.pad_size or largest if self.do_pad and not before else images[0].shape[:2]
        for image in images:
            fits = all(side <= most for side, most in zip(image.shape[:2], target, strict=True))
            if not fits or (image.shape[:2] != target and (before or not self.do_pad)):
                hint = "process the images one by one, or set do_pad"
                raise ShapeError("an image", image.shape[:2], f"{tuple(target)} as the batch", hint=hint)
        pixels = torch.zeros(len(images), len(self.image_mean), *target)
        mask = torch.zeros(len(images), *target, dtype=torch.bool)
        for number, image in enumerate(images):
            height, width = image.shape[:2]
            pixels[number, :, :height, :width] = torch.from_numpy(self.normalize(image))
            mask[number, :height, :width] = True
        with_mask = self.do_pad and self.image_processor_type in _WITH_PIXEL_MASK
        return ImageBatch(pixels, mask if with_mask else None, tuple(sizes), scaled, tuple(crops))

    def fit(self, image: Image.Image) -> Pixels:
        """Resize and crop a PIL image: (H, W, C) bytes, before normalization."""
        from PIL import Image as pillow

        channels = len(self.image_mean)
        converted = image.convert("L" if channels == 1 else "RGB")
        if self.do_pad and self.image_processor_type in _PAD_TO_SQUARE:
            square = pillow.new(converted.mode, (max(image.size),) * 2, self._mean_color)
            square.paste(
                converted, ((max(image.size) - image.width) // 2, (max(image.size) - image.height) // 2)
            )
            converted = square
        if self.do_resize:
            height, width = self.scaled_size((converted.height, converted.width))
            converted = converted.resize((width, height), pillow.Resampling(self.resample))
        pixels = np.asarray(converted).reshape(converted.height, converted.width, channels)
        return _center_crop(pixels, self.crop_size) if self.do_center_crop and self.crop_size else pixels

    def tiles(self, image: Image.Image, max_tiles: int | None = None) -> Tiles:
        """Resize an image and split it into tiles; without `max_image_size`, return it as one tile.

        max_tiles: split it into fewer tiles than the file says, or not at all.
        """
        from PIL import Image as pillow

        side = self.max_image_size
        if side is None:
            return Tiles((self.fit(image),), 0, 0)

        def resized(picture: Image.Image, size: Size) -> Image.Image:
            return picture.resize(size[::-1], pillow.Resampling(self.resample))

        size = (image.height, image.width)
        steps, (rows, columns) = self.tiled_sizes(size, max_tiles)
        picture = image.convert("L" if len(self.image_mean) == 1 else "RGB")
        for step in steps:
            picture = resized(picture, step)
        whole = resized(picture, (side, side)) if picture.size != (side, side) else picture
        boxes = [
            (column * side, row * side, (column + 1) * side, (row + 1) * side)
            for row in range(rows)
            for column in range(columns)
        ]
        pixels = [np.asarray(tile) for tile in (*map(picture.crop, boxes), whole)]
        return Tiles(tuple(one.reshape(side, side, -1) for one in pixels), rows, columns)

    def tiled_sizes(self, size: Size, max_tiles: int | None = None) -> tuple[list[Size], Size]:
        """Return the sizes to which an image is resized in turn, and the rows and columns of its tiles."""
        side = self.max_image_size
        assert side is not None
        longest = self.size.get("longest_edge", side)
        while True:
            steps = [_even_size(size, longest)] if self.do_resize else []
            if not self.do_image_splitting or longest < side:
                return [*steps, (side, side)], (0, 0)
            steps.append(_tiled_size(steps[-1] if steps else size, side))
            rows, columns = (length // side for length in steps[-1])
            if rows * columns == 1:
                return steps, (0, 0)
            if max_tiles is None or rows * columns < max_tiles:  # and the whole image
                return steps, (rows, columns)
            longest = max(steps[-1]) - side if self.do_resize else 0

    def normalize(self, pixels: Pixels) -> NDArray[np.float32]:
        """Rescale and normalize bytes: (..., H, W, C) -> (..., C, H, W)."""
        return np.stack([levels[pixels[..., n]] for n, levels in enumerate(self._levels)], -3)

    @cached_property
    def _levels(self) -> NDArray[np.float32]:
        """The normalized value of each byte: (C, 256). A lookup is faster than the arithmetic."""
        factor = self.rescale_factor if self.do_rescale else 1.0
        levels = (np.arange(256, dtype=np.float64) * factor).astype(np.float32)
        mean, std = (np.array(values, np.float32)[:, None] for values in (self.image_mean, self.image_std))
        return (levels - mean) / std if self.do_normalize else np.tile(levels, (len(mean), 1))

    @property
    def _mean_color(self) -> int | tuple[int, ...]:
        values = tuple(int(value * 255) for value in self.image_mean)
        return values if len(values) > 1 else values[0]

    @property
    def fixed_size(self) -> Size | None:
        """Height and width of every output image; None if they depend on the image."""
        if self.max_image_size is not None:
            return self.max_image_size, self.max_image_size
        if self.do_center_crop and self.crop_size is not None:
            return self.crop_size
        if self.do_resize and "height" in self.size:
            return self.size["height"], self.size["width"]
        return None

    def scaled_size(self, size: Size) -> Size:
        """Return the height and width to which an image of this height and width is resized."""
        height, width = size
        match dict(self.size):
            case {"shortest_edge": short, "longest_edge": longest}:
                multiple = _ROUND_DOWN.get(self.image_processor_type, 0)
                target = _limited_size(size, short, longest, keep_exact=not multiple or height <= width)
                if multiple:
                    target = (target[0] // multiple * multiple, target[1] // multiple * multiple)
            case {"shortest_edge": short} if self.image_processor_type == "ViltImageProcessor":
                target = _divisible_size(size, short, self.size_divisor)
            case {"shortest_edge": short}:
                long = int(short * max(size) / min(size))
                target = (long, short) if width <= height else (short, long)
            case {"longest_edge": longest}:
                scale = longest / max(size)
                target = (int(height * scale + 0.5), int(width * scale + 0.5))
            case {"max_height": highest, "max_width": widest}:
                scale = min(highest / height, widest / width)
                target = (int(height * scale), int(width * scale))
            case exact:
                target = (exact["height"], exact["width"])
        if self.size_divisor:
            target = (_round_up(target[0], self.size_divisor), _round_up(target[1], self.size_divisor))
        return max(1, target[0]), max(1, target[1])

    def _split(self, number: int, size: Size) -> list[tuple[int, int, int]]:
        """Return the (image, start, end) of the crops of an image along its longer side; crops overlap."""
        side = self.size["shortest_edge"]
        count = math.ceil(max(size) / side)
        overlap = (count * side - max(size)) / max(1, count - 1)
        starts = [int(n * (side - overlap)) for n in range(count)]
        return [(number, start, start + side) for start in starts]


def _limited_size(size: Size, short: int, longest: int, *, keep_exact: bool) -> Size:
    """Return the size with the given shorter side, unless the longer one would exceed `longest`.

    keep_exact: return the size itself if its shorter side is right already.
    """
    height, width = size
    exact: float = short
    if max(size) / min(size) * short > longest:
        exact = longest * min(size) / max(size)
        short = round(exact)
    if keep_exact and min(size) == short:
        return size
    if width < height:
        return int(exact * height / width), short
    return short, int(exact * width / height)


def _even_size(size: Size, longest: int) -> Size:
    """Return the size with the given longer side; the other one is rounded up to an even number."""
    height, width = size
    ratio = width / height
    if width >= height:
        height, width = int(longest / ratio), longest
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio, limit = width / height, _MAX_TILED_SIDE
    if width >= height and width > limit:
        height, width = int(limit / ratio), limit
    elif height > width and height > limit:
        height, width = limit, int(limit * ratio)
    return max(height, 1), max(width, 1)


def _tiled_size(size: Size, side: int) -> Size:
    """Return the size with both sides rounded up to whole tiles, the longer side first."""
    height, width = size
    ratio = width / height
    if width >= height:
        width = _round_up(width, side)
        height = _round_up(int(width / ratio), side)
    else:
        height = _round_up(height, side)
        width = _round_up(int(height * ratio), side)
    return height, width


def _divisible_size(size: Size, short: int, divisor: int) -> Size:
    """Return the size with the given shorter side and at most 5/3 of it, rounded down to `divisor`."""
    scale = short / min(size)
    height, width = (short if side == min(size) else scale * side for side in size)
    longest = int(1333 / 800 * short)
    if max(height, width) > longest:
        scale = longest / max(height, width)
        height, width = scale * height, scale * width
    return int(height + 0.5) // divisor * divisor, int(width + 0.5) // divisor * divisor


def _is_portrait(size: Size) -> bool:
    return size[0] > size[1]


def _round_up(side: int, multiple: int) -> int:
    return math.ceil(side / multiple) * multiple


def _pad(image: Pixels, size: Size) -> Pixels:
    height, width = (max(0, side - have) for side, have in zip(size, image.shape[:2], strict=True))
    return np.pad(image, ((0, height), (0, width), (0, 0)))


def _center_crop(image: Pixels, size: Size) -> Pixels:
    """Crop the center; images that are too small are padded with black."""
    height, width = image.shape[:2]
    high, wide = max(size[0], height), max(size[1], width)
    top, left = -(-(high - height) // 2), -(-(wide - width) // 2)
    padded = np.zeros((high, wide, image.shape[2]), np.uint8)
    padded[top : top + height, left : left + width] = image
    down, across = top + (height - size[0]) // 2, left + (width - size[1]) // 2
    return padded[max(0, down) : down + size[0], max(0, across) : across + size[1]]


def _parse_size(size: Any, kind: str, max_size: int | None) -> dict[str, int]:
    match size:
        case int(side) if kind in _INT_IS_SHORTEST:
            longest = max_size or _TYPES[kind]["size"].get("longest_edge")
            return {"shortest_edge": side} | ({"longest_edge": longest} if longest else {})
        case dict():
            sides = {name: side for name, side in size.items() if side}
            if set(sides) in _SIZE_KEYS:
                return sides
    height, width = _parse_height_and_width("size", size)
    return {"height": height, "width": width}


def _parse_height_and_width(name: str, size: Any) -> Size:
    match size:
        case {"height": int(high), "width": int(wide)} | (int(high), int(wide)):
            return high, wide
        case int(side):
            return side, side
    raise InvalidValueError(f"{_FILE}: {name}", size, "a height and a width")

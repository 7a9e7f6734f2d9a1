"""Pictures as a model of pictures takes them: files brought to its size, scaled as its folder says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.image_files import MAX_PIXELS, BadImageError, decode_image, read_image_header
from glassformer.errors import GlassformerError
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE as PICTURES
from glassformer.tasks.finite import finite
from glassformer.tasks.reading import device_of, in_order, named, reading_of
from glassformer.tasks.unlike import Unlike, unlike
from glassformer.tasks.watch import UnreadableError, Watch

Picture = str | PathLike[str] | bytes


def reads_pictures(bundle: Bundle) -> bool:
    """Whether a model reads pictures."""
    return isinstance(getattr(bundle.spec, "input", None), specs.ImagePatches)


class Ready:
    """How a model's pictures are made ready: its size, and what pixels are shifted and divided by.

    hear: told in what each picture is unlike those that the model has learnt.
    """

    def __init__(self, bundle: Bundle, hear: Callable[[Unlike], None] | None = None) -> None:
        read = getattr(bundle.spec, "input", None)
        if not isinstance(read, specs.ImagePatches):
            raise GlassformerError(f"{named(bundle)} reads no pictures; it {reading_of(read)}")
        about: dict[str, Any] | None = bundle.files.get(PICTURES)
        if about is None:
            raise GlassformerError(
                f"{named(bundle)} does not say how its pictures are made ready; put its {PICTURES} into "
                "its folder"
            )
        about = {name: value for name, value in about.items() if value is not None}  # null says nothing
        self.read, self.device, self.about = read, device_of(bundle), about
        self._bundle, self._hear = bundle, hear
        self.length = read.num_patches + read.prefix  # what a picture costs, in tokens
        plain = about.get("do_normalize") is False
        self.mean = self._each(0.0 if plain else about.get("image_mean", 0.5))
        self.std = self._each(1.0 if plain else about.get("image_std", 0.5))
        self.factor = np.float32(
            1 if about.get("do_rescale") is False else about.get("rescale_factor", 1 / 255)
        )

    def _each(self, values: Any) -> NDArray[np.float32]:
        numbers = np.asarray(values, np.float32).reshape(-1)
        if numbers.size not in (1, self.read.channels):
            raise GlassformerError(
                f"{PICTURES} scales {numbers.size} channels, and the model reads {self.read.channels}"
            )
        return np.broadcast_to(numbers, (self.read.channels,))

    def together(self, pictures: Sequence[Picture]) -> Tensor:
        """Files (or the bytes of files) as one batch (B, C, H, W)."""
        return self.scaled(np.stack([self.pixels(one) for one in pictures]))

    @torch.inference_mode()
    def in_order(
        self,
        pictures: Sequence[Picture],
        answer: Callable[[Tensor], Tensor],
        *,
        first: int,
        tokens: int,
        watch: Watch,
    ) -> list[Tensor | None]:
        """What `answer` says of each, batch (B, C, H, W) by batch; None of those that are not asked.

        first: the number of the first of them among all, for who is told of one that is refused.
        """
        dtype = next(self._bundle.model.parameters()).dtype

        def some(rows: list[int]) -> list[Tensor | None]:
            every = ((row, self._read(first + row, pictures[row], watch)) for row in rows)
            read = {row: pixels for row, pixels in every if pixels is not None}
            if not read:
                return [None] * len(rows)
            told = answer(self.scaled(np.stack([*read.values()])).to(dtype))
            found = dict(zip(read, finite(self._bundle, told.cpu()), strict=True))
            return [found.get(row) for row in rows]

        return in_order([self.length] * len(pictures), some, tokens=tokens, watch=watch)

    def _read(self, number: int, picture: Picture, watch: Watch) -> NDArray[np.uint8] | None:
        if watch.leaves(picture):
            return None
        try:
            return self.pixels(picture)
        except UnreadableError as error:
            if watch.refuse is None:
                raise
            watch.refuse(number, str(error))
            return None

    def scaled(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Pictures as bytes (B, H, W, C) -> as the model takes them (B, C, H, W)."""
        scaled = (pixels.astype(np.float32) * self.factor - self.mean) / self.std
        return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))).to(self.device)

    def pixels(self, picture: Picture) -> NDArray[np.uint8]:
        """One picture as bytes (H, W, C)."""
        if not isinstance(picture, str | PathLike | bytes):
            raise GlassformerError(f"give the names of picture files, not {type(picture).__name__}")
        source = picture if isinstance(picture, bytes) else Path(picture)
        name = "a picture" if isinstance(source, bytes) else f"'{str(source)[:200]}'"
        try:
            if isinstance(source, Path) and source.is_dir():
                raise UnreadableError(f"{name} is a folder; give the names of the picture files in it")
            if isinstance(source, Path) and not source.is_file():
                raise UnreadableError(
                    f"there is no picture {name}; this model reads pictures, so give the names of their files"
                )
            seen = read_image_header(source)
            whole = decode_image(source, (seen.height, seen.width, self.read.channels))
            given = whole  # with its colours, for who hears what it is unlike
            if self._hear is not None and self.read.channels != 3:
                given = decode_image(source, (seen.height, seen.width, 3))
        except (BadImageError, OSError, ValueError) as error:
            if isinstance(error, GlassformerError):
                raise
            told = str(error) if isinstance(error, BadImageError) else f"cannot be read ({error})"
            raise UnreadableError(f"{name} {told}") from None
        fitted = self._cropped(self._resized(whole))
        if fitted.shape[:2] != self.read.image_size:
            raise GlassformerError(
                f"{PICTURES} brings {name} to {fitted.shape[0]} x {fitted.shape[1]}, and the model reads "
                f"{self.read.image_size[0]} x {self.read.image_size[1]}"
            )
        if self._hear is not None:
            for what in unlike(self._bundle, self.read, given, fitted):
                self._hear(what)
        return fitted

    def _resized(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """To the size the folder names: a height and width, or the length of the shorter side."""
        if self.about.get("do_resize") is False:
            return image
        height, width = image.shape[:2]
        size = self.about.get("size", self.read.image_size)
        match size:
            case {"height": int(high), "width": int(wide)} | (int(high), int(wide)):
                pass
            case {"shortest_edge": int(side)}:
                short, long = min(height, width), max(height, width)
                other = int(side * long / short)
                high, wide = (side, other) if height <= width else (other, side)
            case int(side):
                high = wide = side
            case _:
                raise GlassformerError(f"{PICTURES} sets size to {size!r}, which is not supported")
        if min(high, wide) < 1 or high * wide > MAX_PIXELS:
            raise GlassformerError(f"{PICTURES} brings pictures to {high:,} x {wide:,}; mend its size")
        return resampled(image, (high, wide), self.about.get("resample", 2))

    def _cropped(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The middle, where the folder asks for it."""
        if not self.about.get("do_center_crop"):
            return image
        size = self.about.get("crop_size", self.read.image_size)
        match size:
            case {"height": int(high), "width": int(wide)} | (int(high), int(wide)):
                pass
            case int(side):
                high = wide = side
            case _:
                raise GlassformerError(f"{PICTURES} sets crop_size to {size!r}, which is not supported")
        top, left = (image.shape[0] - high) // 2, (image.shape[1] - wide) // 2
        if min(top, left) < 0 or min(high, wide) < 1:
            raise GlassformerError(
                f"{PICTURES} cuts {high:,} x {wide:,} out of pictures of {image.shape[0]:,} x "
                f"{image.shape[1]:,}; mend its crop_size"
            )
        return image[top : top + high, left : left + wide]


def resampled(image: NDArray[np.uint8], size: tuple[int, int], how: Any) -> NDArray[np.uint8]:
    """The image (H, W, C) at another size (height, width), by one of Pillow's filters."""
    if image.shape[:2] == size:
        return image
    from PIL import Image

    try:
        chosen = Image.Resampling(how)
    except ValueError:
        raise GlassformerError(f"{PICTURES} sets resample to {how!r}, which is not known") from None
    flat = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    other = flat.resize((size[1], size[0]), chosen)
    return np.asarray(other).reshape(*size, image.shape[2])

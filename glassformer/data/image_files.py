"""Read images: single ones in every form that a user passes, and labeled data sets.

`load_image` decodes one image and `list_images` expands folders and patterns; `find_images` opens the data
set at a path, a folder per class or Parquet. Sources yield one image at a time, so that no file has to fit in
memory.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import io
import os
import re
import sys
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from glassformer.data.readers import ParquetReader, find_column
from glassformer.data.row_errors import RowCounter, RowErrors
from glassformer.errors import (
    FileMissingError,
    FileProblemError,
    InvalidValueError,
    UnknownNameError,
)
from glassformer.json_text import parse_json

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

# A file's path or content, or decoded pixels: (H, W), (H, W, C) or (C, H, W), bytes or floats from 0 to 1.
ImageLike: TypeAlias = "str | PathLike[str] | bytes | Image.Image | NDArray[Any] | Tensor"
Label = int | str
Shape = tuple[int, int, int]  # H, W, C of every image
Encoded = tuple[int | None, Path | bytes, object]  # row, file or bytes, label
Split = Literal["train", "test"]
MAX_PIXELS = 64_000_000  # a small file can decode to an image that fills the memory
MAX_DEFAULT_SIDE = 224
MAX_ASPECT_RATIO = 200  # a longer strip has no content left once it is resized to the input of a model
# Formats that Pillow decodes itself; others would start external programs.
_FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA", "ICO", "JPEG2000", "AVIF")
_SUFFIXES = frozenset(
    ".png .jpg .jpeg .jpe .jfif .webp .gif .bmp .tif .tiff .ppm .pgm .pbm .tga .jp2 .avif".split()
)
_GRAY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
_ROTATED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_ORIENTATION = 0x0112
_IMAGE_NAMES = ("image", "img", "images", "picture", "jpg", "png")
_LABEL_NAMES = ("label", "labels", "class", "fine_label", "category", "target")
_TEST = ("test", "val", "valid", "validation", "eval")


# --- one image


def image_digest(image: ImageLike) -> bytes | None:
    """Return a digest of an image's content; None if it has to be read to find out what is wrong with it."""
    if isinstance(image, str | PathLike):
        path = Path(image)
        try:
            content = path.read_bytes()
        except (OSError, ValueError):
            return None
        return hashlib.sha256(content).digest()
    if isinstance(image, bytes):
        return hashlib.sha256(image).digest()
    if is_pillow_image(image):
        return _pillow_digest(image)  # type: ignore[arg-type]
    detach = getattr(image, "detach", None)  # of a tensor
    pixels = np.ascontiguousarray(image if detach is None else detach().cpu())
    return hashlib.sha256(repr((pixels.shape, pixels.dtype)).encode() + pixels.tobytes()).digest()


def _pillow_digest(image: Image.Image) -> bytes | None:
    """Return a digest of what `load_image` reads: the pixels, what they mean, and which side is up."""
    if image.width * image.height > MAX_PIXELS:
        return None
    palette = image.getpalette() if image.mode in ("P", "PA") else None
    meaning = (image.mode, image.size, palette, image.info.get("transparency"))
    try:
        turned = image.getexif().get(_ORIENTATION)
        return hashlib.sha256(repr((*meaning, turned)).encode() + image.tobytes()).digest()
    except Exception:  # a lazily opened file may be damaged in many ways
        return None


class BadImageError(Exception):
    """An image cannot be used. The message is a predicate; the caller puts the image's name before it."""


@contextmanager
def _open_image(source: Path | bytes | Image.Image) -> Iterator[Image.Image]:
    from PIL import Image

    Image.init()
    formats = tuple(name for name in _FORMATS if name in Image.OPEN)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images and odd metadata; the size is checked below
            file = io.BytesIO(source) if isinstance(source, bytes) else source
            opened = nullcontext(file) if isinstance(file, Image.Image) else Image.open(file, formats=formats)
            with opened as image:
                if not 0 < image.width * image.height <= MAX_PIXELS:
                    raise BadImageError(
                        f"has {image.width * image.height:,} pixels; expected from 1 to {MAX_PIXELS:,}"
                    )
                yield image
    except BadImageError:
        raise
    except Image.UnidentifiedImageError:
        raise BadImageError("is not an image") from None
    except Image.DecompressionBombError:  # Pillow's own limit, which is higher
        raise BadImageError(f"has too many pixels; expected from 1 to {MAX_PIXELS:,}") from None
    except Exception as error:  # each decoder raises its own exceptions
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadImageError(f"cannot be decoded ({text.strip()[:120] or type(error).__name__})") from None


def read_image_shape(source: Path | bytes | Image.Image) -> Shape:
    """Return height, width and channels (1 if grayscale) without decoding the image."""
    from PIL import Image

    with _open_image(source) as image:
        rotated = Image.Image.getexif(image).get(_ORIENTATION) in _ROTATED  # PNG's own would decode it
        size = image.size if rotated else image.size[::-1]
        return *size, 1 if image.mode in _GRAY_MODES else 3


def decode_image(source: Path | bytes | Image.Image, shape: Shape) -> NDArray[np.uint8]:
    """Decode an image as `load_image` does and resize it (bilinear, antialiased) to the shape (H, W, C)."""
    from PIL import Image

    height, width, channels = shape
    pixels = _decode(source).convert("L" if channels == 1 else "RGB")
    if pixels.size != (width, height):
        pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(pixels).reshape(shape)


def _decode(source: Path | bytes | Image.Image) -> Image.Image:
    from PIL import ImageOps

    with _open_image(source) as image:
        upright = _to_8_bits(ImageOps.exif_transpose(image) or image)
        upright.load()
        return upright


def load_image(source: ImageLike) -> Image.Image:
    """Return an image in RGB, upright and with 8 bits per channel.

    The EXIF orientation is applied, as transformers' `load_image` does. Transparent pixels become white,
    16-bit grayscale keeps the upper 8 bits (Pillow's conversion would clip it to white), and of an animation
    the first frame is taken.

    source: a path, the content of a file, a PIL image, or a NumPy array or tensor: (H, W), (H, W, C) or
    (C, H, W) with 1, 3 or 4 channels, integers from 0 to 255 or floats from 0 to 1.
    """
    if isinstance(source, str | PathLike):
        name = str(source)[:200]
        if re.match(r"https?://|data:", name):
            raise InvalidValueError("image", name[:40], "a file on this machine", hint="download it first")
        if os.path.isdir(source):
            raise FileProblemError(name, "is a folder", hint="name an image file")
        if not os.path.isfile(source):
            raise FileMissingError(name, kind="image", hint="this model takes image files")
        source = Path(source)
    else:
        name = "the image"
        source = source if isinstance(source, bytes) or is_pillow_image(source) else _from_array(source)
    try:
        image = _decode(source).convert("RGB")  # type: ignore[arg-type]
        if max(image.size) > MAX_ASPECT_RATIO * min(image.size):
            size = f"{image.width:,} x {image.height:,} pixels"
            raise BadImageError(f"has {size}; expected an aspect ratio of at most {MAX_ASPECT_RATIO}")
        return image
    except (BadImageError, ValueError) as error:
        raise FileProblemError(name, str(error)) from None


def read_numbers(path: Path) -> NDArray[np.int64]:
    """Return the class or instance numbers of a mask, (H, W): its gray values or palette indices."""
    try:
        with _open_image(path) as image:
            _check_mask_mode(image)
            return np.asarray(image).astype(np.int64)
    except BadImageError as error:
        raise FileProblemError(path, str(error)) from None


def read_mask_header(path: Path) -> tuple[int, int, bool]:
    """Return height and width of a mask, and whether it has more than 8 bits, without decoding it."""
    with _open_image(path) as image:
        _check_mask_mode(image)
        return image.height, image.width, image.mode.startswith("I")


def _check_mask_mode(image: Image.Image) -> None:
    if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
        raise BadImageError(f"has the mode {image.mode}; a mask has one number per pixel")


def is_pillow_image(value: object) -> bool:
    """Whether a value is a PIL image; does not import PIL."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def is_image_array(value: object) -> bool:
    """Whether a value is the array or tensor of one image."""
    return hasattr(value, "__array__") and getattr(value, "ndim", 0) in (2, 3) and not is_pillow_image(value)


def is_single_image(value: object) -> bool:
    """Whether a value is one image rather than several."""
    return isinstance(value, str | bytes | PathLike) or is_pillow_image(value) or is_image_array(value)


def _from_array(value: Any) -> Image.Image:
    """Convert an array or tensor to a PIL image."""
    from PIL import Image

    if not hasattr(value, "__array__"):
        raise InvalidValueError("image", type(value).__name__, "a path, bytes, a PIL image or an array")
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    match array.shape:
        case (_, _):
            array = array[..., None]
        case (1 | 3 | 4, _, width) if width not in (1, 3, 4):
            array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        expected = "(H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels"
        raise InvalidValueError("shape of the image", array.shape, expected)
    pixels = to_bytes(array)
    if pixels is None:
        raise InvalidValueError("image", array.dtype.name, "integers from 0 to 255 or floats from 0 to 1")
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))


def to_bytes(array: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Convert floats from 0 to 1, or integers from 0 to 255, to bytes; None if a value is out of range."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    is_float = array.dtype.kind == "f"
    if array.dtype.kind not in "iuf" or not ((array >= 0) & (array <= (1 if is_float else 255))).all():
        return None
    return (np.rint(array * 255.0) if is_float else array).astype(np.uint8)


def decode_base64(image: str) -> bytes:
    """Return the content of an image file from base64 or a `data:image/...;base64,` URL."""
    head, comma, body = image.partition(",")
    try:
        if comma and not (head.startswith("data:image/") and head.endswith(";base64")):
            raise ValueError
        return base64.b64decode(body if comma else image, validate=True)
    except ValueError:
        expected = "base64, or a data:image/...;base64 URL"
        raise InvalidValueError("image", image[:40], expected) from None


def list_images(paths: Sequence[str | PathLike[str]]) -> list[Path]:
    """Return image files in order: files as they are, the images of folders, and matches of patterns.

    Folders are searched recursively for names that end like an image's; hidden files are skipped.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = [Path(parent, name) for parent, _, names in os.walk(path) for name in names]
            images = sorted(file for file in found if is_image_name(file))
            if not images:
                raise FileProblemError(path, "has no images")
            files += images
        elif glob.has_magic(str(path)) and not path.exists():
            matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
            if not matches:
                raise FileMissingError(path, kind="image")
            files += matches
        else:
            files.append(path)
    return files


def is_image_name(path: Path) -> bool:
    """Whether a file name ends like that of an image and is not hidden."""
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")


def _to_8_bits(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode == "F":
        raise BadImageError("has floating-point pixels; save it with 8 bits per channel")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise BadImageError("has more than 16 bits per pixel; save it with 8")
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image


# --- data sets


class ImageSource(ABC):
    """Labeled images that can be read repeatedly; they may differ in size."""

    @abstractmethod
    def classes(self) -> list[str]:
        """Return the class names in order, or an empty list if the source does not list them."""

    @abstractmethod
    def files(self, errors: RowErrors) -> Iterator[tuple[RowCounter, Iterator[Encoded]]]:
        """Yield the row counter and the encoded images of each file or folder."""

    def shape(self) -> Shape:
        """Return the size of the majority of images, else the median size; one channel if all are grayscale.

        The longer side is at most MAX_DEFAULT_SIDE. All headers are read, because a single color image makes
        all of them color.
        """
        sizes: Counter[tuple[int, int]] = Counter()
        channels = 1
        for _, images in self.files(RowErrors()):
            for _, source, _ in images:
                with suppress(BadImageError):  # reported when it is decoded
                    height, width, depth = read_image_shape(source)
                    sizes[height, width] += 1
                    channels = max(channels, depth)
        if not sizes:
            return 1, 1, 3
        (height, width), count = sizes.most_common(1)[0]
        if 2 * count <= sizes.total():
            height, width = (int(n) for n in np.median(np.array(list(sizes.elements())), axis=0))
        scale = min(1.0, MAX_DEFAULT_SIDE / max(height, width))
        return max(1, round(height * scale)), max(1, round(width * scale)), channels

    def read(self, shape: Shape, errors: RowErrors) -> Iterator[tuple[NDArray[np.uint8], Label]]:
        """Yield images (H, W, C) with their label, a class name or number; bad images go to `errors`."""
        names = self.classes()
        for counter, images in self.files(errors):
            for row, source, label in images:
                try:
                    image, name = decode_image(source, shape), _parse_label(label, names)
                except BadImageError as error:
                    counter.add_error(row, str(error), file=source if isinstance(source, Path) else None)
                    continue
                counter.good += 1
                yield image, name
            counter.finish()


def _parse_label(label: object, names: list[str]) -> Label:
    if isinstance(label, str) and label.strip():
        return label.strip()
    if not isinstance(label, int) or (names and not 0 <= label < len(names)):
        raise BadImageError(f"has label {label!r:.40}; expected a name or a class number")
    return names[label] if names else label


@dataclass(frozen=True)
class ClassFolders(ImageSource):
    """A folder with a folder per class; images may be nested deeper."""

    folder: Path

    def classes(self) -> list[str]:
        return [entry.name for entry in _entries(self.folder) if entry.is_dir()]

    def files(self, errors: RowErrors) -> Iterator[tuple[RowCounter, Iterator[Encoded]]]:
        yield errors.start_file(self.folder, unit="file", items="images"), self._images()

    def _images(self) -> Iterator[Encoded]:
        for name in self.classes():
            for parent, folders, files in os.walk(self.folder / name):
                folders.sort()
                yield from ((None, Path(parent, file), name) for file in sorted(files) if file[0] != ".")


@dataclass(frozen=True)
class ParquetImages(ImageSource):
    """Parquet files with a column of encoded images (bytes, or a struct with `bytes`) and one of labels."""

    paths: tuple[Path, ...]

    def classes(self) -> list[str]:
        """Return the names of integer labels, if the metadata of the first file has them."""
        metadata = ParquetReader(self.paths[0]).metadata.get(b"huggingface")
        try:
            features = parse_json(metadata)["info"]["features"] if metadata else {}
            label = find_column(list(features), _LABEL_NAMES)
            return [str(name) for name in features[label]["names"]] if label else []
        except (ValueError, KeyError, TypeError):
            return []

    def files(self, errors: RowErrors) -> Iterator[tuple[RowCounter, Iterator[Encoded]]]:
        for path in self.paths:
            counter = errors.start_file(path, unit="row", items="images")
            yield counter, self._images(ParquetReader(path), counter)

    @staticmethod
    def _images(table: ParquetReader, counter: RowCounter) -> Iterator[Encoded]:
        image = find_column(table.names, [*(f"{name}.bytes" for name in _IMAGE_NAMES), *_IMAGE_NAMES])
        label = find_column(table.names, _LABEL_NAMES)
        if image is None or label is None:
            kind = f"column of {table.path}"
            raise UnknownNameError(kind, "image" if image is None else "label", table.names)
        for row, (data, value) in table.rows([image, label], counter):
            yield row, data if isinstance(data, bytes) else b"", value


def find_inside(folders: Sequence[Path], name: str) -> Path | None:
    """Return the file `name` of the first folder that has it; raise ValueError if it is outside of them all.

    Names come from annotations, which must not open other files. A link may lead to another of the folders.
    """
    if not isinstance(name, str):
        raise TypeError
    outside = False
    for folder in folders:
        file = folder / name
        if os.path.isabs(name) or not _is_inside(os.path.abspath(file), os.path.abspath(folder)):
            outside = True
        elif os.path.isfile(file):
            if any(_is_inside(os.path.realpath(file), _real_path(allowed)) for allowed in folders):
                return file
            outside = True
    if outside:
        raise ValueError(f"names a file outside of the folder, {name:.100}")
    return None


def _is_inside(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def _real_path(folder: Path) -> str:
    return _resolved(os.path.abspath(folder))


_resolved = cache(os.path.realpath)  # of absolute paths, because the working directory may change


# --- the data set at a path


def find_images(path: str | Path, split: Split = "train") -> ImageSource:
    """Open the images at `path`: a folder per class, or Parquet.

    split: which split to read if the path has both.
    """
    path = Path(path)
    if not path.exists():
        raise FileMissingError(path, "file or folder")
    entries = _entries(path) if path.is_dir() else [path]
    folders = [entry for entry in entries if entry.is_dir()]
    if folders:
        named = [_split_of(entry.name) and any(map(Path.is_dir, entry.iterdir())) for entry in folders]
        return ClassFolders(_choose_split(path, folders, split)[0] if all(named) else path)
    files = [entry for entry in entries if entry.suffix == ".parquet"]
    if files:
        return ParquetImages(tuple(files if path.is_file() else _choose_split(path, files, split)))
    hint = "use a folder per class or a Parquet file"
    if any(map(is_array_file, entries)):
        hint = "write a folder per class with `python -m experiments.image_folders` of the repository"
    raise FileProblemError(path, "is not a known image data set", hint=hint)


def is_array_file(path: str | Path) -> bool:
    """Whether a file has the name of an image set in arrays, a format that earlier versions read."""
    return str(path).removesuffix(".gz").endswith((".npz", ".bin", "ubyte"))


def _entries(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def single_path(paths: Sequence[str]) -> Path:
    """Return the path of the data set, the only path."""
    if len(set(paths)) != 1 and not is_array_file(paths[0]):
        raise InvalidValueError("images", list(paths), "one path, e.g. a folder that has all of them")
    return Path(paths[0])


def list_files(path: Path) -> list[Path]:
    """List the files of the data set at a path, sorted."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def list_names(path: Path) -> list[str]:
    """List the same files relative to the path, since a folder's name may be the class of its images."""
    return [file.relative_to(path).as_posix() if path.is_dir() else file.name for file in list_files(path)]


def _split_of(name: str) -> Split | None:
    """Return the split in a name: train-00000-of-00001.parquet, val."""
    first = re.split(r"[-_.]", name.lower())[0]
    if first in _TEST:
        return "test"
    return "train" if first in ("train", "training", "data") else None


def _choose_split(folder: Path, entries: list[Path], split: Split) -> list[Path]:
    """Return the entries of one split; entries without a split in their name are for training."""
    chosen = [entry for entry in entries if (_split_of(entry.name) or "train") == split]
    if not chosen:
        raise FileMissingError(folder, f"{split} split of the images")
    return chosen

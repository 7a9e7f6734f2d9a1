"""Read labelled images: folders per class, Parquet, IDX pairs, CIFAR's binary files and NumPy's .npz.

`decode_image` turns one encoded image into pixels; `find_images` opens the data set at a path. Sources yield
blocks of a few hundred images, so that no file is in memory as a whole.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from glassformer.data.readers import ParquetTable, find_column
from glassformer.data.row_errors import RowCounter, RowErrors
from glassformer.errors import EmptyInputError, FileMissingError, FileProblemError, InvalidValueError

if TYPE_CHECKING:
    from PIL import Image

Label = int | str
Shape = tuple[int, int, int]  # H, W, C of every image
Block = tuple[NDArray[np.uint8], Sequence[Label]]  # images (n, H, W, C) and n labels
Split = Literal["train", "test"]
MAX_PIXELS = 64_000_000  # a small file can claim an image that fills the memory
MAX_DEFAULT_SIDE = 224
_BLOCK_BYTES = 1 << 20
# Formats that Pillow decodes itself; others would start external programs.
_FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA", "ICO", "JPEG2000", "AVIF")
_GRAY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
_ROTATED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_ORIENTATION = 0x0112
_IMAGE_NAMES = ("image", "img", "images", "picture", "jpg", "png")
_LABEL_NAMES = ("label", "labels", "class", "fine_label", "category", "target")
_IDX = re.compile(r"(.*?)(images|labels)([-.]idx)[31](-ubyte)?(\.gz)?")
_TEST = ("test", "t10k", "val", "valid", "validation", "eval")
_NPZ_KEYS = (("images", "labels"), ("x", "y"), ("X", "y"), ("data", "labels"), ("image", "label"))


# --- one image


class ImageHeader(NamedTuple):
    """Size and color of an image, from its header."""

    height: int
    width: int
    gray: bool


class BadImageError(Exception):
    """Why one image cannot be used; completes a message that starts with its name."""


def read_image_header(source: Path | bytes) -> ImageHeader:
    """Size and color without decoding."""
    from PIL import Image

    with _open_image(source) as image:
        width, height = image.size
        try:
            rotated = Image.Image.getexif(image).get(_ORIENTATION) in _ROTATED  # PNG's would decode it
        except Exception as error:
            raise BadImageError(f"is damaged ({_reason(error)})") from None
        if rotated:
            width, height = height, width
        return ImageHeader(height, width, image.mode in _GRAY_MODES)


def decode_image(source: Path | bytes, shape: Shape) -> NDArray[np.uint8]:
    """The pixels, upright, resized to the shape (H, W, C).

    Transparency becomes white; 16-bit gray keeps its upper 8 bits.
    """
    from PIL import ImageOps

    with _open_image(source) as image:
        try:
            upright = _to_8_bits(ImageOps.exif_transpose(image) or image)
            pixels = upright.convert("L" if shape[2] == 1 else "RGB")
        except BadImageError:
            raise
        except Exception as error:  # decoders fail in as many ways as there are formats
            raise BadImageError(f"is damaged ({_reason(error)})") from None
    return resize_image(np.asarray(pixels).reshape(pixels.height, pixels.width, shape[2]), shape[:2])


def resize_image(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The image (H, W, C) at another size (height, width), bilinear with antialiasing."""
    if image.shape[:2] == size:
        return image
    from PIL import Image

    flat = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    resized = flat.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(resized).reshape(*size, image.shape[2])


def _to_8_bits(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode == "F":
        raise BadImageError("has floating-point pixels; save it with 8 bits per channel")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise BadImageError("has more than 16 bits per pixel; save it with 8")
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image


def _open_image(source: Path | bytes) -> Image.Image:
    from PIL import Image

    Image.init()
    formats = tuple(name for name in _FORMATS if name in Image.OPEN)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images and odd metadata; the size is checked below
            image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats)
    except Image.UnidentifiedImageError:
        raise BadImageError("is not an image") from None
    except Image.DecompressionBombError:
        raise BadImageError(f"has more than {MAX_PIXELS:,} pixels") from None
    except Exception as error:
        raise BadImageError(f"cannot be read ({_reason(error)})") from None
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise BadImageError(f"has {image.width * image.height:,} pixels, more than {MAX_PIXELS:,}")
    return image


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.strip().split("\n")[0][:120] or type(error).__name__


def default_shape(headers: Iterator[ImageHeader]) -> Shape:
    """The shape (H, W, C) to resize images to: the most common if the majority has it, else the median.

    The longer side is at most MAX_DEFAULT_SIDE. One channel if all images are gray.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    color = False
    for header in headers:
        sizes[header.height, header.width] += 1
        color |= not header.gray
    if not sizes:
        return 1, 1, 3  # no image can be read; the errors follow when they are decoded
    (height, width), count = sizes.most_common(1)[0]
    if 2 * count <= sizes.total():
        height, width = (int(n) for n in np.median(np.array(list(sizes.elements())), axis=0))
    scale = min(1.0, MAX_DEFAULT_SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale)), 3 if color else 1


# --- data sets


class ImageSource(Protocol):
    """Labelled images that can be read repeatedly."""

    def shape(self) -> Shape:
        """The shape of every image, unless another size is requested."""

    def classes(self) -> list[str]:
        """The class names in order, if the source lists them; else none."""

    def blocks(self, shape: Shape, errors: RowErrors) -> Iterator[Block]:
        """All images with their labels: class names or numbers."""


@dataclass(frozen=True)
class ClassFolders:
    """A folder with a folder per class; images may be nested deeper."""

    folder: Path

    def classes(self) -> list[str]:
        entries = [entry for entry in os.scandir(self.folder) if not entry.name.startswith(".")]
        return sorted(entry.name for entry in entries if entry.is_dir())

    def shape(self) -> Shape:
        return default_shape(self._headers())

    def blocks(self, shape: Shape, errors: RowErrors) -> Iterator[Block]:
        counter = errors.start_file(self.folder, unit="file")
        for path, label in self._files():
            try:
                image = decode_image(path, shape)
            except BadImageError as error:
                counter.add_error(None, str(error), file=path)
                continue
            counter.good += 1
            yield image[None], [label]
        counter.finish()

    def _files(self) -> Iterator[tuple[Path, str]]:
        for name in self.classes():
            for here, folders, files in os.walk(self.folder / name):
                folders.sort()
                for file in sorted(files):
                    if not file.startswith("."):
                        yield Path(here, file), name

    def _headers(self) -> Iterator[ImageHeader]:
        """Of every file, because a single color image makes all of them color."""
        for path, _ in self._files():
            try:
                yield read_image_header(path)
            except BadImageError:
                continue  # reported when it is decoded


@dataclass(frozen=True)
class ParquetImages:
    """Parquet files with a column of encoded images (bytes, or a struct with `bytes`) and one of labels."""

    files: tuple[Path, ...]

    def classes(self) -> list[str]:
        """The names of integer labels, if the first file's metadata has them."""
        from pyarrow.parquet import read_schema

        ParquetTable(self.files[0])  # raises if it cannot be read
        metadata = (read_schema(self.files[0]).metadata or {}).get(b"huggingface")
        try:
            features = json.loads(metadata)["info"]["features"] if metadata else {}
            label = find_column(list(features), _LABEL_NAMES)
            return [str(name) for name in features[label]["names"]] if label else []
        except (ValueError, KeyError, TypeError):
            return []

    def shape(self) -> Shape:
        return default_shape(self._headers())

    def blocks(self, shape: Shape, errors: RowErrors) -> Iterator[Block]:
        names = self.classes()
        for path in self.files:
            counter = errors.start_file(path, unit="row")
            for row, data, label in self._rows(path, counter):
                try:
                    image, class_name = decode_image(data, shape), _parse_label(label, names)
                except BadImageError as error:
                    counter.add_error(row, str(error))
                    continue
                counter.good += 1
                yield image[None], [class_name]
            counter.finish()

    def _headers(self) -> Iterator[ImageHeader]:
        for path in self.files:
            for _, data, _ in self._rows(path, RowCounter(str(path))):
                try:
                    yield read_image_header(data)
                except BadImageError:
                    continue

    @staticmethod
    def _rows(path: Path, counter: RowCounter) -> Iterator[tuple[int, bytes, object]]:
        table = ParquetTable(path)
        image = find_column(table.names, [*(f"{name}.bytes" for name in _IMAGE_NAMES), *_IMAGE_NAMES])
        label = find_column(table.names, _LABEL_NAMES)
        if image is None or label is None:
            raise table.unknown_column("image" if image is None else "label", table.names)
        for row, (data, value) in table.rows([image, label], counter):
            if isinstance(data, bytes):
                yield row, data, value
            else:
                counter.add_error(row, "has no image")


def _parse_label(label: object, names: list[str]) -> Label:
    if isinstance(label, str) and label.strip():
        return label.strip()
    if not isinstance(label, int):
        raise BadImageError(f"has label {label!r:.40}, not a name or number")
    if not names:
        return label
    if not 0 <= label < len(names):
        raise BadImageError(f"has label {label}, but there are {len(names)} classes")
    return names[label]


@contextmanager
def _open_binary(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise _truncated(path) from None


def _truncated(path: Path) -> FileProblemError:
    return FileProblemError(path, "is damaged or truncated", hint="download or write it again")


def _read_exactly(file: IO[bytes] | gzip.GzipFile, count: int, path: Path) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise _truncated(path)
    return data


def _block_sizes(count: int, image_bytes: int) -> Iterator[int]:
    """How many images to read at a time."""
    most = max(1, _BLOCK_BYTES // image_bytes)
    while count > 0:
        yield min(most, count)
        count -= most


@dataclass(frozen=True)
class IdxPair:
    """A pair of IDX files: images (N, H, W) and labels (N)."""

    images: Path
    labels: Path

    def shape(self) -> Shape:
        with _open_binary(self.images) as file:
            _, height, width = self._header(file, self.images, 3)
        return height, width, 1

    def classes(self) -> list[str]:
        return []

    def blocks(self, shape: Shape, errors: RowErrors) -> Iterator[Block]:
        with _open_binary(self.images) as images, _open_binary(self.labels) as labels:
            count, height, width = self._header(images, self.images, 3)
            (label_count,) = self._header(labels, self.labels, 1)
            if count != label_count:
                raise FileProblemError(
                    self.images, f"has {count:,} images, but {self.labels} has {label_count:,} labels"
                )
            for n in _block_sizes(count, height * width):
                data = _read_exactly(images, n * height * width, self.images)
                pixels = np.frombuffer(data, np.uint8).reshape(n, height, width, 1)
                yield pixels, list(_read_exactly(labels, n, self.labels))

    @staticmethod
    def _header(file: IO[bytes] | gzip.GzipFile, path: Path, dimensions: int) -> tuple[int, ...]:
        if _read_exactly(file, 4, path) != bytes([0, 0, 8, dimensions]):  # 8: unsigned bytes
            raise FileProblemError(path, f"is not an IDX file of {'images' if dimensions == 3 else 'labels'}")
        sizes = np.frombuffer(_read_exactly(file, 4 * dimensions, path), ">u4")
        if not sizes.all():
            raise EmptyInputError(f"file {path}")
        return tuple(int(n) for n in sizes)


@dataclass(frozen=True)
class CifarFiles:
    """CIFAR-10's binary records: a label byte, then 1,024 red, 1,024 green and 1,024 blue bytes."""

    files: tuple[Path, ...]

    SIDE = 32
    RECORD = 1 + 3 * SIDE * SIDE

    def shape(self) -> Shape:
        return self.SIDE, self.SIDE, 3

    def classes(self) -> list[str]:
        """The published list of names, if it is in the same folder."""
        path = self.files[0].with_name("batches.meta.txt")
        return path.read_text("utf-8").split() if path.is_file() else []

    def blocks(self, shape: Shape, errors: RowErrors) -> Iterator[Block]:
        names = self.classes()
        for path in self.files:
            with _open_binary(path) as file:
                while data := file.read(_BLOCK_BYTES // self.RECORD * self.RECORD):
                    if len(data) % self.RECORD:
                        raise FileProblemError(path, "is truncated or not in CIFAR-10's binary format")
                    records = np.frombuffer(data, np.uint8).reshape(-1, self.RECORD)
                    pixels = records[:, 1:].reshape(-1, 3, self.SIDE, self.SIDE).transpose(0, 2, 3, 1)
                    yield pixels, [names[n] if n < len(names) else int(n) for n in records[:, 0]]


@dataclass(frozen=True)
class NpzArrays:
    """Two arrays of an .npz file: images (N, H, W), (N, H, W, C) or (N, C, H, W), and labels (N)."""

    path: Path
    images: str
    labels: str

    def shape(self) -> Shape:
        with _open_npz(self.path) as archive, archive.open(f"{self.images}.npy") as file:
            return self._layout(self._header(file, self.images)[0])[0]

    def classes(self) -> list[str]:
        return []

    def blocks(self, shape: Shape, errors: RowErrors) -> Iterator[Block]:
        with _open_npz(self.path) as archive:
            labels = self._labels(archive)
            with archive.open(f"{self.images}.npy") as file:
                full, dtype = self._header(file, self.images)
                shape, channels_first = self._layout(full)
                if full[0] != len(labels):
                    raise self._problem(self.images, f"has {full[0]:,} images for {len(labels):,} labels")
                size, begin = math.prod(full[1:]) * dtype.itemsize, 0
                for n in _block_sizes(full[0], size):
                    array = np.frombuffer(_read_exactly(file, n * size, self.path), dtype)
                    array = array.reshape(n, *full[1:])
                    if channels_first:
                        array = array.transpose(0, 2, 3, 1)
                    yield self._to_bytes(array).reshape(n, *shape), labels[begin : begin + n]
                    begin += n

    def _problem(self, name: str, problem: str) -> FileProblemError:
        return FileProblemError(self.path, f"'{name}' {problem}")

    def _header(self, file: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of one array; objects would have to be unpickled, so they are refused."""
        formats = np.lib.format
        try:
            version = formats.read_magic(file)
            read = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
            shape, fortran_order, dtype = read(file)
        except ValueError:
            raise self._problem(name, "is not a NumPy array") from None
        if dtype.hasobject:
            raise self._problem(name, "contains Python objects, which are never unpickled")
        if fortran_order and len(shape) > 1:
            raise self._problem(name, "is in Fortran order; write it with numpy.ascontiguousarray")
        return shape, dtype

    def _layout(self, full: tuple[int, ...]) -> tuple[Shape, bool]:
        """The shape (H, W, C) of an image, and whether the file has channels first."""
        match full:
            case (_, height, width) if height and width:
                return (height, width, 1), False
            case (_, height, width, (1 | 3) as channels) if height and width:
                return (height, width, channels), False
            case (_, (1 | 3) as channels, height, width) if height and width:
                return (height, width, channels), True
        raise self._problem(
            self.images, f"has shape {full}; expected (N, H, W), (N, H, W, 1 or 3) or (N, 1 or 3, H, W)"
        )

    def _labels(self, archive: zipfile.ZipFile) -> list[Label]:
        with archive.open(f"{self.labels}.npy") as file:
            shape, dtype = self._header(file, self.labels)
            if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)) or dtype.kind not in "iubU":
                raise self._problem(
                    self.labels, f"has shape {shape} of {dtype}; expected (N) integers or names"
                )
            data = _read_exactly(file, math.prod(shape) * dtype.itemsize, self.path)
        found: list[Label] = np.frombuffer(data, dtype).tolist() if shape[0] else []
        return [int(label) if isinstance(label, bool) else label for label in found]

    def _to_bytes(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        """Floats from 0 to 1 and integers from 0 to 255 as bytes."""
        if array.dtype == np.uint8:
            return array
        is_float = array.dtype.kind == "f"
        if array.dtype.kind not in "iuf" or not (
            (array >= 0).all() and (array <= (1 if is_float else 255)).all()
        ):
            raise self._problem(
                self.images, f"({array.dtype}) is out of range; expected integers to 255 or floats to 1"
            )
        return (np.rint(array * 255.0) if is_float else array).astype(np.uint8)


@contextmanager
def _open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, KeyError):
        raise _truncated(path) from None


# --- which data set a path means


def find_images(path: str | Path, split: Split = "train") -> ImageSource:
    """The images at `path`, recognized by file names; `split` chooses if there are several parts."""
    path = Path(path)
    if path.is_dir():
        return _find_in_folder(path, split)
    if not path.is_file():
        raise FileMissingError(path, "folder or file of images")
    if _is_idx(path):
        return _idx_pair(path)
    match path.name.removesuffix(".gz").rpartition(".")[2]:
        case "npz":
            return _npz(path, split)
        case "parquet":
            return ParquetImages((path,))
        case "bin":
            return CifarFiles((path,))
    raise _unknown_format(path)


def _unknown_format(path: Path) -> FileProblemError:
    return FileProblemError(
        path,
        "is not a known image data set",
        hint="use a folder per class, a Parquet or .npz file, a pair of IDX files or CIFAR's .bin files",
    )


def single_path(paths: Sequence[str]) -> Path:
    """The one data set that paths mean: a single path, or both files of an IDX pair."""
    every = [Path(path) for path in paths]
    if len(every) == 2 and all(map(_is_idx, every)) and len({_idx_pair(path) for path in every}) == 1:
        return every[0]
    if len(every) != 1:
        raise InvalidValueError("images", list(paths), "one path, e.g. a folder that has all of them")
    return every[0]


def list_files(path: Path) -> list[Path]:
    """The files of the data set at a path, sorted."""
    if path.is_file() and _is_idx(path):
        pair = _idx_pair(path)
        return [pair.images, pair.labels]
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def list_names(path: Path) -> list[str]:
    """The same files relative to the path; a folder's name may be the class of its images."""
    return [file.relative_to(path).as_posix() if path.is_dir() else file.name for file in list_files(path)]


def _is_idx(path: Path) -> bool:
    return _IDX.fullmatch(path.name) is not None


def _find_in_folder(folder: Path, split: Split) -> ImageSource:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    folders = [entry for entry in entries if entry.is_dir()]
    splits = [entry for entry in folders if _split_of(entry.name) is not None]
    if splits and len(splits) == len(folders) and all(_has_folders(entry) for entry in splits):
        return ClassFolders(_choose_split(folder, splits, split)[0])
    if folders:
        return ClassFolders(folder)
    idx = [entry for entry in entries if (found := _IDX.fullmatch(entry.name)) and found[2] == "images"]
    if idx:
        return _idx_pair(_choose_split(folder, idx, split)[0])
    for suffix in ("parquet", "bin", "npz"):
        files = [entry for entry in entries if entry.name.removesuffix(".gz").endswith(f".{suffix}")]
        if files:
            chosen = tuple(_choose_split(folder, files, split))
            if suffix == "npz":
                return _npz(chosen[0], split)
            return ParquetImages(chosen) if suffix == "parquet" else CifarFiles(chosen)
    raise _unknown_format(folder)


def _split_of(name: str) -> Split | None:
    """The split in a name: test_batch.bin, train-00000-of-00001.parquet, t10k-images-idx3-ubyte."""
    first = re.split(r"[-_.]", name.lower())[0]
    if first in _TEST:
        return "test"
    return "train" if first in ("train", "training", "data") else None


def _choose_split(folder: Path, entries: list[Path], split: Split) -> list[Path]:
    """The entries of one split; those that name none are for training."""
    chosen = [entry for entry in entries if (_split_of(entry.name) or "train") == split]
    if not chosen:
        raise FileMissingError(folder, f"{split} split of the images")
    return chosen


def _has_folders(folder: Path) -> bool:
    return any(entry.is_dir() for entry in folder.iterdir())


def _idx_pair(path: Path) -> IdxPair:
    """Images and labels from the name of either; each may be compressed or not."""
    found = _IDX.fullmatch(path.name)
    assert found is not None
    pair = []
    for what, dimensions in (("images", 3), ("labels", 1)):
        name = f"{found[1]}{what}{found[3]}{dimensions}{found[4] or ''}"
        candidates = [path.with_name(name + suffix) for suffix in (found[5] or "", "", ".gz")]
        existing = [candidate for candidate in candidates if candidate.is_file()]
        if not existing:
            raise FileMissingError(candidates[0], f"IDX file of {what}")
        pair.append(existing[0])
    return IdxPair(*pair)


def _npz(path: Path, split: Split) -> NpzArrays:
    with _open_npz(path) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
    pairs = [(f"x_{split}", f"y_{split}"), (f"{split}_images", f"{split}_labels")]
    if not any(f"x_{part}" in names or f"{part}_images" in names for part in ("train", "test")):
        pairs += _NPZ_KEYS
    for images, labels in pairs:
        if images in names and labels in names:
            return NpzArrays(path, images, labels)
    raise FileProblemError(
        path,
        f"has the arrays {', '.join(sorted(names)) or 'none'}",
        hint=f"name them images and labels, or x_{split} and y_{split}",
    )

"""Images that lie in files as plain arrays: IDX pairs, CIFAR's binary records, NumPy's .npz.

Each gives blocks of a few hundred images, so that no file is ever in memory whole. They come in the size they
were stored in; a fault of such a file makes the rest of it unusable, so it is an error and not a problem.
"""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glassformer.data.problems import Problems
from glassformer.errors import GlassformerError

Readable = IO[bytes] | gzip.GzipFile
Label = int | str
Shape = tuple[int, int, int]  # H, W, C of every image
Block = tuple[NDArray[np.uint8], Sequence[Label]]  # images (n, H, W, C) and n labels
_BLOCK = 1 << 20  # bytes, or one image where that is more
_IDX_BYTES = 8  # the only kind of element that images and labels come in


class ImageSource(Protocol):
    """Images with labels, to be read as often as one likes."""

    def shape(self) -> Shape:
        """The shape to bring every image to, unless another size is asked for."""

    def classes(self) -> list[str]:
        """The classes in their order, where the source lists them; else none."""

    def blocks(self, shape: Shape, problems: Problems) -> Iterator[Block]:
        """All images from the first on, with their labels: names of classes, or numbers to tell them by."""


@contextmanager
def binary(path: Path) -> Iterator[Readable]:
    """A file's bytes, unpacked where it ends in .gz; every way it can fail is a sentence."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise GlassformerError(f"{path} is damaged or cut short; fetch it again") from None
    except OSError as error:
        raise GlassformerError(f"{path} cannot be read ({error.strerror or error})") from None


def exactly(file: Readable, count: int, path: Path) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise GlassformerError(f"{path} is cut short; fetch it again")
    return data


def _numbers(count: int, size: int) -> Iterator[int]:
    """How many images of so many bytes to read at a time, until all are."""
    most = max(1, _BLOCK // size)
    while count > 0:
        yield min(most, count)
        count -= most


def ended(file: Readable, path: Path) -> None:
    if file.read(1):
        raise GlassformerError(f"{path} goes on after the last image that it announces; fetch it again")


@dataclass(frozen=True)
class Idx:
    """A pair of IDX files: images (N, H, W) and labels (N)."""

    images: Path
    labels: Path

    def shape(self) -> Shape:
        with binary(self.images) as file:
            _, height, width = self._header(file, self.images, 3)
        return height, width, 1

    def classes(self) -> list[str]:
        return []

    def blocks(self, shape: Shape, problems: Problems) -> Iterator[Block]:
        with binary(self.images) as images, binary(self.labels) as labels:
            count, height, width = self._header(images, self.images, 3)
            (named,) = self._header(labels, self.labels, 1)
            if count != named:
                raise GlassformerError(
                    f"{self.images} holds {count:,} images but {self.labels} {named:,} labels; "
                    "they must be of the same set"
                )
            for n in _numbers(count, height * width):
                data = exactly(images, n * height * width, self.images)
                known = exactly(labels, n, self.labels)
                yield np.frombuffer(data, np.uint8).reshape(n, height, width, 1), list(known)
            ended(images, self.images)
            ended(labels, self.labels)

    @staticmethod
    def _header(file: Readable, path: Path, dimensions: int) -> tuple[int, ...]:
        if exactly(file, 4, path) != bytes([0, 0, _IDX_BYTES, dimensions]):
            what = "images" if dimensions == 3 else "labels"
            raise GlassformerError(f"{path} is not an IDX file of {what}: its first four bytes say otherwise")
        sizes = np.frombuffer(exactly(file, 4 * dimensions, path), ">u4")
        if not sizes.all():
            raise GlassformerError(f"{path} holds nothing: its sizes are {sizes.tolist()}")
        return tuple(int(n) for n in sizes)


@dataclass(frozen=True)
class Cifar:
    """CIFAR-10's binary records: a label byte, then 1,024 red, 1,024 green and 1,024 blue bytes."""

    files: tuple[Path, ...]

    SIDE = 32
    RECORD = 1 + 3 * SIDE * SIDE

    def shape(self) -> Shape:
        return self.SIDE, self.SIDE, 3

    def classes(self) -> list[str]:
        """The published list of names, where it lies beside."""
        beside = self.files[0].with_name("batches.meta.txt")
        return beside.read_text("utf-8").split() if beside.is_file() else []

    def blocks(self, shape: Shape, problems: Problems) -> Iterator[Block]:
        names = self.classes()
        for path in self.files:
            total = 0
            with binary(path) as file:
                while data := file.read(_BLOCK // self.RECORD * self.RECORD):
                    total += len(data)
                    if len(data) % self.RECORD:
                        raise GlassformerError(
                            f"{path} is {total:,} bytes long, not a multiple of {self.RECORD:,}: it is cut "
                            "short or not CIFAR-10's binary layout"
                        )
                    records = np.frombuffer(data, np.uint8).reshape(-1, self.RECORD)
                    pixels = records[:, 1:].reshape(-1, 3, self.SIDE, self.SIDE).transpose(0, 2, 3, 1)
                    yield pixels, [names[n] if n < len(names) else int(n) for n in records[:, 0]]
            if not total:
                raise GlassformerError(f"{path} is empty")


@dataclass(frozen=True)
class Npz:
    """Two arrays of an .npz file: images (N, H, W), (N, H, W, C) or (N, C, H, W), and labels (N)."""

    path: Path
    images: str
    labels: str

    def shape(self) -> Shape:
        with self._members() as archive, archive.open(f"{self.images}.npy") as file:
            return self._layout(self._header(file, self.images)[0])[0]

    def classes(self) -> list[str]:
        return []

    def blocks(self, shape: Shape, problems: Problems) -> Iterator[Block]:
        with self._members() as archive:
            labels = self._labels(archive)
            with archive.open(f"{self.images}.npy") as file:
                full, kind = self._header(file, self.images)
                shape, channels_first = self._layout(full)
                if full[0] != len(labels):
                    raise GlassformerError(
                        f"{self.path} holds {full[0]:,} images ('{self.images}') but {len(labels):,} "
                        f"labels ('{self.labels}')"
                    )
                size, begin = math.prod(full[1:]) * kind.itemsize, 0
                for n in _numbers(full[0], size):
                    data = exactly(file, n * size, self.path)
                    array = np.frombuffer(data, kind).reshape(n, *full[1:])
                    if channels_first:
                        array = array.transpose(0, 2, 3, 1)
                    yield self._bytes(array).reshape(n, *shape), labels[begin : begin + n]
                    begin += n

    @contextmanager
    def _members(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, KeyError):
            raise GlassformerError(f"{self.path} is not a whole .npz file; write it again") from None
        except OSError as error:
            raise GlassformerError(f"{self.path} cannot be read ({error.strerror or error})") from None

    def _header(self, file: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and kind of one array; objects, which would have to be unpickled, are refused."""
        formats = np.lib.format
        try:
            version = formats.read_magic(file)
            read = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
            shape, by_columns, kind = read(file)
        except ValueError:
            raise GlassformerError(f"'{name}' in {self.path} is not a NumPy array; write it again") from None
        if kind.hasobject:
            raise GlassformerError(f"'{name}' in {self.path} holds Python objects, which are never read")
        if by_columns and len(shape) > 1:
            raise GlassformerError(
                f"'{name}' in {self.path} is stored by columns; write it with numpy.ascontiguousarray"
            )
        return shape, kind

    def _layout(self, full: tuple[int, ...]) -> tuple[Shape, bool]:
        """The shape (H, W, C) of an image, and whether the file has channels first."""
        match full:
            case (_, height, width) if height and width:
                return (height, width, 1), False
            case (_, height, width, (1 | 3) as channels) if height and width:
                return (height, width, channels), False
            case (_, (1 | 3) as channels, height, width) if height and width:
                return (height, width, channels), True
        raise GlassformerError(
            f"'{self.images}' in {self.path} has shape {full}; images are (N, H, W), (N, H, W, 1 or 3) "
            "or (N, 1 or 3, H, W)"
        )

    def _labels(self, archive: zipfile.ZipFile) -> list[Label]:
        with archive.open(f"{self.labels}.npy") as file:
            shape, kind = self._header(file, self.labels)
            if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)) or kind.kind not in "iubU":
                raise GlassformerError(
                    f"'{self.labels}' in {self.path} has shape {shape} of {kind}; labels are (N) whole "
                    "numbers or words"
                )
            data = exactly(file, math.prod(shape) * kind.itemsize, self.path)
        found: list[Label] = np.frombuffer(data, kind).tolist() if shape[0] else []
        return [int(label) if isinstance(label, bool) else label for label in found]

    def _bytes(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        """Bytes as they are, fractions from 0 to 1 and whole numbers from 0 to 255 as bytes."""
        if array.dtype == np.uint8:
            return array
        fractions = array.dtype.kind == "f"
        if array.dtype.kind not in "iuf" or not (
            (array >= 0).all() and (array <= (1 if fractions else 255)).all()
        ):
            raise GlassformerError(
                f"'{self.images}' in {self.path} ({array.dtype}) goes outside its range; give bytes, "
                "whole numbers from 0 to 255 or fractions from 0 to 1"
            )
        return (np.rint(array * 255.0) if fractions else array).astype(np.uint8)

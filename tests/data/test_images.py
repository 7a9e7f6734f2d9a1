"""Image data sets in every format."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glassformer.data.images import ImageSet, prepare_images
from glassformer.data.row_errors import RowErrors, TooManyBadRowsError
from glassformer.errors import (
    EmptyInputError,
    FileExistsAlreadyError,
    FileMissingError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    UnknownNameError,
)

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 5, 4), np.uint8)  # (N, H, W)
COLOUR = RNG.integers(0, 256, (6, 5, 4, 3), np.uint8)
LABELS = np.array([2, 0, 2, 1, 0, 1], np.uint8)


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def folders(root: Path, images: dict[str, bytes]) -> Path:
    for name, data in images.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def prepared(path: Path, **options: Any) -> tuple[ImageSet, RowErrors]:
    errors = RowErrors()
    return prepare_images(path, path.parent / "prepared", errors=errors, **options), errors


def all_images(images: ImageSet) -> tuple[np.ndarray, list[str]]:
    rows = np.arange(len(images))
    return images.images(rows), [images.classes[n] for n in images.labels(rows)]


def class_folders(root: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    """Write a folder per class; the images are read in the order of their labels."""
    names = {f"{label}/{n:05}.png": encoded(images[n]) for n, label in enumerate(labels)}
    return folders(root / "images", names)


def write_gray_folders(root: Path) -> Path:
    return class_folders(root, GREY, LABELS)


def write_folders(root: Path) -> Path:
    return folders(root / "train", {f"{LABELS[n]}/{n}.png": encoded(COLOUR[n]) for n in range(6)}).parent


def write_parquet(root: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {"image": [{"bytes": encoded(image)} for image in COLOUR], "label": LABELS.tolist()}
    parquet.write_table(pa.table(rows), root / "train-00000.parquet")
    return root


@pytest.mark.parametrize(
    "write",
    [write_gray_folders, write_folders, write_parquet],
    ids=lambda write: write.__name__,
)
def test_every_source_returns_its_images_and_labels(write: Callable[[Path], Path], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    images, errors = prepared(write(tmp_path / "in"))
    pixels, names = all_images(images)
    expected = GREY[..., None] if write is write_gray_folders else COLOUR
    order = np.arange(6) if write is write_parquet else np.argsort(LABELS, kind="stable")
    assert (pixels == expected[order]).all() and images.classes == ("0", "1", "2")
    assert names == [str(n) for n in LABELS[order]] and not errors.count


def test_test_split_uses_the_class_numbers_of_the_training_split(tmp_path: Path) -> None:
    root = folders(
        tmp_path / "set",
        {f"train/{label}/{n}.png": encoded(GREY[n]) for n, label in enumerate(LABELS)}
        | {f"test/2/{n}.png": encoded(GREY[n]) for n in range(2)},
    )
    train, _ = prepared(root)
    test = prepare_images(root, tmp_path / "t", split="test", classes=train.classes, errors=RowErrors())
    assert test.labels(np.arange(2)).tolist() == [2, 2] and test.classes == train.classes
    with pytest.raises(UnknownNameError):
        prepare_images(root, tmp_path / "u", classes=["a", "b"], errors=RowErrors())


def test_class_names_in_metadata_keep_their_order(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    notes = b'{"info": {"features": {"label": {"names": ["zebra", "ape"]}}}}'
    table = pa.table({"image": [encoded(COLOUR[0]), encoded(COLOUR[1])], "label": [1, 0]})
    parquet.write_table(table.replace_schema_metadata({b"huggingface": notes}), tmp_path / "x.parquet")
    images, _ = prepared(tmp_path / "x.parquet")
    assert images.classes == ("zebra", "ape") and images.labels(np.arange(2)).tolist() == [1, 0]


def test_default_size_is_bounded_and_gray_has_one_channel(tmp_path: Path) -> None:
    root = folders(tmp_path / "in", {f"{c}/x.png": encoded(np.zeros((600, 300), np.uint8)) for c in "ab"})
    images, _ = prepared(root)
    assert images.shape == (224, 112, 1)
    assert prepare_images(root, tmp_path / "small", size=8, errors=RowErrors()).shape == (8, 8, 1)


def bomb(side: int) -> bytes:
    """A PNG of a few bytes that claims side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def test_bad_images_are_counted_and_skipped(tmp_path: Path) -> None:
    good = {f"{c}/{n}.png": encoded(COLOUR[n % 6]) for c in "ab" for n in range(25)}
    noise = RNG.integers(0, 256, (40, 40, 3), np.uint8)
    bad = {
        "a/big.png": bomb(10_000),
        "a/bomb.png": bomb(40_000),
        "a/cut.png": encoded(noise)[:900],
        "b/notes.txt": b"hello",
        "b/run.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    }
    images, errors = prepared(folders(tmp_path / "in", {**good, **bad}))
    assert len(images) == 50 and errors.count == 5
    reasons = {Path(error.file).name: error.reason for error in errors.first}
    assert set(reasons) == {"big.png", "bomb.png", "cut.png"} and "pixels" in reasons["bomb.png"]


PNG = encoded(COLOUR[0])
BAD: dict[str, tuple[Callable[[Path], Path], type[GlassformerError]]] = {
    "missing": (lambda r: r / "nowhere", FileMissingError),
    "empty folder": (lambda r: r, FileProblemError),
    "one class": (lambda r: folders(r, {"cat/x.png": PNG}), InvalidValueError),
    "class without images": (
        lambda r: ((r / "dog").mkdir(), folders(r, {"cat/x.png": PNG, "cow/x.png": PNG}))[1],
        EmptyInputError,
    ),
    "nothing readable": (lambda r: folders(r, {"a/x.png": b"x", "b/y.png": b"y"}), TooManyBadRowsError),
    "mostly broken": (
        lambda r: folders(r, {"a/x.png": PNG, "b/x.png": PNG, "b/y.png": PNG[:30]}),
        TooManyBadRowsError,
    ),
    "no test part": (lambda r: folders(r, {"train/a/x.png": PNG, "train/b/x.png": PNG}), FileMissingError),
    "arrays": (lambda r: folders(r, {"train-images-idx3-ubyte.gz": b""}), FileProblemError),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_source_raises_a_typed_error_and_leaves_no_files(name: str, tmp_path: Path) -> None:
    write, error = BAD[name]
    (tmp_path / "in").mkdir()
    path = write(tmp_path / "in")
    with pytest.raises(error):
        prepare_images(
            path, tmp_path / "out", errors=RowErrors(), split="test" if name == "no test part" else "train"
        )
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_damaged_image_set_is_an_error(tmp_path: Path) -> None:
    images, _ = prepared(class_folders(tmp_path, GREY, LABELS))
    with pytest.raises(FileExistsAlreadyError):
        prepared(tmp_path / "images")
    pixels = images.folder / "pixels.u8"
    pixels.write_bytes(pixels.read_bytes()[:-1])
    with pytest.raises(FileProblemError):
        ImageSet(images.folder)
    (images.folder / "images.json").write_text("[]")
    with pytest.raises(FileProblemError):
        ImageSet(images.folder)


def test_equal_images_are_in_the_same_split(tmp_path: Path) -> None:
    distinct = RNG.integers(0, 256, (300, 6, 6), np.uint8)
    which = RNG.integers(0, 300, 2000)
    which = which[np.argsort(which % 7, kind="stable")]
    images, _ = prepared(class_folders(tmp_path, distinct[which], which % 7))
    train, valid = images.split(0.2, seed=3)
    assert sorted([*train, *valid]) == list(range(2000)) and 200 < len(valid) < 600
    assert not {which[n] for n in train} & {which[n] for n in valid}
    assert (images.split(0.2, seed=3)[1] == valid).all()
    assert len(np.intersect1d(images.split(0.2, seed=4)[1], valid)) < len(valid) / 2


@pytest.mark.parametrize("fraction", [1e-9, 0.1, 1 - 1e-9])
def test_every_class_is_in_both_splits(tmp_path: Path, fraction: float) -> None:
    labels = np.arange(40) // 4
    images, _ = prepared(class_folders(tmp_path, RNG.integers(0, 256, (40, 6, 6), np.uint8), labels))
    for rows in images.split(fraction):
        assert set(labels[rows]) == set(range(10))


def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    peaks = []
    for count in (400, 2400):
        folder = tmp_path / str(count)
        pixels = RNG.integers(0, 256, (count, 80, 80), np.uint8)
        path = class_folders(folder, pixels, np.arange(count) % 3)
        del pixels
        tracemalloc.start()
        images, _ = prepared(path)
        images.images(np.arange(64))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 500_000 < 80 * 80 * 2400 / 4

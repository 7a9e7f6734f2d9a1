"""Write a set of images in arrays as a folder of images per class, which `glassformer train` takes.

python -m experiments.image_folders SOURCE --out FOLDER     FOLDER/train/7/00012.png, FOLDER/test/...

SOURCE: a folder or file in the format of MNIST (IDX) or CIFAR-10 (.bin), which may be compressed (.gz), or of
NumPy: an .npz file with `images` and `labels`, or with `x_train`, `y_train`, `x_test` and `y_test`.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from glassformer.data.image_files import to_bytes
from glassformer.errors import FileProblemError, GlassformerError
from glassformer.weights.atomic_write import atomic_folder

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (N, H, W) or (N, H, W, C) and labels (N,)
NPZ_NAMES = {"train": ("x_train", "y_train"), "test": ("x_test", "y_test"), "": ("images", "labels")}


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.image_folders", description=__doc__)
    parser.add_argument("source", type=Path, help="folder or file with the images")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    options = parser.parse_args(args)
    parts = read_images(options.source)
    for part, arrays in parts.items():
        print(write_folder(options.out / part if len(parts) > 1 else options.out, arrays))


def read_images(source: Path) -> dict[str, Arrays]:
    """Read all images of a file or folder, by split: train and test."""
    parts: dict[str, list[Arrays]] = {}
    for path in sorted(source.iterdir()) if source.is_dir() else [source]:
        for part, (images, labels) in _read(path):
            if len(images) != len(labels):
                raise FileProblemError(path, f"has {len(images):,} images for {len(labels):,} labels")
            parts.setdefault(part or _part(path), []).append((images, labels.astype(np.int64)))
    if not parts:
        raise FileProblemError(source, "has no IDX, CIFAR or .npz files")
    return {
        part: (np.concatenate([one[0] for one in arrays]), np.concatenate([one[1] for one in arrays]))
        for part, arrays in parts.items()
    }


def write_folder(folder: Path, arrays: Arrays) -> Path:
    """Write images as PNG files in a folder per class; a folder that exists is complete and kept."""
    if folder.exists():
        return folder
    try:
        with atomic_folder(folder) as unfinished:
            for label in np.unique(arrays[1]).tolist():
                (unfinished / str(label)).mkdir()
            for number, (image, label) in enumerate(zip(*arrays, strict=True)):
                Image.fromarray(image).save(unfinished / str(label) / f"{number:05}.png")
    except GlassformerError:
        if not folder.exists():  # a concurrent run may have written it
            raise
    return folder


def _part(path: Path) -> str:
    return "test" if path.name.startswith(("t10k", "test")) else "train"


def _read(path: Path) -> Iterator[tuple[str, Arrays]]:
    match = re.fullmatch(r"(.*)images([-.]idx)3(.*)", path.name)
    if match:
        labels = path.with_name(f"{match[1]}labels{match[2]}1{match[3]}")
        yield "", (_read_idx(path, 3), _read_idx(labels, 1))
    elif path.name.removesuffix(".gz").endswith(".bin"):
        content = _content(path)
        if len(content) % 3073:
            raise FileProblemError(path, "is truncated or not in CIFAR-10's binary format")
        records = np.frombuffer(content, np.uint8).reshape(
            -1, 3073
        )  # a label, then the red, green and blue bytes
        yield "", (records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0])
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            for part, (x, y) in NPZ_NAMES.items():
                if x in arrays and y in arrays:
                    pixels = to_bytes(arrays[x])
                    if pixels is None:
                        raise FileProblemError(
                            path, f"'{x}' is out of range; expected integers to 255 or floats to 1"
                        )
                    yield part, (pixels, arrays[y].ravel())


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    content = _content(path)
    start = 4 + 4 * dimensions
    sizes = np.frombuffer(content[4:start], ">u4").tolist()
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) != start + np.prod(sizes):  # 8: bytes
        raise FileProblemError(path, "is truncated or not an IDX file of images or labels")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


if __name__ == "__main__":
    main()

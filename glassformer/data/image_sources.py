"""Which images a path means: files are told by their names, folders by what lies in them."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from glassformer.data.image_arrays import Cifar, Idx, ImageSource, Npz
from glassformer.data.image_files import ClassFolders, ParquetImages
from glassformer.errors import GlassformerError

Split = Literal["train", "test"]
_IDX = re.compile(r"(.*?)(images|labels)([-.]idx)[31](-ubyte)?(\.gz)?")
_TEST = ("test", "t10k", "val", "valid", "validation", "eval")
_NPZ_KEYS = (("images", "labels"), ("x", "y"), ("X", "y"), ("data", "labels"), ("image", "label"))


def find_images(path: str | Path, split: Split = "train") -> ImageSource:
    """The source of images at `path`; where it holds several parts, `split` says which."""
    place = Path(path)
    try:
        if place.is_dir():
            return _in_folder(place, split)
        if not place.is_file():
            raise GlassformerError(f"{path} does not exist; give a folder of images or a file of them")
    except OSError as error:
        raise GlassformerError(f"{path} cannot be read ({error.strerror or error})") from None
    if _is_idx(place):
        return _pair(place)
    match place.name.removesuffix(".gz").rpartition(".")[2]:
        case "npz":
            return _npz(place, split)
        case "parquet":
            return ParquetImages((place,))
        case "bin":
            return Cifar((place,))
    raise GlassformerError(
        f"{path} is no kind of image set that is known; give a folder with a folder for each class, a "
        "Parquet or .npz file, a pair of IDX files or CIFAR's .bin files"
    )


def one_place(paths: Sequence[str]) -> Path:
    """The one place of pictures that paths mean: a single one, or both files of an IDX pair."""
    places = [Path(path) for path in paths]
    if len(places) == 2 and all(map(_is_idx, places)) and len({_pair(place) for place in places}) == 1:
        return places[0]
    if len(places) != 1:
        raise GlassformerError(
            f"{len(places)} places of pictures were given; give one, a folder that holds all of them"
        )
    return places[0]


def files_at(place: Path) -> list[Path]:
    """The files that pictures and labels at a place are read from, in an order of their own."""
    if place.is_file() and _is_idx(place):
        pair = _pair(place)
        return [pair.images, pair.labels]
    return sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]


def names_at(place: Path) -> list[str]:
    """The same files by their paths from the place on; a folder's name may be the class of what is in it."""
    return [file.relative_to(place).as_posix() if place.is_dir() else file.name for file in files_at(place)]


def _is_idx(place: Path) -> bool:
    return _IDX.fullmatch(place.name) is not None


def _in_folder(folder: Path, split: Split) -> ImageSource:
    inside = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    folders = [entry for entry in inside if entry.is_dir()]
    parts = [entry for entry in folders if _part(entry.name) is not None]
    if parts and len(parts) == len(folders) and all(_has_folders(entry) for entry in parts):
        return ClassFolders(_chosen(folder, parts, split)[0])
    if folders:
        return ClassFolders(folder)
    idx = [entry for entry in inside if (found := _IDX.fullmatch(entry.name)) and found[2] == "images"]
    if idx:
        return _pair(_chosen(folder, idx, split)[0])
    for ending in ("parquet", "bin", "npz"):
        files = [entry for entry in inside if entry.name.removesuffix(".gz").endswith(f".{ending}")]
        if files:
            chosen = tuple(_chosen(folder, files, split))
            if ending == "npz":
                return _npz(chosen[0], split)
            return ParquetImages(chosen) if ending == "parquet" else Cifar(chosen)
    raise GlassformerError(
        f"{folder} has no folder for each class, and no IDX, CIFAR, Parquet or .npz file in it"
    )


def _part(name: str) -> Split | None:
    """Which part a name says it is: test_batch.bin, train-00000-of-00001.parquet, t10k-images-idx3-ubyte."""
    first = re.split(r"[-_.]", name.lower())[0]
    if first in _TEST:
        return "test"
    return "train" if first in ("train", "training", "data") else None


def _chosen(folder: Path, entries: list[Path], split: Split) -> list[Path]:
    """The entries of one part; those that name no part are for training."""
    chosen = [entry for entry in entries if (_part(entry.name) or "train") == split]
    if not chosen:
        names = ", ".join(entry.name for entry in entries[:4])
        raise GlassformerError(f"{folder} has no part for '{split}' among {names}")
    return chosen


def _has_folders(folder: Path) -> bool:
    return any(entry.is_dir() for entry in folder.iterdir())


def _pair(path: Path) -> Idx:
    """Images and labels from the name of either; each may be packed or not."""
    found = _IDX.fullmatch(path.name)
    assert found is not None
    partners = []
    for what, dimensions in (("images", 3), ("labels", 1)):
        name = f"{found[1]}{what}{found[3]}{dimensions}{found[4] or ''}"
        here = [path.with_name(name + ending) for ending in (found[5] or "", "", ".gz")]
        there = [place for place in here if place.is_file()]
        if not there:
            raise GlassformerError(f"{path} needs its {what} beside it: {here[0].name} is missing")
        partners.append(there[0])
    return Idx(*partners)


def _npz(path: Path, split: Split) -> Npz:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError):
        raise GlassformerError(f"{path} is not a whole .npz file; write it again") from None
    pairs = [(f"x_{split}", f"y_{split}"), (f"{split}_images", f"{split}_labels")]
    if not any(f"x_{part}" in names or f"{part}_images" in names for part in ("train", "test")):
        pairs += _NPZ_KEYS
    for images, labels in pairs:
        if images in names and labels in names:
            return Npz(path, images, labels)
    raise GlassformerError(
        f"{path} has {', '.join(sorted(names)) or 'nothing'}; name its arrays images and labels, or "
        f"x_{split} and y_{split}"
    )

"""Objects in images: labels, boxes and masks, read from COCO JSON, YOLO text, Pascal VOC XML and PNG masks.

Boxes are (x_min, y_min, x_max, y_max) in pixels of the original image; masks are bool arrays (H, W) of the
same size. A set keeps boxes, polygons and run lengths; masks are decoded when an image is accessed, and image
files are opened by `AnnotatedImage.load`.
H height, W width.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from glassformer.data.image_files import (
    BadImageError,
    find_inside,
    is_image_name,
    list_images,
    load_image,
    read_image_shape,
    read_mask_header,
    read_numbers,
)
from glassformer.data.mask_encoding import Mask, counts_to_mask, polygons_to_mask, rle_counts
from glassformer.data.randomness import hash_draws
from glassformer.data.row_errors import RowCounter, RowErrors
from glassformer.errors import (
    EmptyInputError,
    FileMissingError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
)
from glassformer.json_text import parse_json

if TYPE_CHECKING:
    from PIL import Image

Box = tuple[float, float, float, float]  # x_min, y_min, x_max, y_max in pixels
IGNORE_INDEX = 255  # default number of the pixels in a semantic mask that have no class
IGNORED_NAMES = ("unlabelled", "unlabeled", "void", "ignore", "ignored")  # of classes that are left out
ONE_CLASS = "object"  # label of instances without a classes file
ITEMS = "images and annotations"  # that readers count
MAX_COORDINATE = 1e6  # of a polygon; positions on its fine grid stay exact
_CLASS_FILES = ("classes.txt", "classes.tsv", "labels.txt", "obj.names", "classes.names")
_MASK_FOLDERS = ("masks", "mask", "labels", "annotations", "SegmentationClass")
_SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
_log = logging.getLogger("glassformer.data")


@dataclass(frozen=True, eq=False)
class Annotation:
    """An object or a region of an image, as annotated or as predicted.

    label: name of the class. box: in pixels. mask: (H, W), True inside the object.
    score: confidence from 0 to 1; None for ground truth.
    iscrowd: whether the region covers a group of objects, which metrics ignore (COCO's `iscrowd`).
    """

    label: str
    box: Box | None = None
    mask: Mask | None = None
    score: float | None = None
    iscrowd: bool = False


@dataclass(frozen=True, eq=False)
class AnnotatedImage:
    """An image file with its annotations. width, height: of the image after its EXIF rotation."""

    path: Path
    width: int
    height: int
    annotations: tuple[Annotation, ...] = ()
    captions: tuple[str, ...] = ()

    def load(self) -> Image.Image:
        """Open the image, upright and in RGB; its size must be that of the annotations."""
        image = load_image(self.path)
        try:
            _check_size((image.height, image.width), (self.height, self.width))
        except ValueError as error:
            hint = "annotate the image again or remove it"
            raise FileProblemError(self.path, str(error), hint=hint) from None
        return image


def _check_size(size: tuple[int, int], annotated: tuple[int, int]) -> None:
    """Raise ValueError unless an image has the height and width of its annotations."""
    if size != annotated:
        expected = f"{annotated[1]} x {annotated[0]}"
        raise ValueError(f"is {size[1]} x {size[0]}, but its annotations are for {expected}")


@cache
def warn_once(message: str) -> None:
    """Log a warning, unless it was logged before."""
    _log.warning("%s", message)


def mask_to_box(mask: Mask) -> Box:
    """Return the smallest box around a mask (H, W) that is not empty.

    >>> mask_to_box(np.array([[0, 0, 0], [0, 1, 1]], bool))
    (1.0, 1.0, 3.0, 2.0)
    """
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


# --- entries of a set: what is known without opening the image


@dataclass(frozen=True)
class _Object:
    """An object whose mask is not decoded. polygons: flat lists x, y, ... in pixels. counts: run lengths."""

    label: str
    box: Box | None
    polygons: tuple[tuple[float, ...], ...] = ()
    counts: NDArray[np.int64] | None = None
    iscrowd: bool = False

    def decode(self, height: int, width: int) -> Annotation:
        mask = None
        if self.counts is not None:
            mask = counts_to_mask(self.counts, height, width)
        elif self.polygons:
            mask = polygons_to_mask(self.polygons, height, width)
        box = mask_to_box(mask) if self.box is None and mask is not None and mask.any() else self.box
        return Annotation(self.label, box, mask, iscrowd=self.iscrowd)


@dataclass(frozen=True)
class _Entry(ABC):
    path: Path
    width: int
    height: int

    @abstractmethod
    def decode(self) -> AnnotatedImage:
        """Return the image with decoded masks."""


@dataclass(frozen=True)
class _ObjectEntry(_Entry):
    objects: tuple[_Object, ...] = ()
    captions: tuple[str, ...] = ()

    def decode(self) -> AnnotatedImage:
        decoded = tuple(thing.decode(self.height, self.width) for thing in self.objects)
        return AnnotatedImage(self.path, self.width, self.height, decoded, self.captions)


@dataclass(frozen=True)
class _MaskEntry(_Entry):
    """An image with a PNG of class numbers, or of instance numbers (then `instances` names their class)."""

    mask: Path
    labels: Mapping[int, str]
    ignored: frozenset[int]
    instances: str | None

    def decode(self) -> AnnotatedImage:
        try:
            numbers = read_numbers(self.mask)
        except FileProblemError as error:  # e.g. truncated; the header was valid when the set was read
            warn_once(f"{error}; its image is used without annotations")
            return AnnotatedImage(self.path, self.width, self.height)
        annotations = []
        for number in np.unique(numbers).tolist():
            if number in self.ignored:
                continue
            label = self.instances or self.labels.get(number)
            if label is None:
                ignored = " or ".join(map(str, sorted(self.ignored)))
                expected = f"a class number up to {max(self.labels)}, or {ignored} to ignore the pixel"
                raise InvalidValueError(f"{self.mask}: pixel", number, expected)
            mask = numbers == number
            annotations.append(Annotation(label, mask_to_box(mask), mask))
        return AnnotatedImage(self.path, self.width, self.height, tuple(annotations))


class AnnotationSet(Sequence[AnnotatedImage]):
    """Annotated images, by number. Masks are decoded on access.

    classes: the names of the labels, in the order of the class numbers. files: those with the annotations.
    """

    def __init__(self, entries: Sequence[_Entry], classes: Sequence[str], files: Iterable[Path]) -> None:
        self._entries, self.classes, self.files = tuple(entries), tuple(classes), tuple(files)

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> AnnotatedImage: ...
    @overload
    def __getitem__(self, index: slice) -> AnnotationSet: ...
    def __getitem__(self, index: int | slice) -> AnnotatedImage | AnnotationSet:
        if isinstance(index, slice):
            return AnnotationSet(self._entries[index], self.classes, self.files)
        return self._entries[index].decode()

    @property
    def paths(self) -> list[Path]:
        """The paths of the images."""
        return [entry.path for entry in self._entries]

    @property
    def has_class_masks(self) -> bool:
        """Whether annotations are PNG masks of classes, which do not separate objects."""
        return any(isinstance(entry, _MaskEntry) and entry.instances is None for entry in self._entries)

    def split(self, fraction: float, *, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row numbers of a training and a validation split; validation gets about `fraction`.

        Copies of an image are in the same split.
        """
        draws = hash_draws(np.array([_file_hash(path) for path in self.paths], np.uint64), seed)
        order = np.sort(draws)
        # at least the image with the smallest draw, and not that with the largest
        held_out = draws < min(max(fraction, np.nextafter(order[0], 1)), order[-1])
        if not held_out.any():
            raise EmptyInputError(
                f"training or validation split at a fraction of {fraction:g}",
                hint="use at least two different images, or separate validation images",
            )
        return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _file_hash(path: Path) -> int:
    """Hash the length and the beginning of a file, which tell images apart."""
    with path.open("rb") as file:
        content = file.read(1 << 16) + path.stat().st_size.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


# --- the set at a path


def find_annotations(
    path: str | Path,
    split: str = "train",
    *,
    errors: RowErrors | None = None,
    images: str | Path | None = None,
) -> AnnotationSet:
    """Open the annotations at a path, whose format is recognized by file names.

    path: a COCO JSON file; a YOLO data.yaml or its folder; a Pascal VOC folder; or images with PNG masks: the
    folder `train` beside `train_mask`, or a folder with `images` and `masks`.
    split: train, val or test, if the path has several.
    errors: collects rows that are skipped. images: folder of the images of a COCO file.
    """
    path, errors = Path(path), errors or RowErrors()
    if not path.exists():
        raise FileMissingError(path, "file or folder")
    if path.suffix == ".json":
        return read_coco(path, images, errors=errors)
    if path.suffix in (".yaml", ".yml"):
        return read_yolo(path, split, errors=errors)
    if path.is_dir():
        if (path / "Annotations").is_dir() and not (path / "masks").is_dir():
            return read_voc(path, split, errors=errors)
        if any((path / name).is_file() for name in ("data.yaml", "data.yml")):
            return read_yolo(path, split, errors=errors)
        if (pair := _find_mask_folders(path, split)) is not None:
            return read_masks(*pair, errors=errors)
        files = sorted(path.glob("*.json")) + sorted(path.glob("annotations/*.json"))
        of_split = [file for file in files if any(name in file.stem for name in _SPLITS.get(split, (split,)))]
        if len(files) == 1 and split == "train":
            of_split = files
        if len(of_split) == 1:
            return read_coco(of_split[0], images, errors=errors)
        if any(path.rglob("*.txt")):
            return read_yolo(path, split, errors=errors)
    hint = "use COCO JSON, a YOLO data.yaml, a Pascal VOC folder, or images with PNG masks"
    raise FileProblemError(path, "has no annotations of a known format", hint=hint)


def _split_names(split: str) -> tuple[str, ...]:
    """Return the folder names of a split; data without splits is for training."""
    return (*_SPLITS.get(split, (split,)), *([""] if split == "train" else []))


def _find_mask_folders(path: Path, split: str) -> tuple[Path, Path] | None:
    """Return the folders of images and masks: train and train_mask, or images and masks."""
    pairs: list[tuple[Path, Path]] = []
    for name in _split_names(split):
        images = path / name
        pairs += [(images, images.with_name(images.name + end)) for end in ("_mask", "_masks", "annot")]
        for inner in _MASK_FOLDERS:
            pairs += [(path / "images" / name, path / inner / name), (images / "images", images / inner)]
    exist = (pair for pair in pairs if pair[0].is_dir() and pair[1].is_dir() and any(pair[1].glob("*.png")))
    return next(exist, None)


# --- COCO


def read_coco(
    path: str | Path, images: str | Path | None = None, *, errors: RowErrors | None = None
) -> AnnotationSet:
    """Read COCO JSON: objects (boxes, polygons, RLE) or captions.

    images: folder of the images; by default they are looked up beside the file, in its folder `images` and in
    the folder above. Boxes are clipped to the image. Annotations that cannot be used are skipped and counted
    in `errors`, as are images whose file is missing, unreadable or of another size. Classes are ordered by
    category id; ids may have gaps.
    """
    path = Path(path)
    content = _read_json(path)
    counter = (errors or RowErrors()).start_file(path, unit="annotation", items=ITEMS)
    folders = [Path(images)] if images is not None else _image_folders(path)
    names = _coco_classes(path, content["categories"])
    entries: dict[Any, _ObjectEntry] = {}
    ids: set[Any] = set()  # of all images, also of those that are counted as bad
    for record in content["images"]:
        file = f"{record.get('file_name', path):.200}" if isinstance(record, dict) else path
        with counter.row(file=file):
            ids.add(key := record["id"])
            if key in entries:
                raise ValueError(f"image id {key} is used twice")
            entries[key] = _coco_image(record, folders)
    objects: dict[Any, list[_Object]] = {key: [] for key in entries}
    captions: dict[Any, list[str]] = {key: list(entry.captions) for key, entry in entries.items()}
    known_ids: set[Any] = set()
    for number, record in enumerate(content["annotations"], 1):
        if isinstance(record, dict) and _is_in(record.get("image_id"), ids - entries.keys()):
            continue
        with counter.row(number):
            key = record["image_id"]
            if key not in entries:
                raise ValueError(f"is of image {key!r}, which the file does not list")
            if (identity := record.get("id")) is not None:
                if identity in known_ids:
                    raise ValueError(f"has the id {identity}, which is used twice")
                known_ids.add(identity)
            if isinstance(record.get("caption"), str):
                captions[key].append(record["caption"].strip())
            else:
                entry = entries[key]
                objects[key].append(_coco_object(record, names, entry.height, entry.width))
    counter.finish()
    complete = [
        _ObjectEntry(entry.path, entry.width, entry.height, tuple(objects[key]), tuple(captions[key]))
        for key, entry in entries.items()
    ]
    return AnnotationSet(complete, list(dict.fromkeys(names.values())), [path])


def _read_json(path: Path) -> dict[str, list[Any]]:
    try:
        content = parse_json(path.read_text("utf-8"))
    except OSError as error:
        raise FileProblemError(path, f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise FileProblemError(path, f"is not JSON ({error})") from None
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key, []), list) for key in ("images", "annotations", "categories")
    ):
        raise FileProblemError(path, "is not COCO JSON", hint="it needs images, annotations and categories")
    if "images" not in content:
        hint = "use a COCO file with images, annotations and categories"
        raise FileProblemError(path, "has no key 'images'", hint=hint)
    if not content["images"]:
        raise EmptyInputError(f"list of images in {path}")
    return {key: content.get(key, []) for key in ("images", "annotations", "categories")}


def _is_in(key: object, ids: Set[Any]) -> bool:
    """Return whether an id, which may not be hashable, is one of the ids."""
    return isinstance(key, Hashable) and key in ids


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a text file."""
    try:
        return path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise FileProblemError(path, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise FileProblemError(path, "is not UTF-8 text") from None


def _image_folders(path: Path) -> list[Path]:
    parent = path.parent
    return [parent, parent / "images", parent.parent, parent.parent / "images"]


def _coco_classes(path: Path, categories: Iterable[Any]) -> dict[int, str]:
    """Return the class names by category id, ordered by id."""
    try:
        names = {int(category["id"]): str(category["name"]) for category in categories}
    except (KeyError, TypeError, ValueError, OverflowError):
        raise FileProblemError(path, "has a category without id or name") from None
    return dict(sorted(names.items()))


def _coco_image(record: Mapping[str, Any], folders: Sequence[Path]) -> _ObjectEntry:
    # e.g. train2017/000000000009.jpg beside annotations/instances_train2017.json
    splits = [folder / inner for folder in folders for inner in _SPLIT_FOLDERS]
    file = find_inside([*folders, *splits], record["file_name"])
    if file is None:
        raise ValueError(f"image file not found in {folders[0]}")
    height, width = _image_size(file)
    high, wide = record.get("height"), record.get("width")
    if type(high) is int and type(wide) is int and high > 0 and wide > 0:
        _check_size((height, width), (high, wide))  # before a mask of that size is decoded
    captions = record.get("captions", [])
    texts = tuple(text.strip() for text in captions if isinstance(text, str))
    return _ObjectEntry(file, width, height, captions=texts)


_SPLIT_FOLDERS = ("train2017", "val2017", "train2014", "val2014", "train", "val", "valid", "test")


def _image_size(file: Path) -> tuple[int, int]:
    try:
        return read_image_shape(file)[:2]
    except BadImageError as error:
        raise ValueError(str(error)) from None


def _coco_object(record: Mapping[str, Any], names: Mapping[int, str], height: int, width: int) -> _Object:
    label = names.get(record["category_id"])
    if label is None:
        raise ValueError(f"has the category id {record['category_id']}, which the file does not list")
    segmentation = record.get("segmentation")
    polygons: tuple[tuple[float, ...], ...] = ()
    counts = None
    if isinstance(segmentation, dict):
        counts = rle_counts(segmentation, height, width)
    elif segmentation:
        polygons = tuple(_check_polygon(polygon) for polygon in segmentation)
    box: Box | None = None
    if record.get("bbox") is not None:
        x, y, wide, high = _box_numbers(record["bbox"])
        box = _clip((x, y, x + wide, y + high), height, width)
    elif polygons:
        box = _clip(_polygon_box(polygons), height, width)
    elif counts is None:
        raise ValueError("has neither a box nor a mask")
    return _Object(label, box, polygons, counts, bool(record.get("iscrowd")))


def _box_numbers(values: Iterable[Any]) -> Box:
    """Convert the four numbers of a box; raise ValueError if they are not."""
    try:
        first, second, third, fourth = map(float, values)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("has a box that is not four numbers") from None
    return first, second, third, fourth


def _check_polygon(polygon: Any) -> tuple[float, ...]:
    try:
        points = tuple(map(float, polygon))
    except (TypeError, ValueError, OverflowError):
        raise ValueError("has a polygon that is not a list of numbers") from None
    if len(points) < 6:
        raise ValueError("has a polygon without three points")
    if len(points) % 2:
        raise ValueError("has a polygon with an x without a y")
    if wrong := [point for point in points if not abs(point) <= MAX_COORDINATE]:  # also if it is NaN
        raise ValueError(f"has a polygon with the coordinate {wrong[0]:g}")
    return points


def _polygon_box(polygons: Sequence[Sequence[float]]) -> Box:
    xs = [x for polygon in polygons for x in polygon[0::2]]
    ys = [y for polygon in polygons for y in polygon[1::2]]
    return min(xs), min(ys), max(xs), max(ys)


def _clip(box: Box, height: int, width: int) -> Box:
    """Clip a box to the image; raise ValueError if nothing is left."""
    x_min, y_min, x_max, y_max = box
    if not all(map(math.isfinite, box)):
        raise ValueError("has a box with a number that is not finite")
    if not (x_min < x_max and y_min < y_max):
        raise ValueError(f"has an empty box, {_format(box)}")
    clipped = (max(0.0, x_min), max(0.0, y_min), min(float(width), x_max), min(float(height), y_max))
    if not (clipped[0] < clipped[2] and clipped[1] < clipped[3]):
        raise ValueError(f"has a box outside the image, {_format(box)}")
    return clipped


def _format(box: Box) -> str:
    return " ".join(f"{side:g}" for side in box)


# --- YOLO


def read_yolo(path: str | Path, split: str = "train", *, errors: RowErrors | None = None) -> AnnotationSet:
    """Read YOLO text files: a line per object with the class number, then a box or a polygon in shares.

    path: data.yaml, or a folder that has it or a classes file (classes.txt, obj.names).
    split: train, val or test, if there are several.
    The labels of images/x.jpg are in labels/x.txt, or beside the image; without that file, the image has no
    objects.
    """
    path = Path(path)
    config = (
        path
        if path.is_file()
        else next((file for name in ("data.yaml", "data.yml") if (file := path / name).is_file()), None)
    )
    if config is not None:
        names, images = _read_yaml(config, split)
    else:
        names = _yolo_classes(path)
        inner = [folder for name in _split_names(split) for folder in (path / "images" / name, path / name)]
        folder = next((folder for folder in inner if folder.is_dir()), None)
        if folder is None:
            raise FileMissingError(path, f"{split} split of the images")
        images = list_images([folder])
    counter = (errors or RowErrors()).start_file(f"{path} ({split} split)", unit="line", items=ITEMS)
    entries = []
    for image in images:
        with counter.row(file=image):
            height, width = _image_size(image)
            objects = tuple(_yolo_objects(_label_file(image), names, height, width, counter))
            entries.append(_ObjectEntry(image, width, height, objects))
    counter.finish()
    files = [file for image in images if (file := _label_file(image)).is_file()]
    return AnnotationSet(entries, list(names.values()), files)


def _read_yaml(path: Path, split: str) -> tuple[dict[int, str], list[Path]]:
    """Return the class names and the images of a split of data.yaml."""
    import yaml

    try:
        config = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise FileProblemError(path, f"cannot be read ({error})") from None
    names = config.get("names") if isinstance(config, dict) else None
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not names or not isinstance(names, dict) or not all(type(number) is int for number in names):
        raise FileProblemError(path, "has no names of the classes", hint="add the key names")
    keys = [key for key in _SPLITS.get(split, (split,)) if config.get(key)]
    if not keys:
        raise MissingValueError(f"{path}: {split}", f"to read the {split} split")
    root = path.parent / str(config.get("path") or "")
    places = config[keys[0]]
    images: list[Path] = []
    for place in map(str, places if isinstance(places, list) else [places]):
        # Roboflow writes ../train/images for a folder beside the file
        found = [root / place, path.parent / place, path.parent / str(place).removeprefix("../")]
        existing = next((entry for entry in found if entry.exists()), None)
        if existing is None:
            raise FileMissingError(found[0], "file or folder")
        if existing.suffix == ".txt":
            images += _listed_images(existing, [existing.parent, root, path.parent])
        else:
            images += list_images([existing])
    return dict(sorted((number, str(name)) for number, name in names.items())), images


def _listed_images(path: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the images that a text file lists; they must be in the folders."""
    for number, line in enumerate(_read_lines(path), 1):
        if name := line.strip():
            try:
                yield find_inside(folders, name) or path.parent / name
            except ValueError as error:
                raise FileProblemError(path, str(error), number) from None


def _yolo_classes(folder: Path) -> dict[int, str]:
    for parent in (folder, folder / "labels", folder.parent):
        if (names := _read_classes(parent)) is not None:
            return names
    raise MissingValueError("classes.txt", f"to name the classes of {folder}")


def _read_classes(folder: Path) -> dict[int, str] | None:
    """Return the class names of a classes file: a name per line, or a table with number and name."""
    path = next((file for name in _CLASS_FILES if (file := folder / name).is_file()), None)
    if path is None:
        return None
    lines = [line.split("\t") for line in _read_lines(path) if line.strip()]
    if all(len(line) == 1 for line in lines):
        names = {number: line[0].strip() for number, line in enumerate(lines)}
    else:
        rows = [line for line in lines if line[0].strip().isdigit()]  # without a header
        names = {int(line[0]): line[1].strip() for line in rows}
    if not names:
        raise EmptyInputError(f"file {path}")
    return names


def _label_file(image: Path) -> Path:
    """Return images/x.jpg -> labels/x.txt, for the last folder of that name, if it exists; else x.txt."""
    parts = list(image.with_suffix(".txt").parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
        if (file := Path(*parts)).is_file():
            return file
    return image.with_suffix(".txt")


def _yolo_objects(
    path: Path, names: Mapping[int, str], height: int, width: int, counter: RowCounter
) -> Iterator[_Object]:
    if not path.is_file():
        return
    for number, line in enumerate(_read_lines(path), 1):
        if line.strip():
            with counter.row(number, file=path):
                yield _yolo_object(line.split(), names, height, width)


def _yolo_object(cells: Sequence[str], names: Mapping[int, str], height: int, width: int) -> _Object:
    try:
        numbers = [float(cell) for cell in cells[1:]]
        label = names.get(int(cells[0]))
    except ValueError:
        raise ValueError("is not a class number and coordinates") from None
    if label is None:
        raise ValueError(f"has the class number {cells[0]}, but there are {len(names)} classes")
    if len(numbers) == 4:
        x, y, wide, high = numbers
        corners = ((x - wide / 2) * width, (y - high / 2) * height)
        ends = ((x + wide / 2) * width, (y + high / 2) * height)
        return _Object(label, _clip((*corners, *ends), height, width))
    points = [side * (height if n % 2 else width) for n, side in enumerate(numbers)]
    polygon = _check_polygon(points)
    return _Object(label, _clip(_polygon_box([polygon]), height, width), (polygon,))


# --- Pascal VOC


def read_voc(folder: str | Path, split: str = "train", *, errors: RowErrors | None = None) -> AnnotationSet:
    """Read Pascal VOC: Annotations/x.xml for JPEGImages/x.jpg.

    split: the images listed in ImageSets/Main/<split>.txt; all images if there are no lists.
    Images that are missing, unreadable or of another size than in the XML are counted in `errors`.
    Pixels count from 1 and boxes include their last pixel, so 1 is subtracted from x_min and y_min.
    """
    folder = Path(folder)
    lists = folder / "ImageSets" / "Main"
    if lists.is_dir():
        files = [file for name in _SPLITS.get(split, (split,)) if (file := lists / f"{name}.txt").is_file()]
        if not files:
            raise FileMissingError(lists / f"{split}.txt")
        stems = [line.split()[0] for line in _read_lines(files[0]) if line.strip()]
    elif split == "train":
        stems = sorted(file.stem for file in (folder / "Annotations").glob("*.xml"))
    else:
        raise FileMissingError(lists / f"{split}.txt")
    counter = (errors or RowErrors()).start_file(f"{folder} ({split} split)", unit="object", items=ITEMS)
    entries, labels = [], set[str]()
    for stem in stems:
        file = folder / "Annotations" / f"{stem}.xml"
        with counter.row(file=file):
            if find_inside([folder / "Annotations"], f"{stem}.xml") is None:
                raise ValueError("does not exist")
            entries.append(_voc_image(file, folder / "JPEGImages", counter))
            labels |= {thing.label for thing in entries[-1].objects}
    counter.finish()
    files = [file for stem in stems if (file := folder / "Annotations" / f"{stem}.xml").is_file()]
    return AnnotationSet(entries, sorted(labels), files)


def _voc_image(path: Path, images: Path, counter: RowCounter) -> _ObjectEntry:
    try:
        text = path.read_text("utf-8")
        if "<!ENTITY" in text:
            raise ValueError("has entities")
        root = ElementTree.fromstring(text)
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"is not XML ({error})") from None
    named = find_inside([images], root.findtext("filename") or "")
    candidates = [*filter(None, [named]), *images.glob(f"{glob.escape(path.stem)}.*")]
    image = next((file for file in candidates if file.is_file() and is_image_name(file)), None)
    if image is None:
        raise ValueError("image file not found")
    try:
        height, width = _image_size(image)
        annotated = [root.findtext(f"size/{side}", "").strip() for side in ("height", "width")]
        if all(side.isdecimal() and int(side) for side in annotated):  # some programs write 0
            _check_size((height, width), (int(annotated[0]), int(annotated[1])))
    except ValueError as error:
        raise ValueError(f"image {image.name} {error}") from None
    objects = []
    for number, element in enumerate(root.iter("object"), 1):
        with counter.row(number, file=path):
            sides = _box_numbers(element.findtext(f"bndbox/{s}") for s in ("xmin", "ymin", "xmax", "ymax"))
            box = _clip((sides[0] - 1, sides[1] - 1, sides[2], sides[3]), height, width)
            label = (element.findtext("name") or "").strip()
            if not label:
                raise ValueError("has no name")
            objects.append(_Object(label, box))
    return _ObjectEntry(image, width, height, tuple(objects))


# --- PNG masks


def read_masks(
    images: str | Path,
    masks: str | Path,
    *,
    classes: Sequence[str] | Mapping[int, str] | None = None,
    ignore_index: int = IGNORE_INDEX,
    instances: bool | None = None,
    errors: RowErrors | None = None,
) -> AnnotationSet:
    """Read images with a PNG of the same name whose pixels are class numbers or instance numbers.

    classes: names of the classes; by default of a classes file (classes.txt or .tsv) near the folders.
    ignore_index: number of the pixels without a class; a class named "unlabeled" or "void" is ignored, too.
    instances: whether pixels number the instances, 0 being the background; by default True for 16-bit masks.
    All instances have the first class, or the label "object". Images without a mask of their size are skipped
    and counted in `errors`.
    """
    images, masks = Path(images), Path(masks)
    if classes is None:
        places = (masks, images, masks.parent, masks.parent.parent)
        classes = next((names for place in places if (names := _read_classes(place)) is not None), None)
    names = dict(classes) if isinstance(classes, Mapping) else dict(enumerate(classes or ()))
    ignored = {number for number, name in names.items() if name.lower() in IGNORED_NAMES} | {ignore_index}
    names = {number: name for number, name in names.items() if number not in ignored}
    counter = (errors or RowErrors()).start_file(images, unit="image", items="images")
    label = next(iter(names.values()), ONE_CLASS)  # of instances
    entries: list[_MaskEntry] = []
    for image in list_images([images]):
        stem = image.relative_to(images).with_suffix("")
        mask = next((file for end in ("", "_mask") if (file := masks / f"{stem}{end}.png").is_file()), None)
        with counter.row(file=image):
            if mask is None:
                raise ValueError(f"has no mask in {masks}")
            height, width = _image_size(image)
            has_16_bits = _check_mask(mask, height, width)
            instances = has_16_bits if instances is None else instances
            numbers, of_all = (frozenset((0,)), label) if instances else (frozenset(ignored), None)
            entries.append(_MaskEntry(image, width, height, mask, names, numbers, of_all))
        if entries and not instances and not names:
            raise MissingValueError("classes.txt", f"to name the classes of {masks}")
    counter.finish()
    files = [entry.mask for entry in entries]
    return AnnotationSet(entries, [label] if instances else list(names.values()), files)


def _check_mask(path: Path, height: int, width: int) -> bool:
    """Return whether a mask has 16 bits; raise ValueError unless it is readable and of this size."""
    try:
        *size, has_16_bits = read_mask_header(path)
    except BadImageError as error:
        raise ValueError(f"has the mask {path.name}, which {error}") from None
    if size != [height, width]:
        raise ValueError(f"is {width} x {height}, but its mask is {size[1]} x {size[0]}")
    return has_16_bits

"""Images that lie in files as pictures to be decoded: a folder for each class, or a column of Parquet."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassformer.data.image_arrays import Block, Label, Shape
from glassformer.data.names import known_one
from glassformer.data.parquet import Parquet
from glassformer.data.pictures import BadPictureError, Outline, decode, outline
from glassformer.data.problems import Problems, Tally

_LARGEST = 224
IMAGES = ("image", "img", "images", "picture", "jpg", "png")  # names that columns go by
LABELS = ("label", "labels", "class", "fine_label", "category", "target")


def usual_shape(outlines: Iterator[Outline]) -> Shape:
    """The size (H, W, C) to bring pictures to: the commonest if most have it, else the median.

    A longer side than 224 is brought down to that. One channel where all pictures are grey.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    colour = False
    for seen in outlines:
        sizes[seen.height, seen.width] += 1
        colour |= not seen.grey
    if not sizes:
        return 1, 1, 3  # nothing can be read; the reader will say what is wrong with each
    (height, width), times = sizes.most_common(1)[0]
    if 2 * times <= sizes.total():
        every = np.array(list(sizes.elements()))
        height, width = (int(n) for n in np.median(every, axis=0))
    shrink = min(1.0, _LARGEST / max(height, width))
    return max(1, round(height * shrink)), max(1, round(width * shrink)), 3 if colour else 1


@dataclass(frozen=True)
class ClassFolders:
    """A folder of folders, each named after the class of the pictures in it, however deep they lie."""

    folder: Path

    def classes(self) -> list[str]:
        inside = [entry for entry in os.scandir(self.folder) if not entry.name.startswith(".")]
        return sorted(entry.name for entry in inside if entry.is_dir())

    def shape(self) -> Shape:
        return usual_shape(self._outlines())

    def blocks(self, shape: Shape, problems: Problems) -> Iterator[Block]:
        tally = problems.begin(self.folder, unit="file")
        for path, label in self._files():
            try:
                image = decode(path, shape)
            except BadPictureError as error:
                tally.add(None, str(error), file=path)
                continue
            tally.good += 1
            yield image[None], [label]
        tally.end()

    def _files(self) -> Iterator[tuple[Path, str]]:
        for name in self.classes():
            for here, folders, files in os.walk(self.folder / name):
                folders.sort()
                for file in sorted(files):
                    if not file.startswith("."):
                        yield Path(here, file), name

    def _outlines(self) -> Iterator[Outline]:
        """Of every file, for a grey picture must not decide for a coloured one further on."""
        for path, _ in self._files():
            try:
                yield outline(path)
            except BadPictureError:
                continue  # named when it is decoded


@dataclass(frozen=True)
class ParquetImages:
    """Parquet files with a column of encoded pictures (bytes, or a struct with `bytes`) and one of labels."""

    files: tuple[Path, ...]

    def classes(self) -> list[str]:
        """The names of whole-number labels, where the first file's own notes list them."""
        from pyarrow.parquet import read_schema

        Parquet(self.files[0])  # whether it can be read at all
        notes = (read_schema(self.files[0]).metadata or {}).get(b"huggingface")
        try:
            features = json.loads(notes)["info"]["features"] if notes else {}
            label = known_one(list(features), LABELS)
            return [str(name) for name in features[label]["names"]] if label else []
        except (ValueError, KeyError, TypeError):
            return []

    def shape(self) -> Shape:
        return usual_shape(self._outlines())

    def blocks(self, shape: Shape, problems: Problems) -> Iterator[Block]:
        names = self.classes()
        for path in self.files:
            tally = problems.begin(path, unit="row")
            for row, data, label in self._rows(path, tally):
                try:
                    image, known = decode(data, shape), _name(label, names)
                except BadPictureError as error:
                    tally.add(row, str(error))
                    continue
                tally.good += 1
                yield image[None], [known]
            tally.end()

    def _outlines(self) -> Iterator[Outline]:
        for path in self.files:
            for _, data, _ in self._rows(path, Tally(str(path))):
                try:
                    yield outline(data)
                except BadPictureError:
                    continue

    @staticmethod
    def _rows(path: Path, tally: Tally) -> Iterator[tuple[int, bytes, object]]:
        table = Parquet(path)
        image = known_one(table.names, [*(f"{name}.bytes" for name in IMAGES), *IMAGES])
        label = known_one(table.names, LABELS)
        for found, what in ((image, "image"), (label, "label")):
            if found is None:
                raise table.missing(what, table.names)
        assert image is not None and label is not None
        for row, (data, known) in table.rows([image, label], tally):
            if isinstance(data, bytes):
                yield row, data, known
            else:
                tally.add(row, "has no image")


def _name(label: object, names: list[str]) -> Label:
    """What a label is told by: a word, or a number, or the name that the number stands for."""
    if isinstance(label, str) and label.strip():
        return label.strip()
    if not isinstance(label, int):
        raise BadPictureError(
            "has no label" if label is None else f"has label {label!r:.40}, not a word or number"
        )
    if not names:
        return label
    if not 0 <= label < len(names):
        raise BadPictureError(f"has label {label}, but {len(names)} classes are named")
    return names[label]

"""Images with captions or questions: tables with image paths, or COCO's caption format.

Relative paths are relative to the folder of the file. B pairs, H height, W width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from glassformer.data.examples import IGNORE_INDEX, Arrays, EqualLengths, StoredExamples, pad
from glassformer.data.image_files import ImageLike, find_inside, load_image
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment
from glassformer.data.readers import Column, TableOptions, find_column, open_table
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import (
    FileSource,
    Paths,
    TableSource,
    clean_text,
    columns_unclear,
    list_paths,
)
from glassformer.data.store import Store
from glassformer.errors import FileMissingError, FileProblemError, InvalidValueError
from glassformer.json_text import read_json

_IMAGE_NAMES = ("image", "path", "file", "file_name", "filename", "image_path", "img")
_CAPTION_NAMES = ("caption", "text", "title", "description", "name")
_QUESTION_NAMES = ("question", "sentence", "text")
_ANSWER_NAMES = ("answer", "label", "target")
PIXELS = "pixels.u8"


class CaptionSource(FileSource):
    """Pairs of an image path and a caption, from CSV, TSV, JSON Lines, Parquet or COCO JSON files.

    columns: names or numbers of the image and the caption column; by default those with common names.
    to: the column with the language of each caption, which becomes a third field, `to`.
    images: folder of the images of COCO files, by default the folder of the file or its subfolder `images`.
    """

    fields: tuple[str, ...] = ("image", "caption")
    names: tuple[tuple[str, ...], ...] = (_IMAGE_NAMES, _CAPTION_NAMES)

    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[Column] | None = None,
        to: Column | None = None,
        images: str | Path | None = None,
        **text: Unpack[TableOptions],
    ) -> None:
        super().__init__(list_paths(paths), columns, to, images)
        self.images, self._columns, self._to = images, columns, to
        if columns is not None and len(columns) != len(self.fields):
            raise InvalidValueError("columns", list(columns), f"columns of {' and '.join(self.fields)}")
        if images is not None and not Path(images).is_dir():
            raise FileMissingError(images, "folder of images")
        self._parts: list[tuple[Path, TableSource | list[tuple[str, ...]]]] = []
        for path in self.paths:
            if path.suffix.lower() == ".json" and to is not None:
                hint = "use a table, or leave out the language column"
                raise FileProblemError(path, "is in COCO's caption format, without languages", hint=hint)
            self._parts.append((path, self._open(path, text)))

    def _open(self, path: Path, text: TableOptions) -> TableSource | list[tuple[str, ...]]:
        return _read_coco(path) if path.suffix.lower() == ".json" else self._table(path, text)

    def _table(self, path: Path, text: TableOptions) -> TableSource:
        table = open_table(path, **text)
        columns = self._columns
        if columns is None:
            names = table.head().header()
            found = [find_column(names, known) for known in self.names]
            if None in found:
                raise columns_unclear(table, names, f"the {' and the '.join(self.fields)}")
            columns = [name for name in found if name is not None]
        fields = self.fields
        chosen: tuple[Column, ...] = tuple(columns)
        if self._to is not None:
            fields, chosen = (*fields, "to"), (*chosen, self._to)
        source = TableSource(fields, [table], chosen, [clean_text] * len(fields))
        self.columns_by_field = source.columns_by_field
        return source

    def rows(self, errors: RowErrors) -> Iterator[tuple[str, ...]]:
        for path, part in self._parts:
            for image, *texts in part.rows(errors) if isinstance(part, TableSource) else part:
                yield str(self._locate(path, image)), *texts

    def _locate(self, file: Path, image: str) -> Path:
        folders = [Path(self.images)] if self.images is not None else [file.parent, file.parent / "images"]
        try:
            return find_inside(folders, image) or folders[0] / image
        except ValueError as error:
            raise FileProblemError(file, str(error), hint="name files below the folder of images") from None


class ImageQuestionSource(CaptionSource):
    """Rows of an image path, a question and one of its answers; further answers are in further rows."""

    fields = ("image", "question", "answer")
    names = (_IMAGE_NAMES, _QUESTION_NAMES, _ANSWER_NAMES)

    def _open(self, path: Path, text: TableOptions) -> TableSource:
        if path.suffix.lower() == ".json":
            hint = "use a table with the columns image, question and answer"
            raise FileProblemError(path, "is not a table", hint=hint)
        return self._table(path, text)


def _read_coco(path: Path) -> list[tuple[str, ...]]:
    """Read pairs of COCO's caption format; captions may also be lists in the image entries."""
    try:
        data: Any = read_json(path)
        names = {image["id"]: str(image["file_name"]) for image in data["images"]}
        pairs: list[tuple[str, ...]] = [
            (names[entry["image_id"]], str(entry["caption"]).strip())
            for entry in data.get("annotations", ())
            if "caption" in entry
        ]
        for image in data["images"]:
            pairs += [(names[image["id"]], str(text).strip()) for text in image.get("captions", ())]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileProblemError(path, f"is not in COCO's caption format ({error!r})") from None
    pairs = [pair for pair in pairs if pair[1]]
    if not pairs:
        raise FileProblemError(path, "has no captions")
    return pairs


def write_pixels(folder: Path, images: Sequence[ImageLike], processor: ImageProcessor) -> list[str]:
    """Decode and resize images, and write their pixels (N, H, W, 3); return the reason of each bad one.

    An image that cannot be read is written as zeros; its reason is not empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    height, width = processor.size["height"], processor.size["width"]
    with (folder / PIXELS).open("wb") as file:
        for image in images:
            try:
                pixels, reason = processor.fit(load_image(image)), ""
            except (FileMissingError, FileProblemError, InvalidValueError) as error:
                pixels, reason = np.zeros((height, width, 3), np.uint8), str(error)
            file.write(np.ascontiguousarray(pixels).tobytes())
            reasons.append(reason)
    return reasons


class CaptionExamples(EqualLengths, StoredExamples):
    """Pairs of images and captions as model inputs.

    store: fields caption (token ids) and image (one number). folder: has the pixels. length: captions are
    padded to this length; 0 pads to the longest of the batch.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        processor: ImageProcessor,
        *,
        pad_id: int,
        length: int = 0,
        augment: Augment | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(store, pad_id=pad_id)
        self.processor, self.length = processor, length
        self.augment, self.seed = augment, seed
        shape = (processor.size["height"], processor.size["width"], 3)
        self.pixels = np.memmap(folder / PIXELS, np.uint8, "r").reshape(-1, *shape)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return images (B, 3, H, W), normalized, ids (B, T) and the number of each image (B,)."""
        (ids, *_, numbers), lengths = self.store.gather(rows)
        padded = pad(ids, lengths[:, 0], self.pad_id)
        missing = self.length - padded.shape[1]
        if missing > 0:
            padded = np.pad(padded, ((0, 0), (0, missing)), constant_values=self.pad_id)
        return {"images": self.images(numbers, rows, epoch), "ids": padded, "numbers": numbers}

    def images(self, numbers: NDArray[np.int64], rows: NDArray[np.int64], epoch: int) -> NDArray[np.float32]:
        """Return images by number, augmented for their rows and normalized (B, 3, H, W)."""
        pixels = np.asarray(self.pixels[numbers])
        if self.augment is not None:
            pixels = self.augment.augment(pixels, rows, seed=self.seed, epoch=epoch)
        return self.processor.normalize(pixels)


class CaptionTargets(CaptionExamples):
    """Images as sources, and captions as targets: the input of the decoder is the caption shifted right.

    start_id: the first token of a target. prompt: number of tokens of a caption that are given, not learned.
    """

    def __init__(self, store: Store, *, start_id: int, prompt: int = 0, **options: Any) -> None:
        super().__init__(store, **options)
        self.start_id, self.prompt = start_id, prompt

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return src (B, 3, H, W), normalized, tgt (B, T) and labels (B, T)."""
        arrays, ids = super().batch(rows, epoch=epoch), self.store.gather(rows)
        labels = pad(ids[0][0], ids[1][:, 0], IGNORE_INDEX)
        tgt = np.roll(arrays["ids"], 1, axis=1)
        tgt[:, 0] = self.start_id
        labels[:, : self.prompt] = IGNORE_INDEX
        return {"src": arrays["images"], "tgt": tgt, "labels": labels}

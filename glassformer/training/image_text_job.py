"""The base of jobs that train on images with texts: contrastive, caption, vqa."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from glassformer.bundle import Bundle
from glassformer.data.captions import CaptionSource, write_pixels
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source
from glassformer.data.split import fraction_with_a_row
from glassformer.data.store import Ragged, Store
from glassformer.errors import EmptyInputError
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE, JobInfo
from glassformer.messages import quantity
from glassformer.schema import setting
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.encoding import Encoded, Row, encode_rows, max_id
from glassformer.training.hardware import Hardware
from glassformer.training.learner import count_pairs
from glassformer.training.model_setup import choose_patch_size, supported_options
from glassformer.training.sections import Columns, Paths, TableSection
from glassformer.training.text_job import TextJob


@dataclass(frozen=True, kw_only=True)
class CaptionData(Augment, TableSection):
    """Images and their captions."""

    train: Paths = sections.train_files(
        "tables with an image path and a caption in a row, or COCO caption files"
    )
    valid: Paths | float = sections.valid_split(0.05)
    columns: Columns | None = sections.column_names("image and caption column, e.g. `[image, caption]`")
    images: str | None = setting(
        None, "folder of the images; null is the folder of the file, or its subfolder images", unit="folder"
    )
    image_size: tuple[int, ...] = sections.image_sides("a base model keeps its own", (224, 224))
    max_len: int | None = sections.maximum_length("a caption; longer ones are truncated", default=64)


CaptionSection = TypeVar("CaptionSection", bound=CaptionData)


class ImageTextJob(TextJob[CaptionSection]):
    """Train on images with captions: the pixels of every image are stored once, the captions as token ids.

    The fields of the store are those of `encode`, by default the token ids of a caption, and the number of
    its image.
    """

    fields: tuple[str, ...] = ("caption", "image")
    row, unit, count = "pair", "pairs", staticmethod(count_pairs)
    default_max_len = 64
    min_valid_images: ClassVar[int] = 1
    language_column: str | int | None = None
    processor: ImageProcessor

    def base_image_input(self) -> Any:
        """Return the spec of the image input of the base model, None without a base; raise if unsupported."""
        raise NotImplementedError

    @property
    def cache_key(self) -> tuple[object, ...]:
        return self.max_len, tuple(self.processor.size.items())

    def prepare_data(self) -> None:
        self.processor = self.image_processor()
        if isinstance(self.data.valid, float):
            source, seed = self.open_files(self.data.train), self.recipe.seed
            fraction = fraction_with_a_row(source, self.data.valid, seed=seed, count=self.min_valid_images)
            self.update_data(valid=fraction)
        super().prepare_data()

    def log_data(self) -> None:
        super().log_data()
        corpus = self.corpus
        if skipped := corpus.total("skipped"):
            reason = corpus.train_notes["reason"] or corpus.notes["valid"]["reason"]
            self.facts["unreadable images"] = skipped
            self.log(f"skipped {quantity(skipped, 'pair')} with an unreadable image, e.g. {reason}")

    def finish_pixels(self, folder: Path) -> None:
        """Add to the pixels of a split."""
        return  # most jobs read the pixels

    def image_processor(self) -> ImageProcessor:
        """Return how images are resized and normalized."""
        read = self.base_image_input()
        if read is not None and self.base is not None:
            config = self.base.files.get(IMAGE_PROCESSOR_FILE, {})
            known = ImageProcessor.from_dict(config, image_size=read.image_size)
            exact = {"height": read.image_size[0], "width": read.image_size[1]}
            if known.fixed_size is None:  # its type stands for images of several sizes
                known = replace(known, image_processor_type="ViTImageProcessor", do_pad=False, size_divisor=0)
            return replace(known, size=exact, do_center_crop=False, crop_size=None)
        size = self.data.image_size
        return ImageProcessor(size={"height": size[0], "width": size[-1]}, resample=3)

    @property
    def image_size(self) -> tuple[int, int]:
        return self.processor.size["height"], self.processor.size["width"]

    def open_files(self, files: Sequence[str]) -> CaptionSource:
        data, to = self.data, self.language_column
        return CaptionSource(files, columns=data.columns, to=to, images=data.images, **data.table_options)

    def texts(self, row: Row) -> Sequence[str]:
        return row[1:2]

    def write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        """Write token ids with the number of each image, and the pixels of every image once."""
        rows = list(source.rows(problems))
        paths = list(dict.fromkeys(row[0] for row in rows))
        reasons = dict(zip(paths, write_pixels(pixel_folder(folder), paths, self.processor), strict=True))
        self.finish_pixels(pixel_folder(folder))
        good = [row for row in rows if not reasons[row[0]]]
        reason = next(filter(None, reasons.values()), "")
        if not good:
            raise EmptyInputError("list of images that can be read", hint=reason)
        numbers = {path: n for n, path in enumerate(paths)}

        def encode(group: list[Row]) -> Encoded:
            fields, counts = self.encode(tokenizer, group)
            return (*fields, Ragged.of([[numbers[row[0]]] for row in group])), counts

        most = max(max_id(tokenizer), len(paths), self.max_value())
        counts = encode_rows(self, folder, good, self.fields, encode, max_id=most)
        return {**self.notes(counts), "skipped": len(rows) - len(good), "reason": reason}

    def example_options(self, store: Store, *, augment: bool) -> dict[str, Any]:
        """Return the arguments of `CaptionExamples`."""
        return {
            "store": store,
            "folder": pixel_folder(store.folder),
            "processor": self.processor,
            "pad_id": self.corpus.pad_id,
            "augment": self.data if augment else None,
            "seed": self.recipe.seed,
        }

    def choose_image_model(
        self,
        hardware: Hardware,
        more: Any = lambda size, options: {},
        *,
        tuned_lr: float = 1e-5,
        **training: Any,
    ) -> list[str]:
        """Fill in the sizes of the model and the length of the training.

        more: (size, options of an image encoder) -> further options. tuned_lr: to fine-tune a model.
        training: `fill_training`'s arguments.
        """
        count, tuning = len(self.corpus.train), self.fine_tuning
        height, width = self.image_size
        read = self.base_image_input()
        patch = None if read is None else read.patch_size[0]
        patch = patch or self.recipe.model.overrides.get("patch_size") or choose_patch_size(height, width)
        size, epochs, reasons = self.choose_size(
            hardware,
            units=count * (height // patch) * (width // patch),
            unit="image patches",
            vocab_size=self.corpus.tokenizer.vocab_size,
            stacks=2,
            epochs=min(100.0, max(10.0, 1_000_000 / count)),
        )
        own = {name: value for name, value in size.options().items() if name != "dropout"}
        self.fill_model(supported_options(self.preset, {**own, **more(size, own), "patch_size": patch}))
        return reasons + self.fill_training(
            self.train_examples(),
            batch=max(2, min(1024 if hardware.on_gpu else 128, count // 4)),
            epochs=5 if tuning else epochs,
            lr=tuned_lr if tuning else min(1e-3, 0.1 / size.d_model),
            **training,
        )

    def with_sidecars(self, bundle: Bundle, **info: Any) -> Bundle:
        """Return the model with the tokenizer, the image processor and `job.json`. info: of the last."""
        corpus = self.corpus
        files = {**bundle.files, IMAGE_PROCESSOR_FILE: self.processor.to_dict()}
        job = JobInfo(name=self.recipe.job, max_len=self.max_len, data_columns=corpus.data_columns, **info)
        return replace(bundle, tokenizer=corpus.tokenizer, files=files, job=job)


def pixel_folder(split: Path) -> Path:
    """Return the folder with the pixels of a split."""
    return split.with_name(f"{split.name}-pixels")

"""Job `contrastive`: train an image and a text tower on images with captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer.bundle import Bundle
from glassformer.core.schema import setting
from glassformer.data.captions import CaptionExamples, CaptionSource, write_pixels
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source
from glassformer.data.split import fraction_with_a_row
from glassformer.data.store import Ragged, Store
from glassformer.errors import EmptyInputError
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE, JobInfo
from glassformer.messages import quantity
from glassformer.metrics.embedding import retrieval_recall
from glassformer.processors.text import truncate_longest_first
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.encoding import Encoded, Row, encode_rows, max_id
from glassformer.training.hardware import Hardware
from glassformer.training.job_spec import JobSpec
from glassformer.training.learner import ContrastiveLearner, count_pairs
from glassformer.training.model_setup import (
    build_initialized,
    choose_patch_size,
    new_model_spec,
    supported_options,
)
from glassformer.training.recipe import BatchLimits
from glassformer.training.sections import Columns, Paths, TableSection
from glassformer.training.task import ValidationResult, evaluation_batches
from glassformer.training.text_job import TextJob, check_vocabulary

RANKS = (1, 5, 10)  # of recall@k


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


class ContrastiveJob(TextJob[CaptionData]):
    """Train an image and a text tower."""

    template = "bos_eos"
    fields = ("caption", "image")
    row, unit, count = "pair", "pairs", staticmethod(count_pairs)
    default_max_len = 64
    processor: ImageProcessor

    def check_base(self) -> dict[str, Any] | None:
        """Return the specs of the towers of the base model; raise if it does not have two towers."""
        if self.base is None:
            return None
        towers = self.base.spec.children()
        if {*towers} != {"image", "text"}:
            raise self.unsupported_model("use a model with an image and a text tower, e.g. clip or siglip")
        return towers

    def check_model(self) -> None:
        super().check_model()
        if not self.fine_tuning and not supported_options(self.preset, {"text_d_model": 1}):
            raise self.unsupported_model("use clip or siglip")

    def fill_max_len(self) -> None:
        base = self.check_base()
        if base is None:
            super().fill_max_len()
            return
        limit = base["text"].input.position.max_len
        self.update_data(max_len=min(limit, self.max_len or limit))

    @property
    def cache_key(self) -> tuple[object, ...]:
        return self.max_len, tuple(self.processor.size.items())

    def prepare_data(self) -> None:
        self.processor = self._image_processor()
        if isinstance(self.data.valid, float):
            source, seed = self.open_files(self.data.train), self.recipe.seed
            self.update_data(valid=fraction_with_a_row(source, self.data.valid, seed=seed))
        super().prepare_data()

    def log_data(self) -> None:
        super().log_data()
        corpus = self.corpus
        if skipped := corpus.total("skipped"):
            reason = corpus.train_notes["reason"] or corpus.notes["valid"]["reason"]
            self.facts["unreadable images"] = skipped
            self.log(f"skipped {quantity(skipped, 'pair')} with an unreadable image, e.g. {reason}")

    def _image_processor(self) -> ImageProcessor:
        base = self.check_base()
        if base is not None and self.base is not None:
            read = base["image"].input
            config = self.base.files.get(IMAGE_PROCESSOR_FILE, {})
            known = ImageProcessor.from_dict(config, image_size=read.image_size)
            exact = {"height": read.image_size[0], "width": read.image_size[1]}
            return replace(known, size=exact, do_center_crop=False, crop_size=None)
        size = self.data.image_size
        return ImageProcessor(size={"height": size[0], "width": size[-1]}, resample=3)

    def open_files(self, files: Sequence[str]) -> CaptionSource:
        data = self.data
        return CaptionSource(files, columns=data.columns, images=data.images, **data.table_options)

    def texts(self, row: Row) -> Sequence[str]:
        return row[1:]

    def write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        """Write token ids with the number of each image, and the pixels of every image once."""
        rows = list(source.rows(problems))
        paths = list(dict.fromkeys(row[0] for row in rows))
        reasons = dict(zip(paths, write_pixels(pixel_folder(folder), paths, self.processor), strict=True))
        good = [row for row in rows if not reasons[row[0]]]
        reason = next(filter(None, reasons.values()), "")
        if not good:
            raise EmptyInputError("list of images that can be read", hint=reason)
        numbers = {path: n for n, path in enumerate(paths)}

        def encode(group: list[Row]) -> Encoded:
            fields, counts = self.encode(tokenizer, group)
            return (*fields, Ragged.of([[numbers[path]] for path, _ in group])), counts

        encode_rows(self, folder, good, self.fields, encode, max_id=max(max_id(tokenizer), len(paths)))
        return {"skipped": len(rows) - len(good), "reason": reason}

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        encoded = tokenizer.encode_batch([caption for _, caption in rows])
        return [Ragged.of([truncate_longest_first(text, self.max_len).ids for text in encoded])], {}

    def examples(self, store: Store, *, augment: bool = False) -> CaptionExamples:
        return CaptionExamples(
            store,
            pixel_folder(store.folder),
            self.processor,
            pad_id=self.corpus.pad_id,
            length=self.max_len if self._reads_padding else 0,
            augment=self.data if augment else None,
            seed=self.recipe.seed,
        )

    @property
    def _reads_padding(self) -> bool:
        """Whether captions are padded to the full length, since the text tower reads the last position."""
        base = self.check_base()
        if base is not None:
            return getattr(base["text"].head, "pool", "") == "last_position"
        return "end_id" not in supported_options(self.preset, {"end_id": 0})

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        count, tuning = len(self.corpus.train), self.fine_tuning
        height, width = self.processor.size["height"], self.processor.size["width"]
        patch = self.recipe.model.overrides.get("patch_size") or choose_patch_size(height, width)
        size, epochs, reasons = self.choose_size(
            hardware,
            units=count * (height // patch) * (width // patch),
            unit="image patches",
            vocab_size=self.corpus.tokenizer.vocab_size,
            stacks=2,
            epochs=min(100.0, max(10.0, 1_000_000 / count)),
        )
        own = {name: value for name, value in size.options().items() if name != "dropout"}
        text = {f"text_{name}": value for name, value in own.items()}
        options = {**own, **text, "patch_size": patch}
        if not self._reads_padding:  # the other family has the width of the image tower
            options["projection_dim"] = size.d_model
        self.fill_model(supported_options(self.preset, options))
        return reasons + self.fill_training(
            self.train_examples(),
            batch=max(2, min(1024 if hardware.on_gpu else 128, count // 4)),
            epochs=5 if tuning else epochs,
            lr=1e-5 if tuning else min(1e-3, 0.1 / size.d_model),
        )

    def build(self) -> Bundle:
        corpus, base = self.corpus, self.base
        size = self.processor.size["height"], self.processor.size["width"]
        if base is None:
            fixed = {"vocab_size": corpus.tokenizer.vocab_size, "max_len": self.max_len, "image_size": size}
            ends = supported_options(self.preset, {"end_id": corpus.eos_id})
            spec = new_model_spec(self.recipe.model, {**fixed, **ends})
            bundle = Bundle(model=build_initialized(spec))
        else:
            towers = self.check_base()
            assert towers is not None
            check_vocabulary(corpus, towers["text"].input.vocab_size)
            bundle = base
        files = {**bundle.files, IMAGE_PROCESSOR_FILE: self.processor.to_dict()}
        columns = corpus.data_columns
        job = JobInfo(name=self.recipe.job, max_len=self.max_len, data_columns=columns)
        return replace(bundle, tokenizer=corpus.tokenizer, files=files, job=job)

    def learner(self, model: Any) -> ContrastiveLearner:
        return ContrastiveLearner(model)

    def validate(
        self, learner: ContrastiveLearner, valid: CaptionExamples, device: torch.device
    ) -> ValidationResult:
        images, texts = [], []
        numbers, loss = [], 0.0
        limits = self.recipe.training.batch_limits(BatchLimits(batch_size=128))
        for _, arrays, tensors in evaluation_batches(valid, device, limits):
            loss += float(learner.forward(**tensors))
            images.append(learner.model.embed_images(tensors["images"]).float().cpu().numpy())
            texts.append(learner.model.embed_texts(tensors["ids"]).float().cpu().numpy())
            numbers.append(arrays["numbers"])
        owner = np.concatenate(numbers)
        first = np.unique(owner, return_index=True)[1]  # every image once
        pictures, captions = np.concatenate(images)[first], np.concatenate(texts)
        to_text = retrieval_recall(pictures, captions, owner[first], owner, RANKS)
        to_image = retrieval_recall(captions, pictures, owner, owner[first], RANKS)
        metrics = {"loss": loss / len(valid)}
        metrics |= {f"image_to_text_recall_at_{k}": value for k, value in to_text.items()}
        metrics |= {f"text_to_image_recall_at_{k}": value for k, value in to_image.items()}
        return ValidationResult(metrics={**metrics, "recall_at_1": (to_text[1] + to_image[1]) / 2})


def pixel_folder(split: Path) -> Path:
    """Return the folder with the pixels of a split."""
    return split.with_name(f"{split.name}-pixels")


JOB = JobSpec(
    name="contrastive",
    summary="Train an image and a text tower on images with captions.",
    factory=ContrastiveJob,
    data=CaptionData,
    metrics=(
        "loss",
        "recall_at_1",
        *(f"{way}_recall_at_{k}" for way in ("image_to_text", "text_to_image") for k in RANKS),
    ),
    metric="recall_at_1",
    preset="clip",
    batch_unit="examples",
)

"""The job that trains an image and a text tower on images with captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle, save
from glassformer.core import spec as specs
from glassformer.core.model import TwoTower
from glassformer.data.captions import CaptionExamples, CaptionSource, write_pixels
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source
from glassformer.data.split import fraction_with_a_row
from glassformer.data.store import Ragged, Store
from glassformer.errors import EmptyInputError
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE, JobInfo
from glassformer.metrics.embedding import retrieval_recall
from glassformer.tasks.base import truncate_longest_first
from glassformer.tokenization import Tokenizer
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.classification import choose_patch_size
from glassformer.training.jobs.text import (
    Row,
    TextCorpus,
    check_vocabulary,
    encode_rows,
    log_counts,
    max_id,
    prepare_corpus,
)
from glassformer.training.learner import Learner
from glassformer.training.losses import contrastive_loss
from glassformer.training.model_setup import build_initialized, choose_size, new_model_spec, supported_options
from glassformer.training.recipe import CaptionData
from glassformer.training.task import LearnerTask, ValidationResult, evaluation_batches

RANKS = (1, 5, 10)  # of recall@k
MAX_SCALE = 4.6052  # upper bound of the trained scale: log(100)


def count_pairs_of(batch: Mapping[str, Any]) -> int:
    """Return the number of pairs in a batch."""
    return len(batch["ids"])


class ContrastiveLearner(Learner):
    """Train two towers so that each image is most similar to its caption, and each caption to its image.

    The negatives of a pair are the other pairs of the same micro-batch on the same device, so accumulation
    does not add negatives. A pair with the same image or the same caption is not a negative.
    """

    model: TwoTower

    def forward(self, images: Tensor, ids: Tensor, numbers: Tensor) -> Tensor:
        with torch.no_grad():
            self.model.head.scale.clamp_(max=MAX_SCALE)
        pictures, texts = self.model.embed_images(images), self.model.embed_texts(ids)
        with torch.autocast(ids.device.type, enabled=False):  # a scale of 100 would magnify rounding errors
            logits = self.model.head(pictures.float(), texts.float())
        same = (ids[:, None] == ids).all(-1) | (numbers[:, None] == numbers)
        targets = torch.arange(len(ids), device=ids.device)
        if isinstance(self.model.spec.head, specs.SigmoidSimilaritySpec):
            return contrastive_loss(logits, targets, same, sigmoid=True)
        return (contrastive_loss(logits, targets, same) + contrastive_loss(logits.T, targets, same)) / 2


class ContrastiveJob(Job[CaptionData]):
    """Train an image and a text tower; evaluated with recall@1, 5 and 10 in both directions."""

    default_preset = "clip"
    default_max_len = 64
    corpus: TextCorpus
    processor: ImageProcessor

    def check_base(self) -> specs.TwoTowerSpec | None:
        """Return the spec of the base model; raise if it does not have two towers."""
        if self.base is None:
            return None
        if not isinstance(self.base.spec, specs.TwoTowerSpec):
            raise self.unsupported_model("use a model with an image and a text tower, e.g. clip or siglip")
        return self.base.spec

    def check_model(self) -> None:
        super().check_model()
        if not self.fine_tuning and not supported_options(self.preset, {"text_d_model": 1}):
            raise self.unsupported_model("use clip or siglip")

    def fill_max_len(self) -> None:
        base = self.check_base()
        if base is None:
            super().fill_max_len()
            return
        limit = base.text.input.position.max_len  # type: ignore[union-attr]
        self.update_data(max_len=min(limit, self.max_len or limit))

    def prepare_data(self) -> None:
        self.fill_max_len()
        self.processor = self._image_processor()
        size = self.processor.size
        if isinstance(self.data.valid, float):
            source, seed = self._read(self.data.train), self.recipe.seed
            self.update_data(valid=fraction_with_a_row(source, self.data.valid, seed=seed))
        self.corpus = corpus = prepare_corpus(
            self,
            self._read,
            self._write,
            cache_key=(self.max_len, tuple(size.items())),
            template="bos_eos",
            texts=lambda row: row[1:],
        )
        log_counts(self, corpus, "pairs")
        if skipped := corpus.total("skipped"):
            reason = corpus.train_notes["reason"] or corpus.notes["valid"]["reason"]
            self.facts["unreadable images"] = skipped
            self.log(f"skipped {skipped:,} pairs whose image cannot be read, e.g. {reason}")

    def _image_processor(self) -> ImageProcessor:
        base = self.check_base()
        if base is not None and self.base is not None:
            read = base.image.input
            assert isinstance(read, specs.ImagePatchesSpec)
            config = self.base.files.get(IMAGE_PROCESSOR_FILE, {})
            known = ImageProcessor.from_dict(config, image_size=read.image_size)
            exact = {"height": read.image_size[0], "width": read.image_size[1]}
            return replace(known, size=exact, do_center_crop=False, crop_size=None)
        size = self.data.image_size
        return ImageProcessor(size={"height": size[0], "width": size[-1]}, resample=3)

    def _read(self, files: Sequence[str]) -> CaptionSource:
        data = self.data
        return CaptionSource(files, columns=data.columns, images=data.images, encoding=data.encoding)

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        """Write token ids with the number of each image, and the pixels of every image once."""
        rows = list(source.rows(problems))
        paths = list(dict.fromkeys(row[0] for row in rows))
        pixels = folder.with_name(f"{folder.name}-pixels")
        reasons = dict(zip(paths, write_pixels(pixels, paths, self.processor), strict=True))
        good = [row for row in rows if not reasons[row[0]]]
        reason = next(filter(None, reasons.values()), "")
        if not good:
            raise EmptyInputError("list of images that can be read", hint=reason)
        numbers = {path: n for n, path in enumerate(paths)}

        def encode(group: list[Row]) -> tuple[Ragged, ...]:
            encoded = tokenizer.encode_batch([caption for _, caption in group])
            ids = [truncate_longest_first(text, self.max_len).ids for text in encoded]
            return Ragged.of(ids), Ragged.of([[numbers[path]] for path, _ in group])

        largest = max(max_id(tokenizer), len(paths))
        encode_rows(self, folder, good, ("caption", "image"), encode, what="pairs", max_id=largest)
        return {"skipped": len(rows) - len(good), "reason": reason}

    def _examples(self, store: Store, augment: Augment | None = None) -> CaptionExamples:
        folder = store.folder.with_name(f"{store.folder.name}-pixels")
        return CaptionExamples(
            store,
            folder,
            self.processor,
            pad_id=self.corpus.pad_id,
            length=self.max_len if self._reads_padding else 0,
            augment=augment,
        )

    @property
    def _reads_padding(self) -> bool:
        """Whether captions are padded to the full length, since the text tower reads the last position."""
        base = self.check_base()
        if base is not None:
            return getattr(base.text.head, "pool", "") == "last_position"
        return "end_id" not in supported_options(self.preset, {"end_id": 0})

    def train_examples(self) -> CaptionExamples:
        """Return the training pairs, augmented as the recipe specifies."""
        data, augment = self.data, None
        if data.flip_prob or data.max_shift or data.max_rotation or data.erase_prob:
            augment = Augment(
                flip=data.flip_prob,
                shift=data.max_shift,
                rotate=data.max_rotation,
                erase=data.erase_prob,
                seed=self.recipe.seed,
            )
        return self._examples(self.corpus.train, augment)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        count, tuning = len(self.corpus.train), self.fine_tuning
        height, width = self.processor.size["height"], self.processor.size["width"]
        patch = self.recipe.model.overrides.get("patch_size") or choose_patch_size(height, width)
        size, epochs, reason = choose_size(
            hardware,
            units=count * (height // patch) * (width // patch),
            unit="image patches",
            vocab_size=self.corpus.tokenizer.vocab_size,
            stacks=2,
            epochs=min(100.0, max(10.0, 1_000_000 / count)),
            length_known=self.has_length,
        )
        own = {name: value for name, value in size.options().items() if name != "dropout"}
        text = {f"text_{name}": value for name, value in own.items()}
        options = {**own, **text, "patch_size": patch}
        if not self._reads_padding:  # the other family has the width of the image tower
            options["projection_dim"] = size.d_model
        self.fill_model(supported_options(self.preset, options))
        return ([] if tuning else [reason]) + self.fill_training(
            self.train_examples(),
            batch=max(2, min(1024 if hardware.on_gpu else 128, count // 4)),
            epochs=5 if tuning else epochs,
            lr=1e-5 if tuning else min(1e-3, 0.1 / size.d_model),
        )

    def build(self) -> Bundle:
        """Build or load the model with its tokenizer and image preprocessing, as it will be saved."""
        corpus, base = self.corpus, self.base
        size = self.processor.size["height"], self.processor.size["width"]
        if base is None:
            fixed = {"vocab_size": corpus.tokenizer.vocab_size, "max_len": self.max_len, "image_size": size}
            ends = supported_options(self.preset, {"end_id": corpus.eos_id})
            spec = new_model_spec(self.recipe.model, {**fixed, **ends})
            bundle = Bundle(model=build_initialized(spec))
        else:
            base_spec = self.check_base()
            assert base_spec is not None and isinstance(base_spec.text.input, specs.TokensSpec)
            check_vocabulary(corpus, base_spec.text.input.vocab_size)
            bundle = base
        files = {**bundle.files, IMAGE_PROCESSOR_FILE: self.processor.to_dict()}
        columns = corpus.data_columns
        job = JobInfo(name=self.recipe.job, max_len=self.max_len, data_columns=columns)
        return replace(bundle, tokenizer=corpus.tokenizer, files=files, job=job)

    def task(self) -> LearnerTask:
        bundle, training = self.build(), self.recipe.training
        learner = ContrastiveLearner(bundle.model)
        valid = self._examples(self.corpus.valid)

        def validate(device: torch.device) -> ValidationResult:
            images, texts = [], []
            numbers, loss = [], 0.0
            for _, arrays, tensors in evaluation_batches(valid, device, training.batch or 128):
                loss += float(learner.forward(**tensors))
                images.append(learner.model.embed_images(tensors["images"]).float().cpu().numpy())
                texts.append(learner.model.embed_texts(tensors["ids"]).float().cpu().numpy())
                numbers.append(arrays["numbers"])
            owner = np.concatenate(numbers)
            first = np.unique(owner, return_index=True)[1]  # every image once
            pictures, captions = np.concatenate(images)[first], np.concatenate(texts)
            metrics = {"loss": loss / len(valid)}
            to_text = retrieval_recall(pictures, captions, owner[first], owner, RANKS)
            to_image = retrieval_recall(captions, pictures, owner, owner[first], RANKS)
            metrics |= {f"image_to_text_recall_at_{k}": value for k, value in to_text.items()}
            metrics |= {f"text_to_image_recall_at_{k}": value for k, value in to_image.items()}
            metrics["recall_at_1"] = (to_text[1] + to_image[1]) / 2
            return ValidationResult(metrics=metrics)

        return LearnerTask(
            learner=learner,
            train=self.train_examples(),
            unit="pairs",
            count=count_pairs_of,
            metric="recall_at_1",
            validate=validate,
            save=partial(save, bundle),
        )

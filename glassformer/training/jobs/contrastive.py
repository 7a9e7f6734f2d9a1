"""Job `contrastive`: train an image and a text tower on images with captions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from glassformer.bundle import Bundle
from glassformer.data.captions import CaptionExamples
from glassformer.data.store import Ragged, Store
from glassformer.metrics.embedding import retrieval_recall
from glassformer.processors.text import truncate_longest_first
from glassformer.tokenization import Tokenizer
from glassformer.training.encoding import Encoded, Row
from glassformer.training.hardware import Hardware
from glassformer.training.image_text_job import CaptionData, ImageTextJob
from glassformer.training.job_spec import JobSpec
from glassformer.training.learner import ContrastiveLearner
from glassformer.training.model_setup import build_initialized, new_model_spec, supported_options
from glassformer.training.recipe import BatchLimits
from glassformer.training.task import ValidationResult, evaluation_batches
from glassformer.training.text_job import check_vocabulary

RANKS = (1, 5, 10)  # of recall@k


class ContrastiveJob(ImageTextJob[CaptionData]):
    """Train an image and a text tower."""

    template = "bos_eos"

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

    def base_image_input(self) -> Any:
        base = self.check_base()
        return None if base is None else base["image"].input

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        encoded = tokenizer.encode_batch([caption for _, caption in rows])
        return [Ragged.of([truncate_longest_first(text, self.max_len).ids for text in encoded])], {}

    def examples(self, store: Store, *, augment: bool = False) -> CaptionExamples:
        length = self.max_len if self._reads_padding else 0
        return CaptionExamples(**self.example_options(store, augment=augment), length=length)

    @property
    def _reads_padding(self) -> bool:
        """Whether captions are padded to the full length, since the text tower reads the last position."""
        base = self.check_base()
        if base is not None:
            return getattr(base["text"].head, "pool", "") == "last_position"
        return "end_id" not in supported_options(self.preset, {"end_id": 0})

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        def more(size: Any, options: dict[str, Any]) -> dict[str, Any]:
            text = {f"text_{name}": value for name, value in options.items()}
            # without it, the embeddings have the width of the image tower
            return text if self._reads_padding else {**text, "projection_dim": size.d_model}

        return self.choose_image_model(hardware, more)

    def build(self) -> Bundle:
        corpus, bundle = self.corpus, self.base
        if bundle is None:
            fixed = {
                "vocab_size": corpus.tokenizer.vocab_size,
                "max_len": self.max_len,
                "image_size": self.image_size,
            }
            ends = supported_options(self.preset, {"end_id": corpus.eos_id})
            spec = new_model_spec(self.recipe.model, {**fixed, **ends})
            bundle = Bundle(model=build_initialized(spec))
        elif (towers := self.check_base()) is not None:
            check_vocabulary(corpus, towers["text"].input.vocab_size)
        return self.with_sidecars(bundle)

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

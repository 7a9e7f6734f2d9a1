"""Diffusion models that draw images from texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from numpy.typing import NDArray
from torch import nn

from glassformer.bundle import Bundle, load
from glassformer.core import spec as specs
from glassformer.data.examples import Arrays
from glassformer.data.store import Store
from glassformer.errors import InvalidValueError
from glassformer.pretrained import model_folder
from glassformer.training import sections
from glassformer.training.diffusion_job import METRICS, DiffusionJob
from glassformer.training.diffusion_learner import DiffusionLearner
from glassformer.training.drawing_job import TextDrawingJob
from glassformer.training.image_text_job import CaptionData
from glassformer.training.job_spec import JobSpec
from glassformer.training.latents import CaptionedImages
from glassformer.training.model_setup import max_input_length, with_head
from glassformer.training.text_job import check_vocabulary

TEXT_LAYERS, TEXT_HEADS, TEXT_DROPOUT, TEXT_WIDTH = 4, 4, 0.1, 256  # of a new text encoder


@dataclass(frozen=True, kw_only=True)
class TextImageData(CaptionData):
    """Images and their captions, in one or several languages."""

    input: Literal["text"] = sections.input_kind("text", "text or class")
    image_size: tuple[int, ...] = sections.image_sides("a base model keeps its own", (64, 64))
    max_len: int | None = sections.maximum_length("a caption; longer ones are truncated", default=64)
    prediction_type: sections.PredictionType | None = sections.predicted_noise()


class PromptImages(CaptionedImages):
    """Images, or their latents, and their captions, padded to one length."""

    def batch(self, rows: NDArray[Any], *, epoch: int) -> Arrays:
        """Return inputs (B, C, h, w), ids (B, S) and the lengths of the captions (B,)."""
        batch = super().batch(rows, epoch=epoch)
        lengths = self.store.lengths(rows)[:, 0]
        return {"inputs": batch["images"], "ids": batch["ids"], "lengths": lengths}


class DrawTexts(DiffusionJob[TextImageData], TextDrawingJob[TextImageData]):
    """Train a denoiser of images with captions, and a small text encoder unless one is given."""

    condition_option = "text_dim"

    @cached_property
    def text_encoder(self) -> Bundle | None:
        """The frozen text encoder of a new model: a model of texts, or the text tower of a larger one."""
        folder = self.recipe.model.text_encoder
        if folder is None:
            return None
        bundle = load(folder, dtype="float32")
        if "text" in bundle.spec.children():
            bundle = bundle.tower("text")
        if bundle.spec.architecture != "encoder-only" or bundle.spec.modalities != ("text",):
            raise InvalidValueError("model.text_encoder", folder, "the folder of a text encoder")
        if bundle.tokenizer is None:
            raise InvalidValueError("model.text_encoder", folder, "a folder with a tokenizer")
        return with_head(bundle, specs.FeaturesSpec())

    def fill_max_len(self) -> None:
        limit = self.default_max_len if self.max_len is None else self.max_len
        known = self.base_spec.max_text_len if self.base_spec is not None else None
        if self.text_encoder is not None:
            known = max_input_length(self.text_encoder.spec)
        self.update_data(max_len=limit if known is None else min(known, self.max_len or known))

    def prepare_data(self) -> None:
        if self.text_encoder is not None:
            folder = str(model_folder(self.recipe.model.text_encoder or ""))
            self.recipe = replace(self.recipe, tokenizer=replace(self.recipe.tokenizer, folder=folder))
        super().prepare_data()

    @property
    def side(self) -> int:
        size = self.data.image_size
        return self.base_side or self.check_size(size[0], size[-1])

    @property
    def pad_id(self) -> int:
        """The padding token, as the task `draw` chooses it."""
        return self.corpus.tokenizer.pad_id or 0

    def examples(self, store: Store, *, augment: bool = False) -> PromptImages:
        options = {**self.example_options(store, augment=augment), "pad_id": self.pad_id}
        return PromptImages(length=self.model_spec.max_text_len or 0, **options)

    @property
    def model_spec(self) -> specs.DiffusionModelSpec:
        if self.base_spec is not None:
            return self.base_spec
        text: Any = self.new_text_encoder() if self.text_encoder is None else self.text_encoder.spec
        padded = getattr(text.head, "pool", "") == "last_position"  # it reads the padding
        return self.new_spec(
            3,
            self.image_size[0],
            {"num_classes": None, "text_dim": text.encoder.d_model},
            text_encoder=text,
            text_len=None if padded else self.max_len,
            mask_padding=not padded,
        )

    def new_text_encoder(self) -> specs.EncoderOnlySpec:
        """Return the spec of a small text encoder that is trained with the denoiser."""
        width = self.model_options["text_dim"] or TEXT_WIDTH
        block = specs.BlockSpec(
            attention=specs.AttentionSpec(num_heads=TEXT_HEADS),
            feed_forward=specs.FeedForwardSpec(d_ff=4 * width, activation="gelu"),
            wiring="pre",
            dropout=TEXT_DROPOUT,
        )
        return specs.EncoderOnlySpec(
            input=specs.TokensSpec(
                vocab_size=self.corpus.tokenizer.vocab_size,
                position=specs.LearnedSpec(max_len=self.max_len),
                pad_id=self.corpus.tokenizer.pad_id,
            ),
            encoder=specs.StackSpec(
                d_model=width, num_layers=TEXT_LAYERS, block=block, final_norm=specs.LayerNormSpec()
            ),
            head=specs.FeaturesSpec(),
        )

    def frozen_parts(self) -> Mapping[str, nn.Module]:
        parts = super().frozen_parts()
        return parts if self.text_encoder is None else {**parts, "text_encoder": self.text_encoder.model}

    def build(self) -> Bundle:
        bundle, corpus = self.build_model(), self.corpus
        text: Any = bundle.spec
        check_vocabulary(corpus, text.text_encoder.input.vocab_size)
        info = {"max_len": self.max_len, "data_columns": corpus.data_columns}
        return self.with_job(replace(bundle, tokenizer=corpus.tokenizer), **info)

    def learner(self, model: Any) -> DiffusionLearner:
        empty = self.corpus.tokenizer.encode("").ids
        return DiffusionLearner(model, settings=self.scheduler, empty_text=empty, pad_id=self.pad_id)


TEXTS = JobSpec(
    name="diffusion",
    input="text",
    summary="Train a model that draws images from texts.",
    factory=DrawTexts,
    data=TextImageData,
    metrics=METRICS,
    metric="loss",
    preset="pixart-mini",
    batch_unit="examples",
    defaults={"ema": 0.999},
    r_drop=False,
)

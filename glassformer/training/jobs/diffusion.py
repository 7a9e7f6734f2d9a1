"""Job `diffusion`: train a model that draws images, from classes or from texts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from glassformer.bundle import Bundle, load
from glassformer.core import spec as specs
from glassformer.data.examples import Arrays
from glassformer.data.image_files import is_array_file
from glassformer.data.images import Augment
from glassformer.data.store import Store
from glassformer.diffusion import (
    DDIM,
    FlowMatchEuler,
    ImageNoise,
    SamplerSettings,
    read_scheduler_config,
    write_scheduler_config,
)
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError
from glassformer.families.sidecars import SCHEDULER_FILE
from glassformer.pretrained import model_folder
from glassformer.tasks.drawing import DiffusionImageGenerator
from glassformer.training import sections
from glassformer.training.diffusion_learner import DiffusionLearner
from glassformer.training.drawing_job import ClassDrawingJob, DrawingJob, TextDrawingJob
from glassformer.training.hardware import Hardware
from glassformer.training.image_folder_job import ImageFolderData
from glassformer.training.image_text_job import CaptionData
from glassformer.training.job import Data
from glassformer.training.job_spec import JobSpec
from glassformer.training.latents import CaptionedImages, ClassImages
from glassformer.training.learner import count_images
from glassformer.training.model_setup import (
    build_initialized,
    find_preset,
    keep_fitting_weights,
    max_input_length,
    new_model_spec,
    supported_options,
    with_head,
)
from glassformer.training.recipe import BatchLimits
from glassformer.training.task import ValidationResult, evaluation_batches
from glassformer.training.text_job import check_vocabulary

NOISE_LEVELS = (0.2, 0.5, 0.8)  # at which the validation loss is measured
SAMPLE_STEPS, SAMPLE_GUIDANCE = 20, 3.0
IMAGES_TO_TRAIN_ON = {True: 6_000_000, False: 200_000}  # on a GPU, on a CPU
MAX_EPOCHS = 2000.0
BATCH_SIZES = {True: 256, False: 64}
TEXT_LAYERS, TEXT_HEADS, TEXT_DROPOUT, TEXT_WIDTH = 4, 4, 0.1, 256  # of a new text encoder


class DiffusionJob(DrawingJob[Data]):
    """Train a denoiser on images or on the latents of a frozen autoencoder."""

    unit, count = "images", staticmethod(count_images)
    architecture = "diffusion model"
    generator = staticmethod(
        partial(DiffusionImageGenerator, num_inference_steps=SAMPLE_STEPS, guidance_scale=SAMPLE_GUIDANCE)
    )
    sample_settings = f"{SAMPLE_STEPS} steps, guidance {SAMPLE_GUIDANCE:g}"
    condition_option: ClassVar[str]  # of a denoiser with this condition

    # ---- the model -------------------------------------------------------------------------------------

    @property
    def stride(self) -> int:
        """Pixels per row and column of the latents."""
        return 1 if self.autoencoder is None else int(self.autoencoder.spec.stride)

    @cached_property
    def scheduler(self) -> SamplerSettings:
        """The noise schedule, which says what the model predicts."""
        chosen: Any = self.data.prediction_type  # type: ignore[attr-defined]
        if self.base is None:
            return FlowMatchEuler() if chosen in (None, "flow") else DDIM(prediction_type=chosen)
        if chosen is not None:
            reason = "a base model keeps what it predicts"
            raise ConflictError(("data.prediction_type", "model.folder"), reason)
        if SCHEDULER_FILE not in self.base.files:
            raise MissingValueError(SCHEDULER_FILE, f"in the folder of {self.base.display_name}")
        return read_scheduler_config(self.base.files[SCHEDULER_FILE])

    def check_model(self) -> None:
        super().check_model()
        needed = {"out_channels": 1, self.condition_option: 1}
        if not self.fine_tuning and supported_options(self.preset, needed) != needed:
            raise self.unsupported_model(f"use {self.recipe.spec.preset} or unet-mini")

    def new_spec(
        self, channels: int, side: int, condition: Mapping[str, Any], **text: Any
    ) -> specs.DiffusionModelSpec:
        """Return the spec of a new model for square images.

        condition: options of the denoiser for its condition. text: fields of the spec for texts.
        """
        autoencoder = None if self.autoencoder is None else self.autoencoder.spec
        channels = channels if autoencoder is None else autoencoder.latents.width
        sizes = {"image_size": side // self.stride, "channels": channels, "out_channels": channels}
        fixed = supported_options(self.preset, {**sizes, **condition})
        denoiser: Any = new_model_spec(replace(self.recipe.model, preset=self.preset), fixed)
        return specs.DiffusionModelSpec(denoiser=denoiser, autoencoder=autoencoder, **text)

    def frozen_parts(self) -> Mapping[str, nn.Module]:
        """Return the parts of a new model that are not trained."""
        return {} if self.autoencoder is None else {"autoencoder": self.autoencoder}

    def build_model(self) -> Bundle:
        """Build the model, or return the one to fine-tune, with only its denoiser and new parts trained."""
        if self.base is not None:
            bundle, frozen = self.base, {*self.base.spec.children()} - {"denoiser"}
        else:
            parts = self.frozen_parts()
            model: Any = build_initialized(self.model_spec)
            for name, part in parts.items():
                getattr(model, name).load_state_dict(part.state_dict())
            files = {SCHEDULER_FILE: write_scheduler_config(self.scheduler)}
            bundle, frozen = Bundle(model=model, files=files), {*parts}
        for name in frozen:
            bundle.model.get_submodule(name).requires_grad_(False)
        return bundle

    # ---- the data --------------------------------------------------------------------------------------

    @property
    def base_side(self) -> int | None:
        """The side of the square images that the base model draws."""
        if self.base_spec is None:
            return None
        height, width = (side * self.stride for side in self.base_spec.latent_shape[-2:])
        if height != width:
            raise self.unsupported_model("use a model of square images")
        return height

    @property
    def model_options(self) -> dict[str, Any]:
        """All options of a new denoiser."""
        name, family = find_preset(self.preset)
        defaults = {key: one.default for key, one in inspect.signature(family.build).parameters.items()}
        return {**defaults, **family.presets[name], **self.recipe.model.overrides}

    @property
    def multiple(self) -> int:
        """What the sides of the images of a new model are divisible by."""
        options = self.model_options
        levels = options.get("widths")
        return self.stride * int(options["patch_size"] if levels is None else 2 ** (len(levels) - 1))

    def check_size(self, height: int, width: int) -> int:
        """Return the side of square images; raise unless the model can draw them."""
        side = self.base_side
        fits = height == width and (height % self.multiple == 0 if side is None else height == side)
        if not fits or not height:
            expected = f"a square with a side divisible by {self.multiple}" if side is None else f"{side}"
            raise InvalidValueError("data.image_size", f"{height} x {width}", expected)
        return height

    def encode_images(self, images: Tensor) -> Tensor:
        latents: Tensor = self.autoencoder.scale_latents(self.autoencoder.encode(images).latents)
        return latents.float()

    # ---- training --------------------------------------------------------------------------------------

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        self.fill_model({})
        examples = self.train_examples()
        on_gpu, count = hardware.on_gpu, len(examples)
        width = max(stack.d_model for stack in self.model_spec.denoiser.stacks().values())
        return self.fill_training(
            examples,
            batch=max(1, min(BATCH_SIZES[on_gpu], count // 4)),
            epochs=float(f"{min(MAX_EPOCHS, max(1.0, IMAGES_TO_TRAIN_ON[on_gpu] / count)):.2g}"),
            lr=1e-5 if self.fine_tuning else min(1e-3, 0.25 / width),
            early_stopping_patience=0,
        )

    def learner(self, model: Any) -> DiffusionLearner:
        return DiffusionLearner(model, settings=self.scheduler)

    def validate(self, learner: DiffusionLearner, valid: Any, device: torch.device) -> ValidationResult:
        """Compute the loss at fixed noise levels, with the same noise in every validation; draw images."""
        totals = dict.fromkeys(NOISE_LEVELS, 0.0)
        limits = self.recipe.training.batch_limits(BatchLimits(batch_size=BATCH_SIZES[True]))
        for rows, _, tensors in evaluation_batches(valid, device, limits):
            clean = tensors.pop("inputs")
            noise = ImageNoise(rows.tolist(), clean.shape[1:], device).draw()
            condition = learner.condition(**tensors)
            for share in NOISE_LEVELS:
                level = learner.objective.level(torch.full((len(clean),), share, device=device))
                totals[share] += float(learner.loss(clean, noise, level, condition))
        losses = [total / len(valid) for total in totals.values()]
        values = [sum(losses) / len(losses), *losses]
        metrics = dict(zip(self.recipe.spec.metrics, values, strict=True))
        return ValidationResult(metrics=metrics, images=self.draw_samples())


@dataclass(frozen=True, kw_only=True)
class ClassImageData(Augment, ImageFolderData):
    """Images and their classes."""

    input: Literal["class"] = sections.input_kind("class", "text or class")
    prediction_type: sections.PredictionType | None = sections.predicted_noise()


class DrawClasses(DiffusionJob[ClassImageData], ClassDrawingJob[ClassImageData]):
    """Train a denoiser of images of classes."""

    condition_option = "num_classes"

    def size(self) -> tuple[int, int] | None:
        size = super().size()
        if size is None:
            return None if self.base_side is None else (self.base_side, self.base_side)
        self.check_size(*size)
        return size

    def fit(self, height: int, width: int) -> tuple[int, int]:
        """Return the largest square in the default size that the model can draw."""
        if self.data.image_size is not None or self.base_side is not None:
            return height, width
        side = min(height, width) // self.multiple * self.multiple
        self.check_size(*((side, side) if side else (height, width)))
        return side, side

    def train_examples(self) -> ClassImages:
        seed = self.recipe.seed
        return ClassImages(self.train_set, rows=self.train_rows, augment=self.data, seed=seed)

    def valid_examples(self) -> ClassImages:
        return ClassImages(self.valid_set, rows=self.valid_rows)

    @property
    def model_spec(self) -> specs.DiffusionModelSpec:
        _, side, channels = self.train_set.shape
        return self.base_spec or self.new_spec(
            channels, side, {"num_classes": len(self.classes), "text_dim": None}
        )

    def build(self) -> Bundle:
        channels = self.train_set.shape[2]
        if self.channels not in (None, channels):
            reason = f"the images have {channels} channels and the model {self.channels}"
            raise ConflictError(("data.train", "model.folder"), reason)
        bundle = self.build_model()
        if self.base_spec is not None and bundle.job.classes != tuple(self.classes):
            bundle = with_new_classes(bundle, len(self.classes))
        return self.with_job(bundle, classes=tuple(self.classes))


def with_new_classes(bundle: Bundle, count: int) -> Bundle:
    """Return the model with a new, untrained table of classes."""
    model: Any = bundle.spec
    latents = replace(model.denoiser.input, num_classes=count)
    changed = keep_fitting_weights(bundle, replace(model, denoiser=replace(model.denoiser, input=latents)))
    frozen = {name for name, part in bundle.model.named_parameters() if not part.requires_grad}
    for name, parameter in changed.model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    config = {key: value for key, value in bundle.config.items() if key != "id2label"}
    parts = {name: part for name, part in bundle.parts.items() if name != "denoiser"}
    return replace(changed, config=config, parts=parts)


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
    metrics=("loss", *(f"loss_at_{level}" for level in NOISE_LEVELS)),
    metric="loss",
    preset="pixart-mini",
    batch_unit="examples",
    defaults={"ema": 0.999},
    r_drop=False,
)
CLASSES = replace(
    TEXTS,
    input="class",
    summary="Train a model that draws images of classes.",
    factory=DrawClasses,
    data=ClassImageData,
    preset="dit-mini",
    reads=lambda path: Path(path).is_dir() or is_array_file(path),
)
JOB = replace(TEXTS, input=None, variants=(TEXTS, CLASSES))

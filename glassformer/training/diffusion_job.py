"""The base of the job `diffusion`: the denoiser, its loss, and the sizes of images that it can draw."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
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
from glassformer.tasks.drawing import DiffusionImageGenerator
from glassformer.training.diffusion_learner import DiffusionLearner, count_inputs
from glassformer.training.drawing_job import DrawingJob
from glassformer.training.hardware import Hardware
from glassformer.training.job import Data
from glassformer.training.model_setup import build_initialized, find_preset, new_model_spec, supported_options
from glassformer.training.recipe import BatchLimits
from glassformer.training.task import ValidationResult, evaluation_batches

NOISE_LEVELS = (0.2, 0.5, 0.8)  # at which the validation loss is measured
METRICS = ("loss", *(f"loss_at_{level}" for level in NOISE_LEVELS))
SAMPLE_STEPS, SAMPLE_GUIDANCE = 20, 3.0
IMAGES_TO_TRAIN_ON = {True: 6_000_000, False: 200_000}  # on a GPU, on a CPU
MAX_EPOCHS = 2000.0
BATCH_SIZES = {True: 256, False: 64}


class DiffusionJob(DrawingJob[Data]):
    """Train a denoiser on images or on the latents of a frozen autoencoder."""

    unit, count = "images", staticmethod(count_inputs)
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
        channels = channels if autoencoder is None else autoencoder.latents.channels
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
        return ValidationResult(metrics=dict(zip(METRICS, values, strict=True)), images=self.draw_samples())

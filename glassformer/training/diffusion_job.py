"""The base of the job `diffusion`: a denoiser with its autoencoder, its loss, and the images it draws."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from glassformer.bundle import Bundle, load
from glassformer.core import spec as specs
from glassformer.data.examples import Examples
from glassformer.diffusion import (
    DDIM,
    FlowMatchEuler,
    ImageNoise,
    SamplerSettings,
    read_scheduler_config,
    write_scheduler_config,
)
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, NonFiniteError
from glassformer.families.sidecars import SCHEDULER_FILE
from glassformer.tasks.drawing import DiffusionImageGenerator, Prompt
from glassformer.training.diffusion_learner import DiffusionLearner, count_inputs
from glassformer.training.hardware import Hardware, device_for
from glassformer.training.job import Data, Job
from glassformer.training.latents import write_latents
from glassformer.training.logging.sample_images import tile_images
from glassformer.training.model_setup import build_initialized, find_preset, new_model_spec, supported_options
from glassformer.training.recipe import BatchLimits
from glassformer.training.task import SampleImage, ValidationResult, evaluation_batches

NOISE_LEVELS = (0.2, 0.5, 0.8)  # at which the validation loss is measured
METRICS = ("loss", *(f"loss_at_{level}" for level in NOISE_LEVELS))
SAMPLE_STEPS, SAMPLE_GUIDANCE = 20, 3.0
SAMPLE_COLUMNS, SAMPLE_ROWS = 10, 4
IMAGES_TO_TRAIN_ON = {True: 6_000_000, False: 200_000}  # on a GPU, on a CPU
MAX_EPOCHS = 2000.0
BATCH_SIZES = {True: 256, False: 64}


class DiffusionJob(Job[Data]):
    """Train a denoiser on images or on the latents of a frozen autoencoder."""

    unit, count = "images", staticmethod(count_inputs)
    condition: ClassVar[Literal["class", "text"]]
    condition_option: ClassVar[str]  # of a denoiser with this condition

    # ---- the model -------------------------------------------------------------------------------------

    @cached_property
    def base_spec(self) -> specs.DiffusionModelSpec | None:
        """The spec of the base model; raise if it draws nothing, or draws from something else."""
        if self.base is None:
            return None
        found: Any = self.base.spec
        if found.architecture != "diffusion model" or found.modalities != (self.condition,):
            raise self.unsupported_model(f"use a diffusion model that draws from a {self.condition}")
        return found

    @cached_property
    def autoencoder(self) -> Bundle | None:
        """The frozen autoencoder; None to draw pixels."""
        if self.base is not None:
            part = getattr(self.base.model, "autoencoder", None)
            return None if part is None else Bundle(model=part)
        folder = self.recipe.model.autoencoder
        if folder is None:
            return None
        found = load(folder, dtype="float32")
        if found.spec.architecture != "autoencoder":
            raise InvalidValueError("model.autoencoder", folder, "the folder of an autoencoder")
        return found

    @property
    def stride(self) -> int:
        """Pixels per row and column of the latents."""
        spec: Any = None if self.autoencoder is None else self.autoencoder.spec
        return 1 if spec is None else int(spec.stride)

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
        model = self.recipe.model
        needed = {"out_channels": 1, self.condition_option: 1}
        if not self.fine_tuning and supported_options(self.preset, needed) != needed:
            raise self.unsupported_model(f"use {self.recipe.spec.preset} or unet-mini")
        for name in ("autoencoder", "text_encoder"):
            if self.fine_tuning and getattr(model, name) is not None:
                raise ConflictError(("model.folder", f"model.{name}"), "the model has its own")

    def new_spec(
        self, channels: int, side: int, condition: Mapping[str, Any], **text: Any
    ) -> specs.DiffusionModelSpec:
        """Return the spec of a new model for square images.

        condition: options of the denoiser for its condition. text: fields of the spec for texts.
        """
        autoencoder: Any = None if self.autoencoder is None else self.autoencoder.spec
        channels = channels if autoencoder is None else autoencoder.latents.channels
        sizes = {"image_size": side // self.stride, "channels": channels, "out_channels": channels}
        fixed = supported_options(self.preset, {**sizes, **condition})
        denoiser: Any = new_model_spec(replace(self.recipe.model, preset=self.preset), fixed)
        return specs.DiffusionModelSpec(denoiser=denoiser, autoencoder=autoencoder, **text)

    @property
    def model_spec(self) -> specs.DiffusionModelSpec:
        """The spec of the model to build."""
        raise NotImplementedError

    def frozen_parts(self) -> Mapping[str, Bundle]:
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
                getattr(model, name).load_state_dict(part.model.state_dict())
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

    def store_latents(self, folder: Path, shape: tuple[int, int, int]) -> None:
        """Encode the stored pixels of a split, if there is an autoencoder. shape: (H, W, C)."""
        if self.autoencoder is None:
            return
        model, augment = self.autoencoder.model, self.data
        channels = self.autoencoder.spec.input.channels  # type: ignore[attr-defined]
        if channels != shape[2]:
            reason = f"it reads {channels} channels and the images have {shape[2]}"
            raise ConflictError(("model.autoencoder", "data.train"), reason)
        changed = ("max_shift", "max_rotation", "erase_prob")
        if used := [name for name in changed if getattr(augment, name)]:
            reason = "latents are stored once; only data.flip_prob changes them"
            raise ConflictError((f"data.{used[0]}", "an autoencoder"), reason)
        device = device_for(self.recipe.training.device)
        write_latents(folder, shape, model, device, flip=bool(augment.flip_prob))  # type: ignore[attr-defined]

    @cached_property
    def latents_key(self) -> tuple[object, ...]:
        """What the stored latents depend on, besides the images."""
        if self.autoencoder is None:
            return ()
        digest = hashlib.blake2b(repr(self.autoencoder.spec).encode(), digest_size=16)
        for tensor in self.autoencoder.model.state_dict().values():
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest(), bool(self.data.flip_prob)  # type: ignore[attr-defined]

    # ---- training --------------------------------------------------------------------------------------

    def choose_training(self, hardware: Hardware, examples: Examples) -> list[str]:
        """Fill in the model and the length of the training."""
        self.fill_model({})
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

    def sample_prompts(self) -> Sequence[Prompt]:
        """Return the prompts of the images that are drawn in a validation."""
        raise NotImplementedError

    def draw_samples(self) -> list[SampleImage]:
        """Draw images from the same noise in every validation: a column for each prompt."""
        prompts = self.sample_prompts()[:SAMPLE_COLUMNS]
        count = min(SAMPLE_ROWS, self.recipe.training.log_samples)
        if not count:
            return []
        generator = DiffusionImageGenerator(
            self.bundle,
            num_inference_steps=SAMPLE_STEPS,
            guidance_scale=SAMPLE_GUIDANCE,
            num_images_per_prompt=count,
            batch_size=SAMPLE_COLUMNS * SAMPLE_ROWS,
        )
        with suppress(NonFiniteError):  # the loss shows it too
            drawings = generator(prompts)
            rows = zip(*(drawing.images for drawing in drawings), strict=True)
            pixels = np.stack([np.asarray(image) for row in rows for image in row])
            pixels = pixels if pixels.ndim == 4 else pixels[..., None]
            listed = ", ".join(self.prompt_name(prompt) for prompt in prompts)
            caption = f"{listed}; {SAMPLE_STEPS} steps, guidance {SAMPLE_GUIDANCE:g}"
            grid = tile_images(pixels, columns=len(prompts))
            return [SampleImage(name="drawings", caption=caption, pixels=grid)]
        return []

    def prompt_name(self, prompt: Prompt) -> str:
        return str(prompt)

    def with_job(self, bundle: Bundle, **info: Any) -> Bundle:
        """Return the bundle with its `job.json`. info: its entries."""
        return replace(bundle, job=replace(bundle.job, name=self.recipe.job, **info))

"""The base of the job `image_tokens`: a decoder of the codes of a frozen autoencoder.

B examples, N codes of an image, T positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.bundle import Bundle, load
from glassformer.core import spec as specs
from glassformer.core.image_tokens import ImageTokensModel
from glassformer.data.captions import PIXELS
from glassformer.data.examples import IGNORE_INDEX, Arrays, Examples
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.randomness import uniform
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, NonFiniteError
from glassformer.metrics.text import perplexity
from glassformer.tasks.drawing import Prompt
from glassformer.tasks.image_tokens import TokenImageGenerator
from glassformer.training.hardware import Hardware, device_for
from glassformer.training.job import Data, Job
from glassformer.training.latents import LATENTS
from glassformer.training.learner import Learner, vocabulary_loss
from glassformer.training.logging.sample_images import tile_images
from glassformer.training.model_setup import build_initialized, new_model_spec, supported_options
from glassformer.training.recipe import BatchLimits
from glassformer.training.task import SampleImage, ValidationResult, mean_loss

CONDITION_DROPOUT = 0.1  # probability of no text or class in training, for guidance
ENCODED_IMAGES = 64  # at once
SAMPLE_COLUMNS, SAMPLE_ROWS, SAMPLE_GUIDANCE = 8, 3, 3.0  # of the images drawn in a validation
IMAGES_TO_TRAIN_ON = {True: 2_000_000, False: 100_000}  # on a GPU, on a CPU
METRICS = ("loss", "perplexity")


class ImageTokensLearner(Learner):
    """Train the decoder of a model of image tokens to predict each code from what comes before it."""

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x, context = self.model.decoder.hidden_states(ids)
        return vocabulary_loss(self.model.decoder, x, context, labels, self.label_smoothing)


def token_batch(
    spec: specs.ImageTokensModelSpec,
    conditions: Sequence[Sequence[int]],
    codes: NDArray[Any],
    dropped: NDArray[np.bool_] | None = None,
) -> Arrays:
    """Return the inputs ids and labels (B, T) for texts or classes and codes (B, N); only codes are learned.

    dropped (B,): examples without their condition.
    """
    shape = len(codes), spec.max_text_len + spec.num_cells
    ids, labels = np.full(shape, spec.image_start_id), np.full(shape, IGNORE_INDEX)
    for row, condition in enumerate(conditions):
        prompt = spec.prompt(() if dropped is not None and dropped[row] else condition)
        start = len(prompt)
        ids[row, :start] = prompt
        ids[row, start : start + spec.num_cells - 1] = codes[row, :-1]
        labels[row, start - 1 : start - 1 + spec.num_cells] = codes[row]
    return {"ids": ids, "labels": labels}


def drop_conditions(rows: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.bool_]:
    """Choose the examples that are trained without their condition (B,)."""
    return uniform(seed, epoch, rows, 2)[:, 1] < CONDITION_DROPOUT


class ImageTokensJob(Job[Data]):
    """Train a decoder on the codes of images."""

    unit = "tokens"
    condition: ClassVar[Literal["class", "text"]]

    @cached_property
    def base_spec(self) -> specs.ImageTokensModelSpec | None:
        """The spec of the base model; raise if it is not a model of image tokens for such prompts."""
        found: Any = self.base.spec if self.base else None
        if found is not None and (
            found.architecture != "image tokens model" or found.modalities != (self.condition,)
        ):
            raise self.unsupported_model(f"use a model of image tokens that draws from a {self.condition}")
        return found

    @cached_property
    def autoencoder(self) -> Any:
        """The frozen autoencoder."""
        if self.base is not None:
            return self.base.model.autoencoder
        folder = self.recipe.model.autoencoder
        if folder is None:
            hint = "train one with the job autoencoder"
            raise MissingValueError("model.autoencoder", "by the job image_tokens", hint)
        model: Any = load(folder, dtype="float32").model
        if not getattr(model.spec, "num_codes", None):
            raise InvalidValueError(
                "model.autoencoder", folder, "the folder of an autoencoder with a codebook"
            )
        return model

    def check_model(self) -> None:
        super().check_model()
        options = replace(self.recipe.model, preset=self.preset)
        if self.base_spec is None and new_model_spec(options, {}).architecture != "decoder-only":
            raise self.unsupported_model("use llama or another family of decoders")
        if self.fine_tuning and self.recipe.model.autoencoder is not None:
            raise ConflictError(("model.folder", "model.autoencoder"), "the model has its own")

    def new_spec(self, words: int, max_text_len: int) -> specs.ImageTokensModelSpec:
        """Return the spec of a new model. words: number of tokens of the texts, or of classes."""
        autoencoder = self.autoencoder.spec
        rows, columns = (side // autoencoder.stride for side in autoencoder.input.image_size)
        sizes = {
            "vocab_size": autoencoder.num_codes + 1 + words,
            "max_len": max_text_len + 1 + rows * columns,
        }
        decoder: Any = new_model_spec(replace(self.recipe.model, preset=self.preset), sizes)
        head = specs.LanguageModelSpec(vocab_size=autoencoder.num_codes)
        return specs.ImageTokensModelSpec(
            decoder=replace(decoder, head=head, tied=()),
            autoencoder=autoencoder,
            num_classes=words if self.condition == "class" else None,
        )

    @property
    def model_spec(self) -> specs.ImageTokensModelSpec:
        """The spec of the model to build."""
        raise NotImplementedError

    def build_model(self, **info: Any) -> Bundle:
        """Build the model, or return the one to fine-tune; its autoencoder is not trained."""
        if self.base is None:
            decoder: Any = build_initialized(self.model_spec.decoder)
            model = ImageTokensModel(self.model_spec, decoder=decoder, autoencoder=self.autoencoder)
            bundle = Bundle(model=model)
        else:
            bundle = self.base
        self.autoencoder.requires_grad_(False)
        return replace(bundle, job=replace(bundle.job, name=self.recipe.job, **info))

    # ---- the data --------------------------------------------------------------------------------------

    @property
    def side(self) -> int:
        """The side of the images that the autoencoder was trained on."""
        side, chosen = self.autoencoder.spec.input.image_size[0], self.data.image_size  # type: ignore[attr-defined]
        if chosen is not None and {*chosen} != {side}:
            raise InvalidValueError("data.image_size", list(chosen), f"{side}, as of the autoencoder")
        return int(side)

    @cached_property
    def codes_key(self) -> tuple[object, ...]:
        """What the stored codes depend on, besides the images."""
        digest = hashlib.blake2b(repr(self.autoencoder.spec).encode(), digest_size=16)
        for tensor in self.autoencoder.state_dict().values():
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest(), bool(self.data.flip_prob)  # type: ignore[attr-defined]

    @torch.no_grad()
    def store_codes(self, folder: Path) -> None:
        """Encode the stored pixels of a split (M, H, W, 3) to codes (M, 1 or 2, N), with mirror images."""
        augment: Any = self.data
        changed = ("max_shift", "max_rotation", "erase_prob")
        if used := [name for name in changed if getattr(augment, name)]:
            reason = "codes are stored once; only data.flip_prob changes them"
            raise ConflictError((f"data.{used[0]}", "model.autoencoder"), reason)
        pixels = np.memmap(folder / PIXELS, np.uint8, "r").reshape(-1, self.side, self.side, 3)
        normalize, stored = ImageProcessor().normalize, []
        device = device_for(self.recipe.training.device)
        model = self.autoencoder.to(device).eval()
        for start in range(0, len(pixels), ENCODED_IMAGES):
            images = torch.from_numpy(normalize(pixels[start : start + ENCODED_IMAGES])).to(device)
            both = (images, images.flip(-1)) if augment.flip_prob else (images,)
            ids = [model.encode(one).ids.flatten(1).int().cpu().numpy() for one in both]
            stored.append(np.stack(ids, 1))
        np.save(folder / LATENTS, np.concatenate(stored))

    # ---- training --------------------------------------------------------------------------------------

    def choose_training(self, hardware: Hardware, examples: Examples) -> list[str]:
        """Fill in the size of the model and the length of the training."""
        count = len(examples)
        cells = self.autoencoder.spec
        tokens = count * (cells.input.image_size[0] // cells.stride) ** 2
        epochs = min(300.0, max(1.0, IMAGES_TO_TRAIN_ON[hardware.on_gpu] / count))
        size, epochs, reasons = self.choose_size(
            hardware, units=tokens, unit="image tokens", vocab_size=cells.num_codes, epochs=epochs
        )
        self.fill_model(supported_options(self.preset, size.options()))
        return reasons + self.fill_training(
            examples,
            batch=max(2, min(256 if hardware.on_gpu else 32, count // 4)),
            epochs=5 if self.fine_tuning else float(f"{epochs:.2g}"),
            lr=1e-4 if self.fine_tuning else min(1e-3, 0.25 / size.d_model),
        )

    def learner(self, model: Any) -> ImageTokensLearner:
        return ImageTokensLearner(model, label_smoothing=self.recipe.training.label_smoothing or 0.0)

    def validate(self, learner: ImageTokensLearner, valid: Any, device: torch.device) -> ValidationResult:
        """Compute the loss of the codes, and draw images."""
        limits = self.recipe.training.batch_limits(BatchLimits(batch_size=128))
        loss = mean_loss(learner, valid, device, batch=limits)
        metrics = {"loss": loss, "perplexity": perplexity(loss)}
        return ValidationResult(metrics=metrics, images=self.draw_samples())

    def sample_prompts(self) -> Sequence[Prompt]:
        """Return the prompts of the images that are drawn in a validation."""
        raise NotImplementedError

    def draw_samples(self) -> list[SampleImage]:
        """Draw images with the same seeds in every validation: a column for each prompt."""
        prompts = self.sample_prompts()[:SAMPLE_COLUMNS]
        if not self.recipe.training.log_samples:
            return []
        task = TokenImageGenerator(
            self.bundle,
            guidance_scale=SAMPLE_GUIDANCE,
            num_images_per_prompt=SAMPLE_ROWS,
            batch_size=SAMPLE_COLUMNS * SAMPLE_ROWS,
        )
        with suppress(NonFiniteError):  # the loss shows it too
            rows = zip(*(drawing.images for drawing in task(prompts)), strict=True)
            pixels = np.stack([np.asarray(image) for row in rows for image in row])
            caption = f"{', '.join(map(self.prompt_name, prompts))}; guidance {SAMPLE_GUIDANCE:g}"
            grid = tile_images(pixels, columns=len(prompts))
            return [SampleImage(name="drawings", caption=caption, pixels=grid)]
        return []

    def prompt_name(self, prompt: Prompt) -> str:
        return str(prompt)

"""The base of jobs that train a model that draws, from classes or texts, next to a frozen autoencoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor

from glassformer.bundle import Bundle, load
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.store import Ragged
from glassformer.errors import ConflictError, InvalidValueError, NonFiniteError
from glassformer.processors.text import truncate_longest_first
from glassformer.tasks.drawing import ImageGenerator, Prompt
from glassformer.tokenization import Tokenizer
from glassformer.training.encoding import Encoded, Row
from glassformer.training.hardware import device_for
from glassformer.training.image_folder_job import ImageFolderJob, ImageFolderSection
from glassformer.training.image_text_job import CaptionSection, ImageTextJob
from glassformer.training.job import Data, Job
from glassformer.training.latents import write_latents
from glassformer.training.logging.sample_images import tile_images
from glassformer.training.task import SampleImage

SAMPLE_COLUMNS, SAMPLE_ROWS = 10, 4


class DrawingJob(Job[Data]):
    """Train a model that draws.

    architecture: of the model. condition: what it draws from. generator: draws the images of a validation;
    it returns a task with further options. sample_settings: those of the task, for the caption.
    """

    architecture: ClassVar[str]
    condition: ClassVar[Literal["class", "text"]]
    generator: ClassVar[Callable[..., ImageGenerator]]
    sample_settings: ClassVar[str]

    @cached_property
    def base_spec(self) -> Any:
        """The spec of the base model; raise if it draws nothing, or draws from something else."""
        found = None if self.base is None else self.base.spec
        if found is not None and (found.architecture, found.modalities) != (
            self.architecture,
            (self.condition,),
        ):
            raise self.unsupported_model(f"use a {self.architecture} that draws from a {self.condition}")
        return found

    @cached_property
    def autoencoder(self) -> Any:
        """The frozen autoencoder; None to draw pixels."""
        if self.base is not None:
            return getattr(self.base.model, "autoencoder", None)
        folder = self.recipe.model.autoencoder
        if folder is None:
            return None
        model = load(folder, dtype="float32").model
        if model.spec.architecture != "autoencoder":
            raise InvalidValueError("model.autoencoder", folder, "the folder of an autoencoder")
        return model

    def check_model(self) -> None:
        super().check_model()
        for name in ("autoencoder", "text_encoder"):
            if self.fine_tuning and getattr(self.recipe.model, name) is not None:
                raise ConflictError(("model.folder", f"model.{name}"), "the model has its own")

    @property
    @abstractmethod
    def model_spec(self) -> Any:
        """The spec of the model to build."""

    def with_job(self, bundle: Bundle, **info: Any) -> Bundle:
        """Return the bundle with its `job.json`. info: its entries."""
        return replace(bundle, job=replace(bundle.job, name=self.recipe.job, **info))

    # ---- latents ---------------------------------------------------------------------------------------

    @abstractmethod
    def encode_images(self, images: Tensor) -> Tensor:
        """Return what is stored of images (B, C, H, W): latents, or codes."""

    def store_latents(self, folder: Path, shape: tuple[int, int, int]) -> None:
        """Encode the stored pixels of a split, if there is an autoencoder. shape: (H, W, C)."""
        if self.autoencoder is None:
            return
        augment: Any = self.data
        channels = self.autoencoder.spec.input.channels
        if channels != shape[2]:
            reason = f"it reads {channels} channels and the images have {shape[2]}"
            raise ConflictError(("model.autoencoder", "data.train"), reason)
        changed = ("max_shift", "max_rotation", "erase_prob")
        if used := [name for name in changed if getattr(augment, name)]:
            reason = "encoded images are stored once; only data.flip_prob changes them"
            raise ConflictError((f"data.{used[0]}", "model.autoencoder"), reason)
        device = device_for(self.recipe.training.device)
        self.autoencoder.to(device).eval()
        write_latents(folder, shape, self.encode_images, device, flip=bool(augment.flip_prob))

    @cached_property
    def latents_key(self) -> tuple[object, ...]:
        """What the stored latents depend on, besides the images."""
        if self.autoencoder is None:
            return ()
        autoencoder = Bundle(model=self.autoencoder)
        return repr(autoencoder.spec), autoencoder.weights_digest(), bool(self.data.flip_prob)  # type: ignore[attr-defined]

    # ---- samples ---------------------------------------------------------------------------------------

    @abstractmethod
    def sample_prompts(self) -> Sequence[Prompt]:
        """Return the prompts of the images that are drawn in a validation."""

    def prompt_name(self, prompt: Prompt) -> str:
        return str(prompt)

    def draw_samples(self) -> list[SampleImage]:
        """Draw images from the same seeds in every validation: a column for each prompt."""
        prompts = self.sample_prompts()[:SAMPLE_COLUMNS]
        count = min(SAMPLE_ROWS, self.recipe.training.log_samples)
        if not count:
            return []
        batch_size = SAMPLE_COLUMNS * SAMPLE_ROWS
        task = self.generator(self.bundle, num_images_per_prompt=count, batch_size=batch_size)
        with suppress(NonFiniteError):  # the loss shows it too
            rows = zip(*(drawing.images for drawing in task(prompts)), strict=True)
            grid = tile_images((image for row in rows for image in row), columns=len(prompts))
            caption = f"{', '.join(map(self.prompt_name, prompts))}; {self.sample_settings}"
            return [SampleImage(name="drawings", caption=caption, pixels=grid)]
        return []


class ClassDrawingJob(DrawingJob[ImageFolderSection], ImageFolderJob[ImageFolderSection]):
    """Train on images of classes."""

    condition = "class"

    @property
    def channels(self) -> int | None:
        if self.autoencoder is not None:
            return int(self.autoencoder.spec.input.channels)
        return None if self.base_spec is None else int(self.base_spec.latent_shape[0])

    @property
    def cache_key(self) -> tuple[object, ...]:
        return self.latents_key

    def finish_split(self, folder: Path, shape: tuple[int, int, int]) -> None:
        self.store_latents(folder, shape)

    def sample_prompts(self) -> Sequence[Prompt]:
        return range(len(self.classes))

    def prompt_name(self, prompt: Prompt) -> str:
        return self.classes[int(prompt)]


class TextDrawingJob(DrawingJob[CaptionSection], ImageTextJob[CaptionSection]):
    """Train on images with captions."""

    condition, template = "text", "bos_eos"

    @property
    @abstractmethod
    def side(self) -> int:
        """The side of the square images."""

    @property
    def cache_key(self) -> tuple[object, ...]:
        return *super().cache_key, *self.latents_key

    def image_processor(self) -> ImageProcessor:
        return ImageProcessor(size={"height": self.side, "width": self.side}, resample=3)

    def finish_pixels(self, folder: Path) -> None:
        self.store_latents(folder, (*self.image_size, 3))

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        encoded = tokenizer.encode_batch([caption for _, caption in rows])
        return [Ragged.of([truncate_longest_first(text, self.max_len).ids for text in encoded])], {}

    def sample_prompts(self) -> Sequence[Prompt]:
        return list(dict.fromkeys(caption for _, caption in self.valid_texts()))

"""Draw images from texts or classes.

`ImageGenerator` reads prompts, gives every image its own seed and converts tensors to images; a subclass says
how its kind of model draws a batch. B images, C channels, H and W height and width, S text tokens.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from inspect import signature
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.data.image_files import ImageLike, image_digest, load_image
from glassformer.diffusion import (
    SAMPLERS,
    ImageNoise,
    SamplerSettings,
    SamplerStep,
    denoising_steps,
    read_scheduler_config,
    write_scheduler_config,
)
from glassformer.diffusion.loop import Denoiser
from glassformer.diffusion.samplers import BetaSettings
from glassformer.diffusion.step_cache import StepCache
from glassformer.diffusion.tiling import decode_in_tiles
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
    attempt,
)
from glassformer.families.sidecars import SCHEDULER_FILE
from glassformer.inference.memory import available_memory
from glassformer.processors.text import check_text, require_tokenizer
from glassformer.tasks.base import (
    NO_CALLBACKS,
    Callbacks,
    Task,
    check_at_least,
    check_finite,
    check_probability,
    chunks,
)
from glassformer.tasks.png_settings import encode_png

if TYPE_CHECKING:
    from PIL import Image

MAX_STEPS, MAX_SIDE = 1000, 4096
DEFAULT_STEPS, DEFAULT_GUIDANCE, DEFAULT_STRENGTH = 50, 7.5, 0.8  # those of diffusers
DECODED_PIXELS = 1 << 20  # of one batch; a larger image is decoded in tiles
TILE = 512  # pixels per side
# An image has at most so many times the pixels of those in training, or so many tokens if these are more: the
# time of a step grows with their square, and far from their size in training models draw nothing sensible.
MAX_ENLARGEMENT, MIN_TOKENS = 16, 4096
Prompt = str | int


@dataclass(eq=False)
class DrawingTooLargeError(GlassformerError):
    """An image needs more memory than there is. needed, free: gigabytes."""

    height: int
    width: int
    needed: float
    free: float
    template: ClassVar[str] = (
        "an image of {width} x {height} pixels needs about {needed:.1f} GB of memory; {free:.1f} GB are free"
    )


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The images that were drawn for one prompt, or the frames of videos, and the seed of each."""

    prompt: str
    images: tuple[Any, ...]
    seeds: tuple[int, ...]
    generator: ImageGenerator = field(repr=False, compare=False)

    def settings(self, index: int = 0) -> dict[str, Any]:
        """Return how an image was made: all that is needed to draw it again."""
        return {"prompt": self.prompt, "seed": self.seeds[index], **self.generator.settings()}

    def files(self) -> list[bytes]:
        """Return the images as files; a PNG file contains its settings."""
        return [self.generator.encode(image, self.settings(n)) for n, image in enumerate(self.images)]


class ImageGenerator(Task[Prompt, Drawing]):
    """Draw images for prompts: texts, or the names or numbers of classes.

    num_images_per_prompt: images of every prompt; they have the seeds `seed`, `seed + 1`, ...
    batch_size: images that are drawn together.
    """

    read_ahead = 16

    def __init__(
        self, bundle: Bundle, *, num_images_per_prompt: int = 1, seed: int = 0, batch_size: int = 4
    ) -> None:
        check_at_least("num_images_per_prompt", num_images_per_prompt)
        check_at_least("batch_size", batch_size)
        check_at_least("seed", seed, 0, 2**63 - num_images_per_prompt)
        self.bundle, self.batch_size = bundle, batch_size
        self.read_ahead = max(self.read_ahead, batch_size // num_images_per_prompt)
        self.seeds = tuple(range(seed, seed + num_images_per_prompt))
        self.notes: list[str] = []  # what a user should know about the images

    @classmethod
    def option_names(cls) -> set[str]:
        """Return the names of all options."""
        starts = (vars(kind).get("__init__") for kind in cls.__mro__ if kind is not object)
        names = {name for start in starts if start is not None for name in signature(start).parameters}
        return names - {"self", "args", "kwargs", "bundle", "options"}

    def encode(self, image: Any, settings: Mapping[str, Any]) -> bytes:
        """Return an image as a file with its settings."""
        return encode_png(image, settings)

    @abstractmethod
    def drawing_options(self) -> dict[str, Any]:
        """Return the options that shape an image, with the defaults filled in."""

    def settings(self) -> dict[str, Any]:
        """Return the options that shape an image, the model with a checksum of its weights, and versions."""
        return {
            **self.drawing_options(),
            "model": self.bundle.folder_name,
            "weights": self.bundle.weights_digest(),
            "versions": {"glassformer": version("glassformer"), "torch": version("torch")},
        }

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str | int)

    def input_name(self, input: Prompt) -> str:
        return "prompt"

    def run(self, inputs: Iterable[Prompt], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Drawing]:
        for chunk in self.read(inputs, callbacks):
            images = self._draw_chunk(chunk, callbacks)
            for prompt, item in chunk:
                seeds = self.seeds if item is not None else ()
                yield self._drawing(prompt, tuple(islice(images, len(seeds))), seeds)
                callbacks.on_done(1)

    def stream(self, inputs: Iterable[Prompt], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Drawing]:
        """Yield a drawing of every single image as soon as it is finished."""
        for chunk in self.read(inputs, callbacks):
            images = self._draw_chunk(chunk, callbacks)
            for prompt, item in chunk:
                for seed in self.seeds if item is not None else ():
                    yield self._drawing(prompt, (next(images),), (seed,))
                callbacks.on_done(1)

    def _draw_chunk(self, chunk: Sequence[tuple[Prompt, Any]], callbacks: Callbacks) -> Iterator[Image.Image]:
        """Yield the images of all prompts that are not rejected, drawn in batches."""
        rows = [(item, seed) for _, item in chunk if item is not None for seed in self.seeds]
        for part in chunks(rows, self.batch_size):
            pixels = self.draw([item for item, _ in part], [seed for _, seed in part], callbacks)
            yield from to_images(check_finite(self.bundle, pixels))

    def _drawing(self, prompt: Prompt, images: tuple[Any, ...], seeds: tuple[int, ...]) -> Drawing:
        return Drawing(prompt=str(prompt), images=images, seeds=seeds, generator=self)

    @abstractmethod
    def load(self, inputs: Iterable[Prompt]) -> Iterable[Any]:
        """Convert prompts to what `draw` expects; return the errors of those that cannot be used."""

    @abstractmethod
    def draw(
        self, prompts: Sequence[Any], seeds: Sequence[int], callbacks: Callbacks = NO_CALLBACKS
    ) -> Tensor:
        """Return an image (B, C, H, W) from -1 to 1 for each prompt and seed."""


class DiffusionImageGenerator(ImageGenerator):
    """Draw images by removing noise step by step.

    guidance_scale: how strongly the images follow the prompts; 1 is without guidance.
    image: an image to start from. mask: white where it is redrawn.
    strength: how much of the image changes, from 0 to 1; None: 0.8, or 1 with a mask.
    sampler: name of another sampler than the model's, e.g. dpmpp_2m.
    tiling: whether to decode in tiles, which is not exact; None: only images above 1024 x 1024 pixels.
    step_cache: the inside of the denoiser runs at every so many steps only, which is not exact; 1 is.
    callback: called with the index and the result of each step.
    """

    num_frames = 1

    def __init__(
        self,
        bundle: Bundle,
        *,
        num_inference_steps: int = DEFAULT_STEPS,
        guidance_scale: float = DEFAULT_GUIDANCE,
        negative_prompt: str = "",
        height: int | None = None,
        width: int | None = None,
        image: ImageLike | None = None,
        mask: ImageLike | None = None,
        strength: float | None = None,
        sampler: str | None = None,
        tiling: bool | None = None,
        step_cache: int = 1,
        callback: Callable[[int, SamplerStep], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(bundle, **options)
        check_at_least("num_inference_steps", num_inference_steps, 1, MAX_STEPS)
        check_at_least("step_cache", step_cache, 1, MAX_STEPS)
        for name, value in {"mask": mask, "strength": strength}.items():
            if image is None and value is not None:
                raise MissingValueError("image", f"for a {name}")
        model: Any = bundle.model
        self.model = model
        self.guidance_scale, self.negative_prompt = guidance_scale, negative_prompt
        self.size = self._size(height, width)
        self.sampler_settings = self._sampler_settings(sampler)
        self.sampler = self.sampler_settings.sampler(num_inference_steps)
        self.tiling = self.size[0] * self.size[1] > DECODED_PIXELS if tiling is None else tiling
        latent_size = tuple(side // self.spec.stride for side in self.size)
        self.latent_shape = (self.spec.latent_shape[0], *latent_size)
        if negative_prompt and self.spec.text_encoder is None:
            raise UnsupportedError(bundle.display_name, "a negative_prompt", hint="it draws classes")
        default_strength = DEFAULT_STRENGTH if mask is None else 1.0
        self.strength = default_strength if strength is None else strength
        check_probability("strength", self.strength)
        self.image = self.mask = None
        self.sources: dict[str, Any] = {}  # what is known about the image and the mask
        if image is not None:
            start = load_image(image)
            self.image = to_tensor(start, self.size, "RGB") * 2 - 1
            self.sources = {"image": hex_digest(image), "strength": self.strength}
            self.sampler.start(self.strength)  # raises if there is no step to take
        if mask is not None:
            region = load_image(mask)
            if region.size != start.size:
                reason = "they have {} x {} and {} x {} pixels".format(*start.size, *region.size)
                raise ConflictError(("image", "mask"), reason)
            self.mask = to_tensor(region, latent_size, "L").round()
            self.sources["mask"] = hex_digest(mask)
        self.callback, self.step_cache = callback, step_cache
        if step_cache > 1 and bundle.weights != "own":
            raise ConflictError(("step_cache", f"{bundle.weights} weights"), "choose one of them")
        if step_cache > 1:
            StepCache(model.denoiser, step_cache)  # raises if the model has none
        self.batch_size = min(self.batch_size, self._max_batch_size())

    def _max_batch_size(self) -> int:
        """Return how many images fit into memory; raise if none does."""
        free = available_memory(self.bundle.device)
        rows = 2 if self.guidance_scale != 1 else 1
        size = (TILE, TILE) if self.tiling and self.image is None else self.size
        rows *= self.num_frames
        numbers = max(rows * self.spec.denoising_size(self.size), self.spec.decoding_size(size))
        needed = numbers * next(self.bundle.model.parameters()).element_size()
        if free is not None and needed > free:
            raise DrawingTooLargeError(*self.size, needed / 1e9, free / 1e9)
        return self.batch_size if free is None else max(1, int(free / max(1, needed)))

    def drawing_options(self) -> dict[str, Any]:
        sampler = next(name for name, kind in SAMPLERS.items() if type(self.sampler_settings) is kind)
        return {
            "sampler": sampler,
            "num_inference_steps": len(self.sampler),
            "guidance_scale": self.guidance_scale,
            "negative_prompt": self.negative_prompt,
            "height": self.size[0],
            "width": self.size[1],
            "tiling": self.tiling,
            "step_cache": self.step_cache,
            **self.sources,
        }

    @property
    def spec(self) -> Any:
        """The spec of the model."""
        return self.bundle.spec

    @torch.inference_mode()
    def draw(
        self, prompts: Sequence[Any], seeds: Sequence[int], callbacks: Callbacks = NO_CALLBACKS
    ) -> Tensor:
        quantized = self.bundle.weights != "own"
        model: Any = self.bundle.inference_model() if quantized else self.model
        cache = None
        if self.step_cache > 1:
            first = 0 if self.image is None else self.sampler.start(self.strength)
            half = (len(self.sampler) - first) // 2
            measured = half - half % self.step_cache + 2  # the first reused step from the middle on
            cache = StepCache(model.denoiser, self.step_cache, None if self.notes else measured)
        for index, step in self.steps(cache or model, prompts, seeds):
            callbacks.on_step()
            if self.callback is not None:
                self.callback(index, step)
        if cache is not None and cache.distance is not None:
            share = f"{float(cache.distance):.1%}"
            self.notes.append(
                f"step_cache={self.step_cache} moved the prediction of step {measured} by {share}"
            )
        return self.decode(step.prev_sample, callbacks)

    def steps(
        self, model: Denoiser, prompts: Sequence[Any], seeds: Sequence[int]
    ) -> Iterator[tuple[int, SamplerStep]]:
        """Return the denoising steps of `draw`, by the model or one that edits what it does."""
        condition, negative = self.conditions(prompts)
        device = self.bundle.device
        start = None if self.image is None else self.model.encode(self.image.to(device))
        return denoising_steps(
            model,
            self.sampler,
            ImageNoise(seeds, self.latent_shape, device),
            condition,
            negative=negative,
            guidance_scale=self.guidance_scale,
            image=None if start is None else start.expand(len(seeds), -1, -1, -1),
            strength=self.strength,
            mask=None if self.mask is None else self.mask.to(device),
        )

    def decode(self, latents: Tensor, callbacks: Callbacks = NO_CALLBACKS) -> Tensor:
        """Decode latents: a bounded number of pixels at a time, or in tiles."""
        decode: Callable[[Tensor], Tensor] = self.model.decode
        stride = self.spec.stride
        if self.tiling and stride > 1:
            tile, overlap = TILE // stride, TILE // stride // 4
            on_tile = callbacks.on_step
            parts = [
                decode_in_tiles(decode, row, tile=tile, overlap=overlap, on_tile=on_tile)
                for row in latents.split(1)
            ]
            return torch.cat(parts)
        rows = max(1, DECODED_PIXELS // (self.size[0] * self.size[1]))
        return torch.cat([decode(part) for part in latents.split(rows)])

    def preview(self, latents: Tensor) -> Image.Image:
        """Decode the first of the images that form, or the middle of its frames."""
        first = latents[:1] if latents.dim() == 4 else latents[:1, :, latents.shape[2] // 2]
        (image,) = to_images(self.decode(first))
        return image  # type: ignore[no-any-return]

    def load(self, inputs: Iterable[Prompt]) -> Iterable[Any]:
        return [attempt(self._read, prompt) for prompt in inputs]

    def _read(self, prompt: Prompt) -> Any:
        """Return the token ids of a text, or the number of a class."""
        if self.spec.text_encoder is not None:
            return self._token_ids(check_prompt(prompt))
        return read_class(self.bundle, prompt, self.spec.latents.num_classes)

    def _token_ids(self, text: str) -> list[int]:
        text = text.lower().strip() if self.spec.lowercase else text
        return read_token_ids(self.bundle, text, self.spec.max_text_len)

    def conditions(self, prompts: Sequence[Any]) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return the fields of `LatentInputs` for the prompts, and those without a condition."""
        if self.spec.text_encoder is not None:
            negative = self._token_ids(check_text(self.negative_prompt, "negative_prompt"))
            texts, without = self.encode_texts(prompts), self.encode_texts([negative] * len(prompts))
            return texts, without | ({"text_mask": texts["text_mask"]} if self.spec.shares_mask else {})
        labels = torch.tensor(prompts, device=self.bundle.device)
        return {"labels": labels}, {"labels": torch.full_like(labels, self.spec.latents.num_classes)}

    def encode_texts(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Return the vectors (B, S, E) of texts, and their mask if the model hides padding."""
        length, pad_id = self.spec.max_text_len, require_tokenizer(self.bundle).pad_id or 0
        ids = torch.tensor([[*row, *[pad_id] * (length - len(row))] for row in rows])
        mask = torch.arange(length) < torch.tensor([len(row) for row in rows])[:, None]
        device = self.bundle.device
        return self.model.text_condition(ids.to(device), mask.to(device))  # type: ignore[no-any-return]

    def _size(self, height: int | None, width: int | None) -> tuple[int, int]:
        """Return the height and width; raise if they do not fit, or a denoising step would take too long."""
        stride, patch = self.spec.stride, self.spec.latents.patch_size
        default = [side * stride for side in self.spec.latent_shape[-2:]]
        size = (height or default[0], width or default[1])
        for name, side, cells in zip(("height", "width"), size, patch, strict=True):
            multiple = stride * cells
            if side % multiple or not 0 < side <= MAX_SIDE:
                raise InvalidValueError(name, side, f"a multiple of {multiple} up to {MAX_SIDE}")
        pixels = math.prod(patch) * stride**2  # of a token
        limit = max(MAX_ENLARGEMENT * math.prod(default), MIN_TOKENS * pixels)
        if math.prod(size) > limit:
            expected = f"at most {limit:,} pixels, because the model was trained with {{}} x {{}}"
            raise InvalidValueError("height x width", f"{size[0]} x {size[1]}", expected.format(*default))
        return size

    def _sampler_settings(self, name: str | None) -> SamplerSettings:
        if SCHEDULER_FILE not in self.bundle.files:
            raise MissingValueError(SCHEDULER_FILE, f"in the folder of {self.bundle.display_name}")
        settings = read_scheduler_config(self.bundle.files[SCHEDULER_FILE])
        return with_sampler(settings, name)


def check_prompt(prompt: Prompt) -> str:
    """Return a prompt that is a text; raise if it is empty."""
    if not check_text(prompt, "prompt").strip():
        raise EmptyInputError("prompt")
    return str(prompt)


def hex_digest(image: ImageLike) -> str:
    """Return a checksum of an image."""
    return (image_digest(image) or b"").hex()


def read_class(bundle: Bundle, prompt: Prompt, count: int) -> int:
    """Return the number of a class from its name or number."""
    names = bundle.job.classes or ()
    number = names.index(prompt) if prompt in names else prompt
    number = int(number) if isinstance(number, str) and number.isdecimal() else number
    if not isinstance(number, int) or not 0 <= number < count:
        known = f", or its name: {', '.join(names)}" if names else ""
        raise InvalidValueError("prompt", prompt, f"the number of a class, 0 to {count - 1}{known}")
    return number


def read_token_ids(bundle: Bundle, text: str, limit: int) -> list[int]:
    """Return the token ids of a text; raise if they are too many."""
    ids = require_tokenizer(bundle).encode(text).ids
    if len(ids) > limit:
        raise InputTooLongError(len(ids), limit, hint="shorten the prompt")
    return ids


def with_sampler(settings: SamplerSettings, name: str | None) -> SamplerSettings:
    """Return the noise schedule of a model with another sampler; None: with its own."""
    if name is None:
        return settings
    if name not in SAMPLERS:
        raise UnknownNameError("sampler", name, SAMPLERS)
    if issubclass(SAMPLERS[name], BetaSettings) != isinstance(settings, BetaSettings):
        reason = "one is for flow matching, the other for a schedule of noise"
        raise ConflictError(("sampler", "the scheduler of the model"), reason)
    values = write_scheduler_config(settings)
    return read_scheduler_config({**values, "_class_name": SAMPLERS[name].config_class})


def to_images(pixels: Tensor) -> list[Any]:
    """Convert images (B, C, H, W) from -1 to 1 to PIL images, or videos (B, C, F, H, W) to tuples of them."""
    from PIL import Image

    if pixels.dim() == 5:
        return [tuple(to_images(frames.movedim(1, 0))) for frames in pixels]
    levels = ((pixels.float() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    rows = levels.movedim(1, -1).cpu().numpy()
    return [Image.fromarray(row[..., 0] if row.shape[-1] == 1 else row) for row in rows]


def to_tensor(image: Image.Image, size: Sequence[int], mode: str) -> Tensor:
    """Return an image of this height and width as a tensor (1, C, H, W) from 0 to 1."""
    resized = image.convert(mode).resize((size[1], size[0]))
    pixels = torch.from_numpy(np.array(resized, np.float32) / 255)
    return (pixels[..., None] if mode == "L" else pixels).movedim(-1, 0)[None]

"""Draw images with the models of a diffusion pipeline: a text encoder, a denoiser and an autoencoder.

A folder in diffusers' layout names its parts in `model_index.json`; each is in a folder of its own, which
`glassformer.load` reads. B images, C channels, H and W height and width, S text vectors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle, load, save
from glassformer.data.image_files import ImageLike, load_image
from glassformer.diffusion import (
    SAMPLERS,
    DiffusionSampler,
    ImageNoise,
    SamplerSettings,
    SamplerStep,
    denoise,
    read_scheduler_config,
    write_scheduler_config,
)
from glassformer.diffusion.samplers import BetaSettings
from glassformer.errors import (
    ConflictError,
    FileMissingError,
    FileProblemError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.families.config import read_json
from glassformer.processors.text import check_text
from glassformer.tokenization import Tokenizer, load_tokenizer
from glassformer.weights.atomic_write import atomic_write, make_folder

if TYPE_CHECKING:
    from PIL import Image

INDEX_FILE, SCHEDULER_FILE = "model_index.json", "scheduler_config.json"
MAX_STEPS, MAX_SIDE = 1000, 4096
# the denoiser of each class of pipelines; the other classes are variants of these
DENOISERS = {"StableDiffusionPipeline": "unet", "DiTPipeline": "transformer"}
_VARIANTS = dict.fromkeys(
    ("StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline"), "StableDiffusionPipeline"
)
IGNORED = ("safety_checker", "feature_extractor", "image_encoder")  # parts that are not read


@dataclass(kw_only=True)
class DiffusionPipeline:
    """The models that draw an image from a text or a class.

    class_name: of diffusers. denoiser: predicts the noise in latents. sampler: how it is removed.
    autoencoder: decodes latents; None: the denoiser draws pixels. text_encoder: None for classes.
    index: the content of `model_index.json`.
    """

    class_name: str
    denoiser: Bundle
    sampler: SamplerSettings
    autoencoder: Bundle | None = None
    text_encoder: Bundle | None = None
    tokenizer: Tokenizer | None = None
    index: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> Self:
        """Load a folder in diffusers' layout. options: those of `glassformer.load`, e.g. device and dtype."""
        path = Path(folder)
        if not (path / INDEX_FILE).is_file():
            raise FileMissingError(path / INDEX_FILE, "index of a diffusion pipeline")
        index = read_json(path / INDEX_FILE)
        if not isinstance(index, dict):
            raise FileProblemError(path / INDEX_FILE, "is not a JSON object")
        name = str(index.get("_class_name"))
        name = _VARIANTS.get(name, name)
        if name not in DENOISERS:
            raise UnknownNameError("pipeline", name, DENOISERS, where=INDEX_FILE)
        parts = {part for part, value in index.items() if isinstance(value, list) and value[:1] != [None]}
        known = {DENOISERS[name], "vae", "text_encoder", "tokenizer", "scheduler"}
        if unknown := sorted(parts - known - {*IGNORED}):
            raise UnsupportedError(f"a {name}", f"the part {unknown[0]}")
        if "text_encoder" in parts and "tokenizer" not in parts:
            raise MissingValueError("tokenizer", f"in {path / INDEX_FILE}, for the text encoder")

        def part(name: str) -> Bundle | None:
            return load(path / name, **options) if name in parts else None

        denoiser = load(path / DENOISERS[name], **options)
        return cls(
            class_name=name,
            denoiser=denoiser,
            sampler=read_scheduler_config(read_json(path / "scheduler" / SCHEDULER_FILE)),
            autoencoder=part("vae"),
            text_encoder=part("text_encoder"),
            tokenizer=load_tokenizer(path / "tokenizer") if "tokenizer" in parts else None,
            index={key: value for key, value in index.items() if key not in IGNORED},
        )

    def save(self, folder: str | Path) -> Path:
        """Write a folder that `load` and diffusers read."""
        path = Path(folder)
        parts = {DENOISERS[self.class_name]: self.denoiser}
        more = {"vae": self.autoencoder, "text_encoder": self.text_encoder}
        parts |= {name: bundle for name, bundle in more.items() if bundle is not None}
        index = dict(self.index)
        for name, bundle in parts.items():
            save(bundle, path / name, layout="hf")
        make_folder(path / "scheduler")
        scheduler = write_scheduler_config(self.sampler)
        index["scheduler"] = ["diffusers", scheduler["_class_name"]]
        if self.tokenizer is not None:
            make_folder(path / "tokenizer")
            self.tokenizer.save(path / "tokenizer")
        written = {"scheduler/" + SCHEDULER_FILE: scheduler, INDEX_FILE: index}
        for name, content in written.items():
            with atomic_write(path / name) as file:
                file.write((json.dumps(content, indent=2) + "\n").encode())
        return path

    @property
    def stride(self) -> int:
        """Pixels per row and column of the latents."""
        return 1 if self.autoencoder is None else int(self.autoencoder.spec.stride)  # type: ignore[attr-defined]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that the denoiser was trained on."""
        height, width = self._latent_shape[1:]
        return height * self.stride, width * self.stride

    @property
    def _latent_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.denoiser.spec.inputs()[0].example_shape(0, 0)
        return channels, height, width

    @torch.inference_mode()
    def draw(
        self,
        prompts: str | Sequence[str] | Sequence[int],
        *,
        seeds: Sequence[int] | None = None,
        num_inference_steps: int = 50,
        guidance_scale: float = 7.5,
        negative_prompt: str = "",
        height: int | None = None,
        width: int | None = None,
        image: ImageLike | None = None,
        mask: ImageLike | None = None,
        strength: float = 0.8,
        sampler: str | None = None,
        callback: Callable[[int, SamplerStep], Any] | None = None,
    ) -> list[Image.Image]:
        """Draw an image for each prompt, a text or the number of a class.

        seeds: one for each image, by default 0, 1, ...; a seed gives the same image alone and in a batch.
        guidance_scale: how strongly the images follow the prompts; 1 is without guidance.
        image: an image to start from, with a strength from 0 to 1. mask: white where it is redrawn.
        sampler: name of another sampler, e.g. dpmpp_2m. callback: called with the result of each step.
        """
        if not 1 <= num_inference_steps <= MAX_STEPS:
            raise InvalidValueError("num_inference_steps", num_inference_steps, f"from 1 to {MAX_STEPS}")
        prompts = [prompts] if isinstance(prompts, str) else prompts
        if not prompts:
            return []
        if image is None and mask is not None:
            raise MissingValueError("image", "for a mask")
        seeds = range(len(prompts)) if seeds is None else seeds
        if len(seeds) != len(prompts):
            raise ConflictError(("seeds", "prompts"), f"there are {len(seeds)} and {len(prompts)}")
        device = self.denoiser.device
        size = self._size(height, width)
        shape = (self._latent_shape[0], size[0] // self.stride, size[1] // self.stride)
        condition, negative = self._conditions(prompts, negative_prompt)
        latents = denoise(
            self.denoiser.model,
            self._sampler(sampler, num_inference_steps),
            ImageNoise(list(seeds), shape, device),
            condition,
            negative=negative,
            guidance_scale=guidance_scale,
            image=None if image is None else self._encode(image, size, len(prompts)),
            strength=strength if mask is None else 1.0,
            mask=None if mask is None else self._mask(mask, shape[1:]),
            callback=callback,
        )
        return self.decode(latents)

    def decode(self, latents: Tensor) -> list[Image.Image]:
        """Return the images of latents (B, C, h, w)."""
        from PIL import Image

        pixels = latents
        if self.autoencoder is not None:
            model: Any = self.autoencoder.model
            pixels = model.decode(model.unscale_latents(latents))
        levels = ((pixels.float() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
        rows = levels.movedim(1, -1).cpu().numpy()
        return [Image.fromarray(row[..., 0] if row.shape[-1] == 1 else row) for row in rows]

    def _size(self, height: int | None, width: int | None) -> tuple[int, int]:
        size = (height or self.image_size[0], width or self.image_size[1])
        patch = getattr(getattr(self.denoiser.spec.inputs()[0], "patches", None), "patch_size", (1, 1))
        for name, side, cells in zip(("height", "width"), size, patch, strict=True):
            multiple = self.stride * cells
            if side % multiple or not 0 < side <= MAX_SIDE:
                raise InvalidValueError(name, side, f"a multiple of {multiple} up to {MAX_SIDE}")
        return size

    def _sampler(self, name: str | None, steps: int) -> DiffusionSampler:
        settings = self.sampler
        if name is not None:
            if name not in SAMPLERS:
                raise UnknownNameError("sampler", name, SAMPLERS)
            if issubclass(SAMPLERS[name], BetaSettings) != isinstance(settings, BetaSettings):
                reason = "one is for flow matching, the other for a schedule of noise"
                raise ConflictError(("sampler", "the scheduler of the model"), reason)
            values = write_scheduler_config(settings)
            settings = read_scheduler_config({**values, "_class_name": SAMPLERS[name].config_class})
        return settings.sampler(steps)

    def _conditions(
        self, prompts: Sequence[str] | Sequence[int], negative: str
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return the fields of `LatentInputs` for the prompts, and those without a condition."""
        if self.text_encoder is not None:
            texts = self.encode_text([check_text(prompt, "prompt") for prompt in prompts])
            empty = self.encode_text([check_text(negative, "negative_prompt")])
            return {"text": texts}, {"text": empty.expand_as(texts)}
        classes = self.denoiser.spec.inputs()[0].num_classes  # type: ignore[attr-defined]
        for prompt in prompts:
            if not isinstance(prompt, int) or not 0 <= prompt < classes:
                raise InvalidValueError("prompt", prompt, f"the number of a class, 0 to {classes - 1}")
        labels = torch.tensor(list(prompts), device=self.denoiser.device)
        return {"labels": labels}, {"labels": torch.full_like(labels, classes)}

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return the vectors (B, S, E) of texts, padded to the length of the text encoder."""
        assert self.text_encoder is not None and self.tokenizer is not None
        read: Any = self.text_encoder.spec.inputs()[0]
        length, pad_id = read.position.max_len, self.tokenizer.pad_id or 0
        rows = []
        for encoded in self.tokenizer.encode_batch(list(texts)):
            if len(encoded) > length:
                raise InputTooLongError(len(encoded), length, hint="shorten the prompt")
            rows.append([*encoded.ids, *[pad_id] * (length - len(encoded))])
        ids = torch.tensor(rows, device=self.text_encoder.device)
        output: Any = self.text_encoder.model(ids)
        hidden: Tensor = output.hidden
        return hidden

    def _encode(self, image: ImageLike, size: tuple[int, int], count: int) -> Tensor:
        """Return the latents of an image, for each of `count` rows."""
        pixels = _to_tensor(load_image(image), size, "RGB") * 2 - 1
        pixels = pixels.to(self.denoiser.device)
        if self.autoencoder is not None:
            model: Any = self.autoencoder.model
            pixels = model.scale_latents(model.encode(pixels).latents)
        return pixels.expand(count, -1, -1, -1)

    def _mask(self, mask: ImageLike, size: tuple[int, ...]) -> Tensor:
        white = _to_tensor(load_image(mask), (size[0], size[1]), "L")
        return (white > 0.5).float().to(self.denoiser.device)


def _to_tensor(image: Image.Image, size: tuple[int, int], mode: str) -> Tensor:
    """Return an image of this size as a tensor (1, C, H, W) from 0 to 1."""
    resized = image.convert(mode).resize(size[::-1])
    pixels = torch.from_numpy(np.array(resized, np.float32) / 255)
    return (pixels[..., None] if mode == "L" else pixels).movedim(-1, 0)[None]

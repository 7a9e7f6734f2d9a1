"""Draw images from texts or classes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from glassformer.tasks.registry import (
    PROMPT_OR_CLASS,
    PYTHON_ONLY,
    TaskOptions,
    TaskResult,
    TaskSpec,
    setting,
    top_cells,
    top_columns,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from PIL import Image

    from glassformer.bundle import Bundle
    from glassformer.tasks.drawing import Drawing, ImageGenerator

# the task for each kind of model, by what it yields and its architecture
GENERATORS: dict[tuple[Any, str], tuple[str, str]] = {
    ("images", "diffusion model"): ("drawing", "DiffusionImageGenerator"),
    ("images", "image tokens model"): ("image_tokens", "TokenImageGenerator"),
    ("frames", "diffusion model"): ("animation", "VideoGenerator"),
}
MAX_REQUESTED_SIDE = 1536  # of a request: one step of a larger image would block the model for too long
MAX_REQUESTED_IMAGES = 10


@dataclass(frozen=True, kw_only=True)
class DiffusionOptions(TaskOptions):
    """Options of images and videos; None: the default of the model, which may not have the option."""

    num_images_per_prompt: int | None = setting(
        None,
        "Number of images per prompt, with the seeds S, S + 1, ... (default: 1).",
        interval="[1, 1000]",
        max=MAX_REQUESTED_IMAGES,
        more_flags=("--num-images",),
    )
    seed: int | None = setting(
        None, "Seed of the first image of a prompt (default: 0).", interval="[0, inf)", max=2**63 - 1
    )
    guidance_scale: float | None = setting(
        None,
        "How strongly images follow the prompt; 1 is without guidance (default: 7.5, image tokens 3).",
        interval="[0, 100]",
        more_flags=("--guidance",),
    )
    negative_prompt: str | None = setting(None, "Text that the images move away from.", max_length=10_000)
    num_inference_steps: int | None = setting(
        None,
        "Number of denoising steps, 1 to 1000 (default: 50).",
        interval="[1, 1000]",
        more_flags=("--steps",),
    )
    sampler: str | None = setting(
        None,
        "Sampler: ddpm, ddim, euler, euler_ancestral, dpmpp_2m or flow_match_euler (default: the model's).",
    )
    height: int | None = setting(
        None, "Height in pixels (default: the model's).", interval="[1, 4096]", max=MAX_REQUESTED_SIDE
    )
    width: int | None = setting(
        None, "Width in pixels (default: the model's).", interval="[1, 4096]", max=MAX_REQUESTED_SIDE
    )
    tiling: bool | None = setting(
        None, "Decode in overlapping tiles, which needs less memory (default: above 1024 x 1024 pixels)."
    )
    step_cache: int | None = setting(
        None,
        "Run the inside of the denoiser at every so many steps only: faster, not exact (default: 1).",
        interval="[1, 1000]",
    )
    batch_size: int | None = setting(
        None, "Number of images that are drawn together (default: 4).", interval="[1, inf)", **PYTHON_ONLY
    )
    callback: Any = setting(
        None, "Called with the index and the result of each denoising step.", **PYTHON_ONLY
    )


@dataclass(frozen=True, kw_only=True)
class DrawOptions(DiffusionOptions):
    """Options of images."""

    image: Any = setting(None, "Image to start from, resized to the drawing.", is_image=True)
    strength: float | None = setting(
        None, "How much of the image changes, 0 to 1 (default: 0.8, with a mask 1).", interval="[0, 1]"
    )
    mask: Any = setting(None, "Mask of the image's size: white is redrawn, black stays.", is_image=True)
    temperature: float | None = setting(
        None, "Sampling temperature of image tokens (default: 1).", interval="(0, 100]"
    )
    top_k: int | None = setting(
        None, "Sample among this many likely image tokens (default: all).", interval="[0, inf)"
    )
    top_p: float | None = setting(
        None,
        "Sample among image tokens of this total probability (default: 1).",
        interval="(0, 1]",
    )


class DrawnFiles(TaskResult):
    """Base class of results: the files of a prompt in base64, and the seed of each.

    files: name of their field. column: in a table.
    """

    files: ClassVar[str]
    column: ClassVar[str]

    @classmethod
    def of(cls, output: Drawing) -> Self:
        files = [base64.b64encode(content).decode() for content in output.files()]
        return cls(**{cls.files: files, "seeds": list(output.seeds)})

    @classmethod
    def column_types(cls, bundle: Bundle, options: DiffusionOptions) -> Mapping[str, type]:
        return top_columns({cls.column: str}, options.num_images_per_prompt or 1)

    def cells(self) -> Mapping[str, object]:
        files = getattr(self, self.files)
        return top_cells((self.column,), [(base64.b64decode(content),) for content in files])


@dataclass(frozen=True, kw_only=True)
class DrawnImages(DrawnFiles):
    """The images of a prompt: PNG files in base64, which contain all settings, and the seed of each."""

    files, column = "images", "image"
    images: list[str]
    seeds: list[int]


def draws(yields: str) -> Callable[[Any], bool]:
    """Return a function of specs: whether the model draws images, or frames."""
    return lambda spec: (yields, spec.architecture) in GENERATORS and spec.yields == yields


def make(yields: str, bundle: Bundle, options: DiffusionOptions) -> ImageGenerator:
    """Create the generator of a model that yields images, or frames."""
    from glassformer.errors import UnsupportedError

    if not draws(yields)(bundle.spec):
        raise UnsupportedError(bundle.display_name, "drawing", hint=f"use a model that draws {yields}")
    return make_generator(bundle, options.kwargs())


def make_generator(bundle: Bundle, options: Mapping[str, Any]) -> ImageGenerator:
    """Create the generator of a model that draws; an option that it does not have is an error."""
    from importlib import import_module

    from glassformer.errors import UnsupportedError

    spec: Any = bundle.spec
    module, name = GENERATORS[spec.yields, spec.architecture]
    kind = getattr(import_module(f"glassformer.tasks.{module}"), name)
    given = {name: value for name, value in options.items() if value is not None}
    known = kind.option_names()
    for name in given:
        if name not in known:
            hint = f"its options are {', '.join(sorted(known))}"
            raise UnsupportedError(bundle.display_name, f"the option {name}", hint=hint)
    generator: ImageGenerator = kind(bundle, **given)
    return generator


def value(output: Drawing) -> Image.Image | list[Image.Image]:
    return output.images[0] if len(output.images) == 1 else list(output.images)


TASK = TaskSpec(
    name="draw",
    summary="Draw images from texts or classes.",
    description="A prompt is a text or, for a model of classes, the name or number of a class. The same seed "
    "gives the same image alone and among others. With an image, drawing starts from it, and a mask limits "
    "what is redrawn. PNG files contain all settings.",
    inputs=PROMPT_OR_CLASS,
    argument="prompts",
    options=DrawOptions,
    result=DrawnImages,
    accepts=draws("images"),
    make=partial(make, "images"),
    value=value,
    returns="Image.Image | list[Image.Image]",
    batch_rows=32,
    job="diffusion",
    view=lambda spec: True,
    examples=("a red apple",),
)

"""Draw videos from texts or classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from glassformer.tasks.declarations.draw_images import DiffusionOptions, DrawnFiles, draws, make, value
from glassformer.tasks.registry import (
    PROMPT_OR_CLASS,
    TaskSpec,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class AnimateOptions(DiffusionOptions):
    """Options of videos."""

    num_frames: int | None = setting(
        None, "Number of frames (default: the model's, which is the maximum).", interval="[1, 65536]", max=64
    )
    fps: int | None = setting(None, "Frames per second of the file (default: 8).", interval="[1, 60]")
    output_format: Literal["png", "webp", "mp4"] | None = setting(
        None, "Format of the file: png and webp are animated images, mp4 needs ffmpeg (default: png)."
    )


@dataclass(frozen=True, kw_only=True)
class DrawnVideos(DrawnFiles):
    """The videos of a prompt: files in base64, and the seed of each."""

    files, column = "videos", "video"
    videos: list[str]
    seeds: list[int]


TASK = TaskSpec(
    name="animate",
    summary="Draw videos from texts or classes.",
    description="A prompt is a text or, for a model of classes, the name or number of a class. The same seed "
    "gives the same video alone and among others. A video is an animated PNG file, which contains all "
    "settings, an animated WebP file or an MP4 file.",
    inputs=PROMPT_OR_CLASS,
    argument="prompts",
    options=AnimateOptions,
    result=DrawnVideos,
    accepts=draws("frames"),
    make=partial(make, "frames"),
    value=value,
    returns="tuple[Image.Image, ...] | list[tuple[Image.Image, ...]]",
    batch_rows=32,
    view=lambda spec: "draw",
    examples=("a 3 goes right",),
)

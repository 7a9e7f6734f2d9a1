"""Draw videos from texts or classes, and encode them as files.

A video model is a diffusion model whose latents have frames: all of `tasks.drawing` applies to it.
"""

from __future__ import annotations

import importlib
import io
import math
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.errors import (
    FileProblemError,
    InvalidValueError,
    MissingDependencyError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.tasks.base import NO_CALLBACKS, Callbacks, check_at_least
from glassformer.tasks.drawing import DiffusionImageGenerator
from glassformer.tasks.png_settings import text_chunks

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("png", "webp", "mp4")
MAX_PIXELS = 2**26  # of all frames of a video
MAX_FPS = 60
MAX_ENCODING_SECONDS = 600


class VideoGenerator(DiffusionImageGenerator):
    """Draw videos by removing noise from all frames together; the images of a drawing are tuples of frames.

    num_frames: number of frames, at most that of the model, which is the default.
    fps: frames per second of the files. output_format: of the files; only png contains the settings.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        num_frames: int | None = None,
        fps: int = 8,
        output_format: str = "png",
        **options: Any,
    ) -> None:
        if options.get("image") is not None:
            raise UnsupportedError("a video model", "an image to start from", hint="leave `image` out")
        longest = bundle.spec.latents.num_frames  # type: ignore[attr-defined]
        self.num_frames = longest if num_frames is None else num_frames
        check_at_least("num_frames", self.num_frames, 1, longest)
        check_at_least("fps", fps, 1, MAX_FPS)
        if output_format not in FORMATS:
            raise UnknownNameError("output_format", output_format, FORMATS)
        if output_format == "mp4":
            find_ffmpeg()  # raises if there is none
        super().__init__(bundle, **options)
        if self.num_frames * math.prod(self.size) > MAX_PIXELS:
            shape = f"{self.num_frames} frames of {self.size[0]} x {self.size[1]} pixels"
            raise InvalidValueError("the video", shape, f"at most {MAX_PIXELS:,} pixels")
        self.latent_shape = (self.latent_shape[0], self.num_frames, *self.latent_shape[1:])
        self.fps, self.output_format = fps, output_format

    def drawing_options(self) -> dict[str, Any]:
        return {**super().drawing_options(), "num_frames": self.num_frames, "fps": self.fps}

    def decode(self, latents: Tensor, callbacks: Callbacks = NO_CALLBACKS) -> Tensor:
        if latents.dim() == 4:  # of one frame
            return super().decode(latents, callbacks)
        return torch.stack([self.decode(frame, callbacks) for frame in latents.unbind(2)], 2)

    def encode(self, image: Any, settings: Mapping[str, Any]) -> bytes:
        return encode_video(image, self.fps, self.output_format, settings)


def encode_video(
    frames: Sequence[Image.Image], fps: int, format: str = "png", settings: Mapping[str, Any] | None = None
) -> bytes:
    """Return frames as the content of a file: animated PNG or WebP, without loss, or MP4.

    settings: of the drawing, for a PNG file.
    """
    if format == "mp4":
        return _encode_mp4(frames, fps)
    extra = {"lossless": True} if format == "webp" else {"pnginfo": text_chunks(settings or {})}
    file = io.BytesIO()
    timing = {"duration": 1000 / fps, "loop": 0}
    frames[0].save(file, format, save_all=True, append_images=frames[1:], **timing, **extra)
    return file.getvalue()


def _encode_mp4(frames: Sequence[Image.Image], fps: int) -> bytes:
    """Encode frames with ffmpeg, which reads raw pixels; a side that is odd gets one more line."""
    width, height = frames[0].size
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    with tempfile.TemporaryDirectory() as folder:  # the index of the file is written last: no pipe
        path = Path(folder, "video.mp4")
        command = [find_ffmpeg(), "-loglevel", "error", *source, *even, str(path)]
        pixels = b"".join(frame.convert("RGB").tobytes() for frame in frames)
        try:
            run = subprocess.run(command, input=pixels, capture_output=True, timeout=MAX_ENCODING_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FileProblemError(command[0], f"does not encode the video ({error})") from None
        if run.returncode or not path.is_file():
            reason = run.stderr.decode(errors="replace").strip()[-200:]
            raise FileProblemError(command[0], f"does not encode the video ({reason})")
        return path.read_bytes()


def find_ffmpeg() -> str:
    """Return the path of ffmpeg: that of the package imageio-ffmpeg, else an installed program."""
    try:
        return str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        program = which("ffmpeg")
    if program is None:
        raise MissingDependencyError("imageio-ffmpeg")
    return program

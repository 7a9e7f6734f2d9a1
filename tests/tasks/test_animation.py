"""Videos: the pipeline of Latte compared with diffusers, and files of frames."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

import glassformer
from glassformer.cli.main import main
from glassformer.core import spec as specs
from glassformer.core.build import build_model
from glassformer.diffusion import ImageNoise
from glassformer.errors import (
    ConflictError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    MissingDependencyError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.families.sidecars import SCHEDULER_FILE
from glassformer.tasks import animation, drawing
from glassformer.tasks.animation import VideoGenerator, encode_video
from glassformer.tasks.png_settings import read_png_settings
from tests.families.diffusion_models import diffusers, reference
from tests.families.test_autoencoders import settings as autoencoder_settings
from tests.tasks.drawing_models import save_drawing_model, video_bundle
from tests.tasks.test_drawing import T5_SETTINGS, t5_parts

FRAMES = 3
OPTIONS: dict[str, Any] = {"num_inference_steps": 3, "guidance_scale": 2.0}
PROMPTS = ["A red Apple", "two blue fish on a plate"]
NEGATIVE = "a red apple on a plate on a plate"  # longer than one prompt, and shorter than the other


@pytest.fixture(scope="module")
def latte(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny random Latte pipeline, and its folder."""
    settings = {**T5_SETTINGS, "norm_elementwise_affine": False, "video_length": FRAMES}
    pipeline = diffusers.LattePipeline(
        transformer=reference("LatteTransformer3DModel", settings),
        vae=reference("AutoencoderKL", autoencoder_settings([8, 16])),
        scheduler=diffusers.DDIMScheduler(),
        **t5_parts(),
    )
    pipeline.set_progress_bar_config(disable=True)
    folder = tmp_path_factory.mktemp("latte")
    pipeline.save_pretrained(folder)
    return pipeline, folder


def pixels(frames: Any) -> np.ndarray:
    return np.stack([np.asarray(frame, np.int16) for frame in frames])


@pytest.mark.parametrize("guidance_scale", [1.0, 2.5])
def test_videos_match_latte(latte: Any, guidance_scale: float) -> None:
    """Each alone, as the reference hides padding only then; together they are the same."""
    theirs, folder = latte
    options = {**OPTIONS, "guidance_scale": guidance_scale, "negative_prompt": NEGATIVE}
    ours = VideoGenerator(glassformer.load(folder), seed=5, **options)
    together = ours(PROMPTS)
    for prompt, one in zip(PROMPTS, together, strict=True):
        expected = theirs(
            prompt,
            latents=ImageNoise([5], (4, FRAMES, 8, 8)).draw(),
            video_length=FRAMES,
            height=16,
            width=16,
            clean_caption=False,
            **options,
        ).frames[0]
        assert len(one.images) == 1 and len(one.images[0]) == FRAMES
        video = pixels(one.images[0])
        assert np.abs(video - pixels(expected)).max() <= 1 and video.std() > 5
        assert np.abs(video[0] - video[-1]).max() > 5  # the frames differ
        alone = ours(prompt).images[0]
        assert np.abs(pixels(alone) - video).max() <= 1


@pytest.mark.parametrize("change", [{"shares_mask": False}, {"lowercase": False}, {"mask_padding": False}])
def test_texts_are_read_as_in_latte(latte: Any, change: dict[str, bool]) -> None:
    """Without the mask of the prompt, lower case or hidden padding, the videos are others."""
    bundle = glassformer.load(latte[1])
    options = {**OPTIONS, "negative_prompt": NEGATIVE, "guidance_scale": 8.0}
    before = pixels(VideoGenerator(bundle, **options)(PROMPTS[0]).images[0])
    both = {"shares_mask": False} if "mask_padding" in change else {}
    bundle.model.spec = replace(bundle.spec, **both, **change)
    assert np.abs(pixels(VideoGenerator(bundle, **options)(PROMPTS[0]).images[0]) - before).max() > 1


def test_diffusers_reads_the_saved_folder(latte: Any, tmp_path: Path) -> None:
    """With the index of the folder, and with one that is made from the spec."""
    theirs, folder = latte
    bundle = glassformer.load(folder)
    assert (bundle.spec.yields, bundle.spec.modalities) == ("frames", ("text",))
    one_folder = glassformer.load(glassformer.save(bundle, tmp_path / "one", layout="glassformer"))
    assert one_folder.spec == bundle.spec
    for name, saved in (("same", bundle), ("written", one_folder)):
        again = diffusers.LattePipeline.from_pretrained(glassformer.save(saved, tmp_path / name, layout="hf"))
        for part in ("transformer", "vae", "text_encoder"):
            before, after = (getattr(one, part).state_dict() for one in (theirs, again))
            assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in after)
        assert glassformer.load(tmp_path / name).spec == bundle.spec


def pixel_model(**options: Any) -> glassformer.Pipeline:
    """A model of classes that draws pixels, without an autoencoder."""
    torch.manual_seed(0)
    settings = {"channels": 1, "out_channels": 1, "text_dim": None, "num_classes": 3, **options}
    denoiser = glassformer.tiny("latte", **settings)
    with torch.no_grad():
        for value in denoiser.parameters():
            value.copy_(torch.randn_like(value) * (0.3 if value.dim() == 1 else value[0].numel() ** -0.5))
    model: Any = build_model(specs.DiffusionModelSpec(denoiser=denoiser.spec))
    model.denoiser.load_state_dict(denoiser.state_dict())
    files = {SCHEDULER_FILE: {"_class_name": "FlowMatchEulerDiscreteScheduler"}}
    return glassformer.Pipeline(model=model.eval(), files=files)


def test_videos_of_pixels_and_classes(tmp_path: Path) -> None:
    """Also with fewer frames and other sizes; after saving, the same."""
    bundle = pixel_model()
    options = {**OPTIONS, "num_frames": 3, "width": 12, "num_images_per_prompt": 2, "seed": 7}
    first, second = VideoGenerator(bundle, batch_size=3, **options)([1, "2"])
    assert first.seeds == (7, 8) and len(first.images) == 2 and len(second.images[1]) == 3
    assert second.images[1][0].size == (12, 8) and second.images[1][0].mode == "L"
    glassformer.save(bundle, tmp_path)
    again = VideoGenerator(glassformer.load(tmp_path), **{**options, "seed": 8, "num_images_per_prompt": 1})(
        2
    )
    assert np.abs(pixels(again.images[0]) - pixels(second.images[1])).max() <= 1
    assert np.abs(pixels(again.images[0]) - pixels(first.images[1])).max() > 5


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_frames": 5}, InvalidValueError),
        ({"num_frames": 0}, InvalidValueError),
        ({"fps": 0}, InvalidValueError),
        ({"fps": 1000}, InvalidValueError),
        ({"height": 4096, "width": 4096}, InvalidValueError),
        ({"height": 64, "width": 64, "num_frames": 4}, InvalidValueError),
        ({"height": 7}, InvalidValueError),
        ({"num_inference_steps": 10_000}, InvalidValueError),
        ({"image": Image.new("L", (8, 8))}, UnsupportedError),
    ],
)
def test_sizes_are_bounded_before_work_starts(
    options: dict[str, Any], error: type[GlassformerError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(animation, "MAX_PIXELS", 2**13)
    monkeypatch.setattr(drawing, "available_memory", lambda device: 2e10)
    with pytest.raises(error):
        VideoGenerator(pixel_model(), **options)


def test_a_shared_mask_needs_hidden_padding(latte: Any) -> None:
    with pytest.raises(ConflictError, match="shares_mask"):
        replace(glassformer.load(latte[1]).spec, mask_padding=False)


# ---- files ------------------------------------------------------------------------------------------------


def gradient(count: int, size: tuple[int, int] = (7, 5), mode: str = "RGB") -> list[Image.Image]:
    levels = np.random.default_rng(0).integers(0, 255, (count, size[1], size[0], 3), np.uint8)
    return [Image.fromarray(frame).convert(mode) for frame in levels]


@pytest.mark.parametrize("format", ["png", "webp"])
@pytest.mark.parametrize(("count", "mode"), [(4, "RGB"), (3, "L"), (1, "L")])
def test_files_hold_every_frame(format: str, count: int, mode: str) -> None:
    frames = gradient(count, mode=mode)
    with Image.open(io.BytesIO(encode_video(frames, 8, format))) as image:
        assert image.format == format.upper() and getattr(image, "n_frames", 1) == count
        for n, frame in enumerate(frames):
            image.seek(n)
            assert np.array_equal(np.asarray(image.convert("RGB")), np.asarray(frame.convert("RGB")))
            assert count == 1 or image.info["duration"] == 125


FAKE = """#!{python}
import sys
data, path = sys.stdin.buffer.read(), sys.argv[-1]
if {fails}:
    sys.exit("no such codec")
size = sys.argv[sys.argv.index("-s") + 1]
open(path, "wb").write(f"{{size}} {{len(data)}} {{sys.argv[sys.argv.index('-r') + 1]}}".encode())
"""


def test_mp4_is_encoded_by_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in the path gets the frames; without one, or if it fails, there is one clear error."""
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="imageio-ffmpeg"):
        encode_video(gradient(2), 8, "mp4")
    program = tmp_path / "ffmpeg"
    program.write_text(FAKE.format(python=sys.executable, fails=False))
    program.chmod(0o755)
    assert encode_video(gradient(2), 12, "mp4") == f"7x5 {2 * 7 * 5 * 3} 12".encode()
    program.write_text(FAKE.format(python=sys.executable, fails=True))
    with pytest.raises(FileProblemError, match="no such codec"):
        encode_video(gradient(2), 8, "mp4")


# ---- the command ------------------------------------------------------------------------------------------

PROMPT = "the cat sat on the mat"
FLAGS = ("--steps", 2, "--seed", 3, "--num-frames", 3)


@pytest.fixture(scope="module")
def animator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return glassformer.save(video_bundle(), tmp_path_factory.mktemp("animate") / "animator")


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["animate", *map(str, args)])
    return (stop.value.code, *capsys.readouterr())


def test_the_command_writes_the_frames_of_the_method(
    animator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both formats; a PNG file contains the settings, with which the same video is drawn again."""
    monkeypatch.chdir(tmp_path)
    drawn = glassformer.load(animator).animate(PROMPT, num_inference_steps=2, seed=3, num_frames=3)
    assert isinstance(drawn, tuple) and len(drawn) == 3
    code, out, _ = run(capsys, animator, PROMPT, *FLAGS, "--fps", 5, "--preview", "preview.png")
    assert (code, out) == (0, "the-cat-sat-on-the-mat-3.png\n") and Path("preview.png").is_file()
    assert run(capsys, animator, PROMPT, *FLAGS, "--out", "same.webp", "--grid", "grid.png")[0] == 0
    assert run(capsys, animator, "--like", out.strip(), "--out", "again.png")[0] == 0
    for name, format in (("again.png", "PNG"), ("same.webp", "WEBP")):
        with Image.open(name) as file:
            assert file.format == format
            frames = [frame.convert("L") for frame in ImageSequence.all_frames(file)]
            assert np.array_equal(pixels(frames), pixels(drawn))
    settings = read_png_settings(Path("again.png"))
    assert {"fps": 5, "num_frames": 3, "seed": 3, "prompt": PROMPT}.items() <= settings.items()
    with Image.open("again.png") as file:
        assert file.info["duration"] == 200


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--num-frames", "9"], "--num-frames is 9"),
        (["--fps", "0"], "fps"),
        (["--steps", "10000"], "--num-inference-steps is 10000"),
        (["--width", "9"], "width"),
        (["--out", "clip.gif"], "gif"),
        (["--out", "clip.mp4"], "imageio-ffmpeg"),
        (["--output-format", "webp", "--out", "clip.png"], "webp"),
    ],
)
def test_bad_options_are_one_clear_error(
    animator: Path,
    flags: list[str],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, error = run(capsys, animator, PROMPT, *flags)
    assert code == 2 and not out and reason in error and "Traceback" not in error
    assert not [*tmp_path.iterdir()]


def test_models_of_images_do_not_animate(animator: Path, tmp_path: Path) -> None:
    video = glassformer.load(animator)
    with pytest.raises(GlassformerError, match="draws images"):
        video.draw(PROMPT)
    with pytest.raises(GlassformerError, match="draws frames"):
        glassformer.load(save_drawing_model(tmp_path)).animate(PROMPT)
    with pytest.raises(UnknownNameError, match="output_format"):
        VideoGenerator(video, output_format="gif")

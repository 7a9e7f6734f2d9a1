"""Diffusion pipelines from folders, compared with those of diffusers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from PIL import Image
from tokenizers import pre_tokenizers

import glassformer
from glassformer.diffusion import SAMPLERS, ImageNoise
from glassformer.errors import (
    ConflictError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.tasks.drawing import DiffusionImageGenerator, to_images
from tests.families.diffusion_models import diffusers, reference
from tests.families.test_autoencoders import settings as autoencoder_settings
from tests.families.test_unet import settings as unet_settings

SEEDS, STEPS = [5, 6], 4
TEXTS = ["a red apple", "two blue fish on a plate"]


def clip_tokenizer(folder: Path) -> Any:
    """CLIP's byte-level tokenizer, without merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(f"{one}</w>" for one in alphabet), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def stable_diffusion(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny random Stable Diffusion, and its folder."""
    root = tmp_path_factory.mktemp("pipeline")
    tokenizer = clip_tokenizer(root / "words")
    config = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=20,
        num_attention_heads=4,
        intermediate_size=37,
        num_hidden_layers=2,
        max_position_embeddings=40,
        eos_token_id=tokenizer.eos_token_id,
    )
    tokenizer.model_max_length = 40
    torch.manual_seed(0)
    encoder = transformers.CLIPTextModel(config).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(std=0.3)
    scheduler = diffusers.DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1, clip_sample=False
    )
    pipeline = diffusers.StableDiffusionPipeline(
        unet=reference("UNet2DConditionModel", unet_settings("xo")),
        vae=reference("AutoencoderKL", autoencoder_settings([8, 16])),
        text_encoder=encoder,
        tokenizer=tokenizer,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(root / "folder")
    return pipeline, root / "folder"


def draw(
    bundle: Any, prompts: list[Any], seeds: list[int] | None = None, **options: Any
) -> list[Image.Image]:
    """Draw one image for each prompt, each with its own seed, together."""
    task = DiffusionImageGenerator(bundle, **options)
    items = list(task.load(prompts))
    if errors := [item for item in items if isinstance(item, Exception)]:
        raise errors[0]
    return to_images(task.draw(items, seeds or list(range(len(items)))))


def restored(bundle: Any, start: Image.Image) -> list[Image.Image]:
    """The image after encoding and decoding."""
    x = torch.from_numpy(np.asarray(start, np.float32) / 127.5 - 1).movedim(-1, 0)[None]
    with torch.no_grad():
        return to_images(bundle.model.decode(bundle.model.encode(x)))


def pixels(images: list[Image.Image]) -> np.ndarray:
    return np.stack([np.asarray(image, np.int16) for image in images])


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
def test_images_match_stable_diffusion(stable_diffusion: Any, guidance_scale: float) -> None:
    theirs, folder = stable_diffusion
    ours = glassformer.load(folder)
    expected = theirs(
        TEXTS,
        negative_prompt=["ugly"] * 2,
        latents=ImageNoise(SEEDS, (4, 8, 8)).draw(),
        num_inference_steps=STEPS,
        guidance_scale=guidance_scale,
    ).images
    options = {"num_inference_steps": STEPS, "guidance_scale": guidance_scale, "negative_prompt": "ugly"}
    drawn = draw(ours, TEXTS, seeds=SEEDS, **options)
    assert np.abs(pixels(drawn) - pixels(expected)).max() <= 1 and pixels(drawn).std() > 5
    alone = [draw(ours, [text], seeds=[seed], **options)[0] for text, seed in zip(TEXTS, SEEDS, strict=True)]
    assert np.abs(pixels(alone) - pixels(drawn)).max() <= 1


def test_image_to_image_and_inpainting(stable_diffusion: Any) -> None:
    """A small strength keeps the image; a mask keeps what is black."""
    ours = glassformer.load(stable_diffusion[1])
    start = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8))
    options: dict[str, Any] = {"num_inference_steps": 10, "guidance_scale": 1.0, "image": start}
    kept = restored(ours, start)
    near, far = (draw(ours, TEXTS[:1], strength=s, **options) for s in (0.1, 1.0))
    distance = [np.abs(pixels(images) - pixels(kept)).mean() for images in (near, far)]
    assert distance[0] < distance[1]
    white = Image.new("L", (16, 16), 255)
    black = Image.new("L", (16, 16), 0)
    assert np.abs(pixels(draw(ours, TEXTS[:1], mask=black, **options)) - pixels(kept)).max() <= 1
    anew = draw(ours, TEXTS[:1], mask=white, **options)
    assert np.array_equal(pixels(anew), pixels(far))


def test_images_match_dit(tmp_path: Path) -> None:
    settings = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 8}
    settings |= {"num_layers": 2, "sample_size": 8, "patch_size": 2, "num_embeds_ada_norm": 10}
    transformer = reference(
        "DiTTransformer2DModel",
        {**settings, "norm_type": "ada_norm_zero", "activation_fn": "gelu-approximate"},
    )
    with torch.no_grad():  # published files have equal copies of these nets
        first = transformer.transformer_blocks[0].norm1.emb
        for block in transformer.transformer_blocks[1:]:
            block.norm1.emb.load_state_dict(first.state_dict())
    vae = reference("AutoencoderKL", autoencoder_settings([8, 16]))
    theirs = diffusers.DiTPipeline(transformer=transformer, vae=vae, scheduler=diffusers.DDIMScheduler())
    theirs.save_pretrained(tmp_path / "folder")
    ours = glassformer.load(tmp_path / "folder")
    options = {"num_inference_steps": STEPS, "guidance_scale": 2.0}
    images = draw(ours, [3, 7], SEEDS, **options)
    assert len(images) == 2 and images[0].size == (16, 16)
    again = glassformer.load(glassformer.save(ours, tmp_path / "saved"))
    same = draw(again, [3, 7], SEEDS, **options)
    assert np.array_equal(pixels(images), pixels(same))
    diffusers.DiTPipeline.from_pretrained(tmp_path / "saved")
    for prompt in ("cat", 10, -1):
        with pytest.raises(InvalidValueError):
            draw(ours, [prompt])
    with pytest.raises(UnsupportedError):
        draw(ours, [3], negative_prompt="cat")
    one_folder = glassformer.load(glassformer.save(ours, tmp_path / "one", layout="glassformer"))
    assert one_folder.spec == ours.spec and not one_folder.parts
    assert np.array_equal(pixels(images), pixels(draw(one_folder, [3, "7"], SEEDS, **options)))
    back = glassformer.save(one_folder, tmp_path / "back", layout="hf")
    diffusers.DiTPipeline.from_pretrained(back)


# a small Transformer that attends to the texts of `t5_parts`
T5_SETTINGS: dict[str, Any] = {
    **{"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 8},
    **{"num_layers": 2, "sample_size": 8, "patch_size": 2, "caption_channels": 12},
    **{"cross_attention_dim": 16, "norm_type": "ada_norm_single", "activation_fn": "gelu-approximate"},
}


def t5_parts() -> dict[str, Any]:
    """A tiny random T5 encoder with a tokenizer of words."""
    words = {word: n for n, word in enumerate(["<pad>", "</s>", "<unk>", *" ".join(TEXTS).split()])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=20, d_model=12, d_kv=4, d_ff=24, num_layers=2, num_heads=3)
    encoder = transformers.T5EncoderModel(config).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(std=0.5)
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return {
        "text_encoder": encoder,
        "tokenizer": transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special),
    }


def test_images_match_pixart(tmp_path: Path) -> None:
    """A text encoder without position table, padding that is hidden, and capital letters."""
    settings = {**T5_SETTINGS, "use_additional_conditions": False}
    theirs = diffusers.PixArtAlphaPipeline(
        transformer=reference("PixArtTransformer2DModel", settings),
        vae=reference("AutoencoderKL", autoencoder_settings([8, 16])),
        scheduler=diffusers.DDIMScheduler(),
        **t5_parts(),
    )
    theirs.set_progress_bar_config(disable=True)
    theirs.save_pretrained(tmp_path)
    expected = theirs(
        [text.title() for text in TEXTS],
        negative_prompt="a fish",
        latents=ImageNoise(SEEDS, (4, 8, 8)).draw(),
        num_inference_steps=STEPS,
        guidance_scale=2.0,
        clean_caption=False,
        use_resolution_binning=False,
    ).images
    ours = glassformer.load(tmp_path)
    options = {"num_inference_steps": STEPS, "guidance_scale": 2.0, "negative_prompt": "a fish"}
    drawn = draw(ours, TEXTS, SEEDS, **options)
    assert np.abs(pixels(drawn) - pixels(expected)).max() <= 1 and pixels(drawn).std() > 5
    seen = replace(ours.spec, mask_padding=False)
    ours.model.spec = seen
    assert np.abs(pixels(draw(ours, TEXTS, SEEDS, **options)) - pixels(expected)).max() > 1


def test_prompts_with_several_images_are_drawn_in_batches(stable_diffusion: Any) -> None:
    """The images of a prompt have consecutive seeds, whatever the batches are."""
    bundle = glassformer.load(stable_diffusion[1])
    options: dict[str, Any] = {"num_inference_steps": 2, "num_images_per_prompt": 2, "seed": 7}
    rows = DiffusionImageGenerator(bundle, batch_size=3, **options)(TEXTS)
    alone = DiffusionImageGenerator(bundle, batch_size=1, **options)(TEXTS[1])
    assert [row.prompt for row in rows] == TEXTS and rows[1].seeds == (7, 8)
    assert np.abs(pixels(list(rows[1].images)) - pixels(list(alone.images))).max() <= 1


def test_a_large_batch_size_draws_many_prompts_together(stable_diffusion: Any, monkeypatch: Any) -> None:
    sizes, draw = [], DiffusionImageGenerator.draw

    def counted(self: Any, prompts: Any, *rest: Any) -> torch.Tensor:
        sizes.append(len(prompts))
        return draw(self, prompts, *rest)

    monkeypatch.setattr(DiffusionImageGenerator, "draw", counted)
    bundle = glassformer.load(stable_diffusion[1])
    DiffusionImageGenerator(bundle, num_inference_steps=1, guidance_scale=1, batch_size=20)(TEXTS * 12)
    assert sizes == [20, 4]


def test_diffusers_reads_the_saved_folder(stable_diffusion: Any, tmp_path: Path) -> None:
    theirs, folder = stable_diffusion
    saved = glassformer.save(glassformer.load(folder), tmp_path / "saved")
    again = diffusers.StableDiffusionPipeline.from_pretrained(saved, safety_checker=None)
    for name in ("unet", "vae", "text_encoder"):
        before, after = (getattr(one, name).state_dict() for one in (theirs, again))
        assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in after)
    assert again.tokenizer(TEXTS).input_ids == theirs.tokenizer(TEXTS).input_ids


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_inference_steps": 10_000}, InvalidValueError),
        ({"height": 17}, InvalidValueError),
        ({"width": 100_000}, InvalidValueError),
        ({"height": 1024, "width": 1024}, InvalidValueError),  # 262,144 tokens of a model trained with 64
        ({"strength": 0.5}, MissingValueError),
        ({"mask": b""}, MissingValueError),
        ({"sampler": "eular"}, UnknownNameError),
    ],
)
def test_bad_options_are_one_error(stable_diffusion: Any, options: Any, error: Any) -> None:
    pipeline = glassformer.load(stable_diffusion[1])
    with pytest.raises(error):
        draw(pipeline, TEXTS, **options)


def test_long_prompts_and_broken_folders_are_errors(stable_diffusion: Any, tmp_path: Path) -> None:
    pipeline = glassformer.load(stable_diffusion[1])
    with pytest.raises(InputTooLongError):
        draw(pipeline, ["long " * 100])
    index = json.loads((stable_diffusion[1] / "model_index.json").read_text())
    for change, error in (
        ({"_class_name": "FluxPipeline"}, UnknownNameError),
        ({"controlnet": ["diffusers", "ControlNetModel"]}, UnsupportedError),
        ({"tokenizer": [None, None]}, MissingValueError),
    ):
        (tmp_path / "model_index.json").write_text(json.dumps({**index, **change}))
        with pytest.raises(error):
            glassformer.load(tmp_path)


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "flow_match_euler"])
def test_every_sampler_of_noise_schedules_draws_from_an_image(stable_diffusion: Any, sampler: str) -> None:
    """With a mask that keeps everything, the image stays; a text is one prompt."""
    ours = glassformer.load(stable_diffusion[1])
    start = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8))
    options: dict[str, Any] = {"num_inference_steps": 5, "image": start, "sampler": sampler}
    (kept,) = draw(ours, TEXTS[:1], mask=Image.new("L", (16, 16), 0), **options)
    assert np.abs(pixels([kept]) - pixels(restored(ours, start))).max() <= 1
    (drawn,) = draw(ours, TEXTS[:1], strength=0.6, **options)
    assert not np.array_equal(pixels([drawn]), pixels([kept]))


def test_flow_matching_cannot_sample_a_model_of_noise(stable_diffusion: Any) -> None:
    ours = glassformer.load(stable_diffusion[1])
    assert DiffusionImageGenerator(ours)([]) == []
    with pytest.raises(ConflictError):
        draw(ours, TEXTS, sampler="flow_match_euler")

"""UNet, autoencoder, sampler and guidance together, compared with diffusers' StableDiffusionPipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.diffusion import ImageNoise, denoise, read_scheduler_config
from tests.families.diffusion_models import diffusers, load_saved, reference
from tests.families.test_autoencoders import settings as autoencoder_settings
from tests.families.test_unet import settings as unet_settings

SEEDS, STEPS, SIZE, SCALE = (5, 6), 4, (4, 8, 8), 3.0
SCHEDULE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
SCHEDULERS = {
    "DDIMScheduler": {"clip_sample": False, "set_alpha_to_one": False},
    "EulerDiscreteScheduler": {},
    "DPMSolverMultistepScheduler": {"use_karras_sigmas": True},
}


def make_pipeline(scheduler: str) -> Any:
    """A tiny random pipeline without the text encoder, whose vectors are given."""
    parts = {
        "unet": reference("UNet2DConditionModel", unet_settings("xo")),
        "vae": reference("AutoencoderKL", autoencoder_settings([8, 16])),
        "scheduler": getattr(diffusers, scheduler)(**SCHEDULE, **SCHEDULERS[scheduler]),
    }
    missing = dict.fromkeys(("text_encoder", "tokenizer", "safety_checker", "feature_extractor"))
    kind = diffusers.StableDiffusionPipeline
    pipeline = kind(**parts, **missing, requires_safety_checker=False)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_images_match_the_pipeline(scheduler: str, tmp_path: Path) -> None:
    pipeline = make_pipeline(scheduler)
    generator = torch.Generator().manual_seed(1)
    text, negative = (torch.randn(2, 7, 20, generator=generator) for _ in range(2))
    options = {"num_inference_steps": STEPS, "guidance_scale": SCALE, "output_type": "pt"}
    theirs: Tensor = pipeline(
        prompt_embeds=text,
        negative_prompt_embeds=negative,
        latents=ImageNoise(SEEDS, SIZE).draw(),
        **options,
    ).images
    unet, vae = (load_saved(getattr(pipeline, n), tmp_path / n).model for n in ("unet", "vae"))
    sampler = read_scheduler_config(dict(pipeline.scheduler.config) | {"_class_name": scheduler})
    latents = denoise(
        unet,
        sampler.sampler(STEPS),
        ImageNoise(SEEDS, SIZE),
        {"text": text},
        negative={"text": negative},
        guidance_scale=SCALE,
    )
    with torch.no_grad():
        images = (vae.decode(vae.unscale_latents(latents)) / 2 + 0.5).clamp(0, 1)
    assert images.shape == (2, 3, 16, 16) and float(images.std()) > 0.05
    torch.testing.assert_close(images, theirs, atol=1e-5, rtol=0)

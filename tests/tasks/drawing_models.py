"""Tiny random models that draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import glassformer
from glassformer.bundle import Bundle
from glassformer.core.build import build_model
from glassformer.core.spec import DiffusionModelSpec
from glassformer.diffusion import DDIM, FlowMatchEuler, write_scheduler_config
from glassformer.families.sidecars import SCHEDULER_FILE, JobInfo
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer

PROMPTS = ["the cat sat on the mat", "a dog ran"]
CLASSES = ("cat", "dog")


def diffusion_bundle(*, classes: bool = False) -> Bundle:
    """A diffusion model that draws images of 16 x 16 pixels."""
    size = {"image_size": 8, "channels": 4}
    tokenizer = None if classes else train_tokenizer(PROMPTS * 3, TokenizerPlan(kind="word", vocab_size=60))
    if tokenizer is None:
        denoiser, text = glassformer.tiny("dit", num_classes=len(CLASSES), **size).spec, None
    else:
        text = glassformer.tiny("bert", vocab_size=tokenizer.vocab_size).spec
        denoiser = glassformer.tiny("pixart", text_dim=text.encoder.d_model, **size).spec
    autoencoder = glassformer.tiny("autoencoder_kl").spec
    model = redrawn(DiffusionModelSpec(denoiser=denoiser, autoencoder=autoencoder, text_encoder=text))
    files = {SCHEDULER_FILE: write_scheduler_config(DDIM(clip_sample=False))}
    job = JobInfo(classes=CLASSES if classes else ())
    return Bundle(model=model, tokenizer=tokenizer, files=files, job=job)


def video_bundle() -> Bundle:
    """A diffusion model that draws 4 frames of 8 x 8 gray pixels, without an autoencoder."""
    tokenizer = train_tokenizer(PROMPTS * 3, TokenizerPlan(kind="word", vocab_size=60))
    text = glassformer.tiny("bert", vocab_size=tokenizer.vocab_size).spec
    denoiser = glassformer.tiny("latte", text_dim=text.encoder.d_model, channels=1, out_channels=1).spec
    model = redrawn(DiffusionModelSpec(denoiser=denoiser, text_encoder=text))
    files = {SCHEDULER_FILE: write_scheduler_config(FlowMatchEuler())}
    return Bundle(model=model, tokenizer=tokenizer, files=files)


def redrawn(spec: DiffusionModelSpec) -> Any:
    torch.manual_seed(1)
    model = build_model(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 1.0 / parameter[0].numel() ** 0.5 if parameter.dim() > 1 else 0.3
            parameter.copy_(torch.randn_like(parameter) * spread)
    return model.eval()


def save_drawing_model(folder: Path, *, classes: bool = False) -> Path:
    return glassformer.save(diffusion_bundle(classes=classes), folder, layout="glassformer")

"""The job autoencoder: its loss, the revival of unused codes, and runs on colored shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import glassformer
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.training.jobs import autoencoder
from glassformer.training.jobs.autoencoder import AutoencoderLearner
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import run
from tests.training.test_jobs_contrastive import make_shapes


def recipe_of(folder: Path, preset: str = "vq_model", **training: Any) -> dict[str, Any]:
    model = {"preset": preset, "widths": [8, 16, 16], "norm_groups": 4, "middle_attention": False}
    codes = {"num_codes": 24, "code_dim": 4} if preset == "vq_model" else {}
    return {
        "job": "autoencoder",
        "data": {"train": [str(folder / "images")], "image_size": [16, 16], "flip_prob": 0.5, "valid": 0.2},
        "model": {**model, **codes, "latent_channels": 4},
        "training": {
            **{"batch_size": 16, "lr": 0.004, "warmup_steps": 4, "eval_steps": 20, "device": "cpu"},
            **{"report_to": [], "lr_scheduler": "constant", **training},
        },
    }


def test_the_loss_is_error_plus_penalty() -> None:
    images = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model: Any = glassformer.tiny("vq_model")
    found = model.encode(images)
    distance = F.mse_loss(found.vectors, model.bottleneck.lookup(found.ids))
    expected = 3 * (F.mse_loss(model.decode(found.latents), images) + 1.25 * distance)
    torch.testing.assert_close(AutoencoderLearner(model)(images), expected)

    model = glassformer.tiny("autoencoder_kl")
    found = model.encode(images)
    torch.manual_seed(4)
    sampled = found.mean + (0.5 * found.log_variance).exp() * torch.randn_like(found.mean)
    divergence = -0.5 * (1 + found.log_variance - found.mean**2 - found.log_variance.exp()).sum() / 3
    expected = 3 * (F.mse_loss(model.decode(sampled), images) + 1e-6 * divergence / (3 * 8 * 8))
    torch.manual_seed(4)
    torch.testing.assert_close(AutoencoderLearner(model)(images), expected)


def test_training_restores_images_and_uses_the_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_shapes(tmp_path, 48)
    (tmp_path / "images/broken.png").write_bytes(b"no image")
    monkeypatch.setattr(autoencoder, "REVIVAL_STEPS", 5)
    logged: list[str] = []
    bundle = glassformer.train(recipe_of(tmp_path, max_steps=40), tmp_path / "run", log=logged.append)
    assert bundle.family == "vq_model" and bundle.job.name == "autoencoder"
    assert any("skipped 1 of 49 images" in line for line in logged)
    history = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    valid = [eval_line for line in history if (eval_line := validation(line))]
    assert valid[-1]["psnr"] > valid[0]["psnr"] > 5 and valid[-1]["codes_used"] > 0.5
    grid = Image.open(next(iter(sorted((tmp_path / "run/samples").glob("*.png")))))
    assert grid.size[0] > grid.size[1] > 32
    pictures = [Image.open(path) for path in sorted((tmp_path / "images").glob("[!b]*.png"))]
    pixels = torch.stack(
        [torch.from_numpy(np.array(one.convert("RGB").resize((16, 16)))) for one in pictures]
    )
    model: Any = bundle.model
    latents = model.scale_latents(model.encode(pixels.movedim(-1, 1) / 127.5 - 1).latents).detach()
    assert 0.7 < float(latents.std()) < 1.4, (
        "a diffusion model expects latents with a standard deviation of 1"
    )

    monkeypatch.setattr(autoencoder.CodeRevival, "on_step_end", lambda *_: None)
    glassformer.train(recipe_of(tmp_path, max_steps=40), tmp_path / "dead", log=logged.append)
    history = (tmp_path / "dead/metrics.jsonl").read_text().splitlines()
    dead = [eval_line for line in history if (eval_line := validation(line))]
    assert dead[-1]["codes_used"] < valid[-1]["codes_used"] - 0.2, "without revival, codes die"


def validation(line: str) -> dict[str, float] | None:
    content = json.loads(line)
    metrics: dict[str, float] | None = content["metrics"] if content["kind"] == "valid" else None
    return metrics


@pytest.mark.parametrize("preset", ["vq_model", "autoencoder_kl"])
def test_resumed_runs_are_bit_identical_with_revived_codes_and_ema(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, EMA and optimizer of the last checkpoint, after a stop within an epoch."""
    make_shapes(tmp_path, 40)
    monkeypatch.setattr(autoencoder, "REVIVAL_STEPS", 3)
    long = recipe_of(tmp_path, preset, max_steps=10, eval_steps=5, ema=0.9)
    short = {**long, "training": {**long["training"], "max_steps": 5}}
    monkeypatch.setattr(autoencoder, "REVIVAL_END", 2.0)  # the length of a run decides when revival ends
    quiet = {"log": lambda _: None}
    glassformer.train(short, tmp_path / "resumed", **quiet)
    glassformer.train(long, tmp_path / "resumed", **quiet)
    glassformer.train(long, tmp_path / "straight", **quiet)
    resumed, straight = (tensor_files(tmp_path / name) for name in ("resumed", "straight"))
    assert len(resumed) >= 3 and any("ema" in str(path) for path in resumed)
    assert resumed == straight


def tensor_files(run_folder: Path) -> dict[Path, bytes]:
    """The tensors of the last checkpoint: weights, EMA and optimizer."""
    root = run_folder / "checkpoints/step-00000010"
    return {path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*.safetensors"))}


def test_revival_moves_the_average_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_shapes(tmp_path, 40)
    monkeypatch.setattr(autoencoder, "REVIVAL_STEPS", 4)
    recipe = recipe_of(tmp_path, max_steps=4, eval_steps=4, ema=0.9)
    seen: dict[str, Any] = {}

    class Keep(glassformer.TrainerCallback):
        def on_step_end(self, trainer: Any, metrics: Any) -> None:
            codes, average = trainer.model.bottleneck.codes, trainer.ema.tensors["bottleneck.codes"]
            seen[metrics.step] = (codes.detach().clone(), average.clone())

    monkeypatch.setattr(autoencoder, "REVIVAL_END", 1.0)
    run(parse_recipe(recipe), tmp_path / "run", log=lambda _: None, callbacks=[Keep()])
    (before, _), (codes, average) = seen[3], seen[4]
    moved = ((codes - before).abs() > 0.05).any(1)
    assert moved.sum() > 0 and torch.equal(codes[moved], average[moved])


def test_unusable_models_and_sizes_are_rejected(tmp_path: Path) -> None:
    make_shapes(tmp_path, 8)
    recipe = recipe_of(tmp_path, max_steps=1)
    with pytest.raises(UnsupportedError, match="vq_model"):
        glassformer.train({**recipe, "model": {"preset": "vit"}}, tmp_path / "a")
    for size in ([16, 24], [18, 18]):
        data = {**recipe["data"], "image_size": size}
        with pytest.raises(InvalidValueError, match="image_size"):
            glassformer.train({**recipe, "data": data}, tmp_path / str(size[1]), log=lambda _: None)

"""`verify` for models that draw: every part is checked, and images do not depend on their batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer.diffusion import ImageNoise, SamplerStep
from glassformer.diffusion.samplers import DiffusionSampler
from glassformer.tasks.image_tokens import TokenImageGenerator
from glassformer.verify import all_checks, verify
from tests.tasks.test_drawing import stable_diffusion  # noqa: F401 (a fixture)
from tests.tasks.test_image_tokens import classes, texts  # noqa: F401 (fixtures)


def run(bundle: Any, name: str) -> Any:
    return all_checks("required", None, bundle)[name](bundle, name)


def test_all_checks_pass(stable_diffusion: Any) -> None:  # noqa: F811
    results = {result.name: result for result in verify(glassformer.load(stable_diffusion[1]))}
    assert {result.status for result in results.values()} == {"passed", "skipped"}
    assert [name for name, result in results.items() if result.status == "skipped"] == ["cached = uncached"]
    for part in ("UNet2DConditionModel", "AutoencoderKL", "CLIPTextModel"):
        assert part in results["reference = ours"].note
    assert "hf and glassformer" in results["saved = loaded"].note
    assert results["step cache near exact"].worst > 0


@pytest.mark.parametrize("part", ["denoiser", "autoencoder", "text_encoder"])
def test_a_wrong_part_fails(part: str, stable_diffusion: Any) -> None:  # noqa: F811
    bundle = glassformer.load(stable_diffusion[1])
    parameter = next(p for p in getattr(bundle.model, part).parameters() if p.dim() > 1)
    parameter.data = parameter * 1.1
    assert run(bundle, "reference = ours").status == "failed"


def one_generator(noise: ImageNoise) -> Tensor:
    """Noise of a batch from the generator of its first image."""
    return torch.randn((len(noise.generators), *noise.shape), generator=noise.generators[0])


def test_noise_that_depends_on_the_batch_fails(
    stable_diffusion: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = glassformer.load(stable_diffusion[1])
    monkeypatch.setattr(ImageNoise, "draw", one_generator)
    assert run(bundle, "together = alone").status == "failed"


def test_a_step_that_is_not_finite_fails(stable_diffusion: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    bundle, original = glassformer.load(stable_diffusion[1]), DiffusionSampler.step

    def step(self: DiffusionSampler, output: Tensor, index: int, *args: Any) -> SamplerStep:
        found = original(self, output, index, *args)
        return found if index < 19 else SamplerStep(found.prev_sample / 0, found.pred_original_sample)

    monkeypatch.setattr(DiffusionSampler, "step", step)
    assert run(bundle, "samplers are finite").status == "failed"


def test_image_tokens_drawn_together_equal_those_drawn_alone(
    texts: Any,  # noqa: F811
    classes: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for bundle in (texts, classes):
        assert run(bundle, "together = alone").status == "passed"
    original = TokenImageGenerator.sample

    def sample(self: TokenImageGenerator, prompts: Any, seeds: Any, *args: Any) -> Tensor:
        return original(self, prompts, [seed + len(prompts) for seed in seeds], *args)

    monkeypatch.setattr(TokenImageGenerator, "sample", sample)
    assert run(texts, "together = alone").status == "failed"


def test_the_command_shows_parts(stable_diffusion: Any, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    from glassformer.cli.main import main

    with pytest.raises(SystemExit) as stop:
        main(["inspect", str(stable_diffusion[1])])
    printed = capsys.readouterr().out
    assert stop.value.code == 0
    assert all(f"{part}  " in printed for part in ("denoiser", "autoencoder", "text_encoder"))


def test_export_is_refused_in_one_sentence(stable_diffusion: Any, tmp_path: Path) -> None:  # noqa: F811
    from glassformer.errors import UnsupportedError
    from glassformer.export.onnx import export_onnx

    with pytest.raises(UnsupportedError) as caught:
        export_onnx(glassformer.load(stable_diffusion[1]), tmp_path, "float32")
    assert "image" not in str(caught.value)

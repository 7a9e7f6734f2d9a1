"""The step cache: exact where nothing changed, and the inside runs at every k-th step only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import glassformer
from glassformer.core.inputs import LatentInputs
from glassformer.diffusion import DDIM, ImageNoise, denoise
from glassformer.diffusion.step_cache import StepCache
from glassformer.errors import ConflictError, InvalidValueError, UnsupportedError
from glassformer.tasks.drawing import DiffusionImageGenerator
from glassformer.verify import perturb_parameters
from glassformer.verify.inputs import random_inputs
from tests.tasks.drawing_models import diffusion_bundle

INSIDE = {"dit": "encoder.blocks.1", "pixart": "encoder.blocks.1", "latte": "encoder.blocks.1"}
INSIDE |= {"unet_2d_condition": "encoder.levels.1"}


def tiny(family: str) -> tuple[Any, LatentInputs, list[None]]:
    """A model, its inputs, and a list that grows with every call of the inside."""
    torch.manual_seed(0)
    model, calls = glassformer.tiny(family).eval(), list[None]()
    perturb_parameters(model)
    inside = model.get_submodule(INSIDE[family])
    original = inside.forward
    inside.forward = lambda *args, **kwargs: (calls.append(None), original(*args, **kwargs))[1]
    (inputs,) = random_inputs(model).arguments()
    assert isinstance(inputs, LatentInputs)
    return model, inputs, calls


def at(inputs: LatentInputs, shift: float) -> LatentInputs:
    """Other latents at another time."""
    others = {name: getattr(inputs, name) for name in ("labels", "text", "text_mask")}
    return LatentInputs(inputs.latents + shift, inputs.timesteps // 2, **others)


@pytest.mark.parametrize("family", INSIDE)
def test_only_the_inside_is_reused(family: str) -> None:
    model, inputs, calls = tiny(family)
    with torch.no_grad():
        exact, other = model(inputs), model(at(inputs, 0.1))
        del calls[:]
        cached = StepCache(model, 3)
        first, same, changed = cached(inputs), cached(inputs), cached(at(inputs, 0.1))
        assert len(calls) == 1
        again = cached(at(inputs, 0.1))
        assert len(calls) == 2
    assert torch.equal(first, exact) and torch.equal(again, other)
    torch.testing.assert_close(same, exact, atol=1e-5, rtol=0)
    distance = (other - exact).abs().max()
    assert 1e-4 < (changed - other).abs().max() < 2 * distance and (changed - exact).abs().max() > 1e-4


@pytest.mark.parametrize("family", ["dit", "unet_2d_condition"])
def test_images_do_not_depend_on_their_batch(family: str) -> None:
    model, inputs, calls = tiny(family)
    names = ("labels",) if family == "dit" else ("text", "text_mask")
    condition = {name: getattr(inputs, name) for name in names}

    def draw(rows: slice, every: int) -> torch.Tensor:
        noise = ImageNoise([4, 5, 6][rows], inputs.latents.shape[1:])
        own = {name: x[rows] for name, x in condition.items()}
        return denoise(StepCache(model, every), DDIM().sampler(6), noise, own)

    together = draw(slice(0, 3), 2)
    assert len(calls) == 3
    alone = torch.cat([draw(slice(n, n + 1), 2) for n in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    exact = denoise(model, DDIM().sampler(6), ImageNoise([4, 5, 6], inputs.latents.shape[1:]), condition)
    assert torch.equal(draw(slice(0, 3), 1), exact)
    assert not torch.equal(together, exact)


def test_quantized_weights_are_used() -> None:
    options: dict[str, Any] = {"num_inference_steps": 3, "guidance_scale": 1.0}
    exact = DiffusionImageGenerator(diffusion_bundle(classes=True), **options).draw([0, 1], [1, 2])
    bundle = replace(diffusion_bundle(classes=True), weights="int8")
    near = DiffusionImageGenerator(bundle, **options).draw([0, 1], [1, 2])
    assert 1e-4 < (near - exact).abs().max() < 0.5 * exact.std()
    with pytest.raises(ConflictError, match="int8"):
        DiffusionImageGenerator(bundle, step_cache=2, **options)


def test_other_models_and_values_are_one_error() -> None:
    with pytest.raises(InvalidValueError):
        StepCache(glassformer.tiny("dit"), 0)
    with pytest.raises(UnsupportedError):
        StepCache(glassformer.tiny("t5"), 2)


@pytest.mark.parametrize("family", ["dit", "unet_2d_condition"])
def test_the_distance_is_that_of_the_exact_prediction(family: str) -> None:
    model, inputs, _ = tiny(family)
    cached, plain = StepCache(model, 3, measured_call=2), StepCache(model, 3)
    with torch.no_grad():
        outputs = [[run(at(inputs, shift)) for shift in (0.0, 0.3, 0.5)] for run in (cached, plain)]
        exact = model(at(inputs, 0.3))
    assert all(map(torch.equal, *outputs))  # measuring changes nothing
    assert cached.distance is not None and plain.distance is None
    expected = (outputs[0][1] - exact).norm() / exact.norm()
    torch.testing.assert_close(cached.distance, expected)
    assert expected > 1e-4


def test_a_drawing_reports_its_distance_once() -> None:
    bundle = diffusion_bundle(classes=True)
    options: dict[str, Any] = {"num_inference_steps": 6, "guidance_scale": 2.0}
    exact, cached = (DiffusionImageGenerator(bundle, step_cache=k, **options) for k in (1, 2))
    images = [generator.draw([0, 1], [1, 2]) for generator in (exact, cached, cached)]
    assert not exact.notes and len(cached.notes) == 1
    assert cached.notes[0].startswith("step_cache=2 moved the prediction of step 4 by ")
    assert torch.equal(images[1], images[2]) and not torch.equal(images[0], images[1])
    assert torch.equal(images[0], DiffusionImageGenerator(bundle, **options).draw([0, 1], [1, 2]))

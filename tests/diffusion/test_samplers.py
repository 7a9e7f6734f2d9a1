"""Samplers: every step of a trajectory equals that of the scheduler of diffusers."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from glassformer.diffusion import (
    DDIM,
    DDPM,
    SAMPLERS,
    DiffusionSampler,
    DPMSolverMultistep,
    Euler,
    EulerAncestral,
    FlowMatchEuler,
    SamplerSettings,
    read_scheduler_config,
    write_scheduler_config,
)
from glassformer.diffusion.samplers import StepWeights
from glassformer.diffusion.scheduler_config import FIXED
from glassformer.errors import InvalidValueError, ShapeError, UnknownNameError, UnsupportedError
from glassformer.schema import field_types

diffusers = pytest.importorskip("diffusers", reason="the reference: pip install diffusers")

SHAPE = (2, 4, 5, 6)
SD: dict[str, Any] = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SPACINGS: list[dict[str, Any]] = [
    {"timestep_spacing": "leading", "steps_offset": 1},
    {"timestep_spacing": "trailing"},
    {"timestep_spacing": "linspace"},
]
ZERO_SNR = {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction", "timestep_spacing": "trailing"}
EVERY = [
    {},
    SD,
    {"beta_schedule": "squaredcos_cap_v2"},
    *({**SD, **spacing} for spacing in SPACINGS),
    {**SD, "prediction_type": "v_prediction"},
    {**SD, "prediction_type": "sample"},
    {**SD, **ZERO_SNR},
    {"num_train_timesteps": 400, "beta_end": 0.05},
]
KARRAS = [
    {**SD, "use_karras_sigmas": True},
    {"beta_schedule": "squaredcos_cap_v2", "use_karras_sigmas": True},
]
FINAL = [{**SD, **spacing, "final_sigmas_type": "sigma_min"} for spacing in SPACINGS]
CLIP = [{**SD, "clip_sample": False}, {**SD, "clip_sample_range": 2.5}]
VARIANCES = [{"variance_type": kind, **SPACINGS[0]} for kind in ("fixed_large", "learned_range")]
LAST = [{**SD, "lower_order_final": False}, {**SD, "euler_at_final": True}]
CASES: list[SamplerSettings] = [
    *(DDPM(**options) for options in (*EVERY, *CLIP, *VARIANCES)),
    *(DDIM(**options) for options in (*EVERY, *CLIP, {**SD, "set_alpha_to_one": False})),
    *(DDIM(**options, eta=0.7, clip_sample=False) for options in (SD, *EVERY[3:6])),
    *(Euler(**options) for options in (*EVERY, *KARRAS, *FINAL)),
    *(EulerAncestral(**options) for options in EVERY if options.get("prediction_type") != "sample"),
    *(DPMSolverMultistep(**options) for options in (*EVERY, *KARRAS, *FINAL, *LAST)),
    *(FlowMatchEuler(shift=shift) for shift in (1.0, 3.0, 0.5)),
    FlowMatchEuler(num_train_timesteps=250, shift=2.0),
]


def label(settings: SamplerSettings) -> str:
    default = type(settings)()
    changes = (f"{k}={v}" for k, v in vars(settings).items() if v != getattr(default, k))
    return "-".join([type(settings).__name__, *changes])


cases = pytest.mark.parametrize("settings", CASES, ids=label)


class Recorded(NamedTuple):
    """A step of diffusers."""

    x: Tensor
    model_output: Tensor
    noise: Tensor
    result: Tensor
    clean: Tensor | None


def model(x: Tensor, timestep: Tensor, settings: SamplerSettings) -> Tensor:
    """A function of sample and timestep that is not linear, with four more channels for a variance."""
    output = torch.tanh(0.7 * x + 0.3 * x.flip(-1)) + 0.5 * torch.cos(timestep.float() / 300)
    learned = getattr(settings, "variance_type", "") == "learned_range"
    return torch.cat([output, output.flip(1)], 1) if learned else output


def make_noises(num_steps: int) -> Tensor:
    return torch.randn(num_steps + 1, *SHAPE, generator=torch.Generator().manual_seed(num_steps))


def run_diffusers(settings: SamplerSettings, num_steps: int, patch: pytest.MonkeyPatch) -> list[Recorded]:
    """Return every step of the scheduler with these settings."""
    config = write_scheduler_config(settings)
    scheduler = getattr(diffusers, config["_class_name"]).from_config(config)
    scheduler.set_timesteps(num_steps)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)  # of equal timesteps, diffusers would start with the second
    noises, steps = make_noises(num_steps), []
    x = noises[-1] * getattr(scheduler, "init_noise_sigma", 1.0)
    for timestep, noise in zip(scheduler.timesteps, noises, strict=False):
        module = inspect.getmodule(type(scheduler))
        patch.setattr(module, "randn_tensor", lambda *_, noise=noise, **__: noise, raising=False)
        scaled = scheduler.scale_model_input(x, timestep) if hasattr(scheduler, "scale_model_input") else x
        output = model(scaled, timestep, settings)
        eta = {"eta": settings.eta} if isinstance(settings, DDIM) else {}
        result = scheduler.step(output, timestep, x, **eta)
        clean = getattr(result, "pred_original_sample", None)
        steps.append(Recorded(x, output, noise, result.prev_sample, clean))
        x = result.prev_sample
    return steps


def run(sampler: DiffusionSampler, settings: SamplerSettings) -> Tensor:
    noises, clean = make_noises(len(sampler)), None
    x = noises[-1] * sampler.init_noise_sigma
    for index, noise in enumerate(noises[:-1]):
        output = model(sampler.model_input(x, index), sampler.timesteps[index], settings)
        x, clean = sampler.step(output, index, x, noise if sampler.needs_noise[index] else None, clean)
    return x


def difference(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> float:
    """Return the largest difference, relative to the largest value of the operands, at least 1."""
    scale = max(tensor.abs().max().item() for tensor in (theirs, *inputs, torch.ones(1)))
    return (ours - theirs).abs().max().item() / scale


@cases
@pytest.mark.parametrize("num_steps", [1, 7, 20, 50])
def test_steps_equal_diffusers(
    settings: SamplerSettings, num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = run_diffusers(settings, num_steps, monkeypatch)
    sampler, previous = settings.sampler(num_steps), None
    assert len(sampler) == len(reference)
    for index, (x, output, noise, expected, clean) in enumerate(reference):
        step = sampler.step(output, index, x, noise if sampler.needs_noise[index] else None, previous)
        assert difference(step.prev_sample, expected, x) < 1e-6
        assert clean is None or difference(step.pred_original_sample, clean, x) < 1e-6
        previous = step.pred_original_sample
    # at a zero SNR, diffusers' Euler subtracts values around 4096 in float32
    imprecise = isinstance(settings, Euler | EulerAncestral) and settings.rescale_betas_zero_snr
    assert difference(run(sampler, settings), reference[-1].result) < (5e-4 if imprecise else 2e-6)


OTHER: dict[str, Any] = {
    "num_train_timesteps": 500,
    "beta_start": 0.002,
    "beta_end": 0.015,
    "beta_schedule": "linear",
    "rescale_betas_zero_snr": True,
    "prediction_type": "v_prediction",
    "timestep_spacing": "trailing",
    "steps_offset": 3,
    "clip_sample": True,
    "clip_sample_range": 0.5,
    "variance_type": "fixed_large",
    "set_alpha_to_one": False,
    "eta": 0.5,
    "use_karras_sigmas": True,
    "final_sigmas_type": "sigma_min",
    "lower_order_final": False,
    "euler_at_final": True,
    "shift": 2.0,
}


@pytest.mark.parametrize("row", SAMPLERS.values(), ids=SAMPLERS)
def test_comparison_notices_every_wrong_setting(
    row: type[SamplerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    basis = {**SD, "timestep_spacing": "leading"}
    for name in field_types(row):
        first = {  # settings under which the field has an effect
            "clip_sample_range": {"clip_sample": True},
            "lower_order_final": {"final_sigmas_type": "sigma_min"},
            "euler_at_final": {"final_sigmas_type": "sigma_min", "lower_order_final": False},
        }.get(name, {"clip_sample": False})
        options = {key: value for key, value in {**basis, **first}.items() if key in field_types(row)}
        settings = row(**options)
        expected = run_diffusers(settings, 12, monkeypatch)[-1].result
        assert difference(run(settings.sampler(12), settings), expected) < 2e-6
        wrong = replace(settings, **{name: OTHER[name]})
        assert difference(run(wrong.sampler(12), wrong), expected) > 1e-4, name


@pytest.mark.parametrize("column", range(8), ids=StepWeights._fields)
def test_comparison_notices_every_wrong_weight(column: int, monkeypatch: pytest.MonkeyPatch) -> None:
    noticed = []
    for settings in (
        DDPM(),
        DDIM(clip_sample=False, eta=0.5),
        DPMSolverMultistep(prediction_type="v_prediction"),
    ):
        sampler = settings.sampler(12)
        expected = run_diffusers(settings, 12, monkeypatch)[-1].result
        weights = sampler.weights.clone()
        weights[:, column] *= 1.001
        noticed.append(difference(run(replace(sampler, weights=weights), settings), expected) > 1e-5)
    assert any(noticed)


@cases
def test_noisy_images_equal_diffusers(settings: SamplerSettings) -> None:
    config = write_scheduler_config(settings)
    scheduler = getattr(diffusers, config["_class_name"]).from_config(config)
    scheduler.set_timesteps(20)
    image, noise = make_noises(1)
    sampler = settings.sampler(20)
    for index in (0, 7, 19):
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(index)
        add_noise = getattr(scheduler, "add_noise", None) or scheduler.scale_noise
        timestep = scheduler.timesteps[index : index + 1]
        arguments = (
            (image, timestep, noise) if add_noise.__name__ == "scale_noise" else (image, noise, timestep)
        )
        assert difference(sampler.add_noise(image, noise, index), add_noise(*arguments)) < 1e-6
    assert torch.equal(sampler.add_noise(image, noise, 20), image)


def ends_clean(settings: SamplerSettings) -> bool:
    last = {"final_sigmas_type": "zero", "set_alpha_to_one": True}
    return all(getattr(settings, name, value) == value for name, value in last.items())


@pytest.mark.parametrize("settings", filter(ends_clean, CASES), ids=label)
def test_perfect_model_reaches_the_clean_sample(settings: SamplerSettings) -> None:
    clean = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0)) * 1.6 - 0.8
    for num_steps in (1, 12):
        sampler, previous = settings.sampler(num_steps), None
        noises = make_noises(num_steps).double()
        x = sampler.add_noise(clean.double(), noises[-1], 0)
        for index, noise in enumerate(noises[:-1]):
            w = StepWeights(*sampler.weights[index].double())
            output = (clean * w.predict_divisor - w.predict_x * x) / w.predict_output
            output = torch.cat([output, -torch.ones_like(output)], 1)
            has_noise = sampler.needs_noise[index] and index < num_steps - 1
            x, previous = sampler.step(output, index, x, noise if has_noise else None, previous)
            assert (previous - clean).abs().max() < 1e-5
        assert (x - clean).abs().max() < 1e-5


@cases
def test_scheduler_config_is_read_as_it_was_written(settings: SamplerSettings) -> None:
    config = write_scheduler_config(settings)
    restored = read_scheduler_config(json.loads(json.dumps(config)))
    assert restored == (replace(settings, eta=0.0) if isinstance(settings, DDIM) else settings)


NO_EFFECT = set(  # without options that are refused, and of a variance that DPM-Solver drops
    """dynamic_thresholding_ratio sample_max_value flow_shift time_shift_type base_shift max_shift
    base_image_seq_len max_image_seq_len""".split()
)


@pytest.mark.parametrize("row", SAMPLERS.values(), ids=SAMPLERS)
def test_every_option_of_diffusers_is_read_or_refused(row: type[SamplerSettings]) -> None:
    signature = inspect.signature(getattr(diffusers, row.config_class).__init__).parameters
    options = set(signature) - {"self"} - NO_EFFECT
    fixed = FIXED[row.config_class]
    known = field_types(row).keys() - {"eta"}
    assert options - {"variance_type"} == (known | fixed.keys()) - {"variance_type"}
    for name in known & options:
        assert signature[name].default == getattr(row(), name), name
    for name, value in fixed.items():
        assert signature[name].default == value, name
        with pytest.raises(UnsupportedError, match=name):
            read_scheduler_config({"_class_name": row.config_class, name: 5})


def test_published_scheduler_configs_are_read() -> None:
    stable_diffusion = {
        "_class_name": "PNDMScheduler",
        "_diffusers_version": "0.6.0",
        **SD,
        "num_train_timesteps": 1000,
        "set_alpha_to_one": False,
        "skip_prk_steps": True,
        "steps_offset": 1,
        "trained_betas": None,
        "clip_sample": False,
    }
    settings = read_scheduler_config(stable_diffusion)
    assert settings == DDIM(**SD, set_alpha_to_one=False, steps_offset=1, clip_sample=False)
    theirs = diffusers.PNDMScheduler.from_config(stable_diffusion)
    theirs.set_timesteps(20)
    assert settings.sampler(20).timesteps.tolist() == sorted(set(theirs.timesteps.tolist()), reverse=True)
    nulls = {"_class_name": "EulerDiscreteScheduler", "use_karras_sigmas": None, "use_beta_sigmas": None}
    assert read_scheduler_config(nulls) == Euler()
    with pytest.raises(UnknownNameError, match="HeunDiscreteScheduler"):
        read_scheduler_config({"_class_name": "HeunDiscreteScheduler"})
    with pytest.raises(InvalidValueError, match="variance_type"):
        read_scheduler_config({"_class_name": "DDPMScheduler", "variance_type": "learned"})


@pytest.mark.parametrize("num_steps", [0, 1001, 2.5, True])
@pytest.mark.parametrize("row", SAMPLERS.values(), ids=SAMPLERS)
def test_invalid_number_of_steps_is_refused(row: type[SamplerSettings], num_steps: Any) -> None:
    with pytest.raises(InvalidValueError, match="num_inference_steps"):
        row().sampler(num_steps)


@pytest.mark.parametrize(
    "settings",
    [DDIM(steps_offset=1), Euler(timestep_spacing="leading", steps_offset=1), DPMSolverMultistep()],
)
def test_steps_that_leave_the_training_timesteps_are_refused(settings: SamplerSettings) -> None:
    with pytest.raises(InvalidValueError, match="num_inference_steps"):
        settings.sampler(1000)


@pytest.mark.parametrize("row", SAMPLERS.values(), ids=SAMPLERS)
def test_sampler_does_not_depend_on_the_default_device(row: type[SamplerSettings]) -> None:
    with torch.device("meta"):
        weights = row().sampler(7).weights
    assert torch.equal(weights, row().sampler(7).weights)


def test_learned_variance_must_be_in_the_output() -> None:
    sampler = DDPM(variance_type="learned_range").sampler(4)
    x = torch.zeros(SHAPE)
    with pytest.raises(ShapeError, match="twice the channels"):
        sampler.step(x, 0, x, x)

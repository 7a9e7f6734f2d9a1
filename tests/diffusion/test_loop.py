"""The denoising loop: batches, guidance, images and masks, errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import glassformer
from glassformer.core.inputs import LatentInputs
from glassformer.diffusion import (
    DDIM,
    DDPM,
    DiffusionSampler,
    DPMSolverMultistep,
    Euler,
    EulerAncestral,
    FlowMatchEuler,
    ImageNoise,
    SamplerSettings,
    SamplerStep,
    denoise,
    write_scheduler_config,
)
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, NonFiniteError

SHAPE = (4, 6, 6)
ROWS = [
    DDPM(),
    DDPM(variance_type="learned_range"),
    DDIM(eta=0.5),
    Euler(use_karras_sigmas=True),
    EulerAncestral(timestep_spacing="leading"),
    DPMSolverMultistep(),
    FlowMatchEuler(shift=3.0),
]


def name(value: Any) -> str:
    return "learned" if getattr(value, "variance_type", "") == "learned_range" else type(value).__name__


samplers = pytest.mark.parametrize("sampler", [row.sampler(12) for row in ROWS], ids=map(name, ROWS))


def model(inputs: LatentInputs) -> Tensor:
    """A model that depends on every input; its second half of channels is a variance."""
    assert inputs.labels is not None
    time = torch.cos(inputs.timesteps.float() / 300)
    output = torch.tanh(inputs.latents + inputs.labels.view(-1, 1, 1, 1)) + 0.3 * time
    return torch.cat([output, output.sin()], 1)


def labels(*values: float) -> dict[str, Tensor]:
    return {"labels": torch.tensor(values)}


def image(*seeds: int) -> Tensor:
    return ImageNoise(seeds, SHAPE).draw().clamp(-0.8, 0.8)


@samplers
@pytest.mark.parametrize("options", [{}, {"guidance_scale": 3.0}, {"strength": 0.5}, {"mask": True}])
def test_image_of_a_seed_is_the_same_alone_and_in_a_batch(
    sampler: DiffusionSampler, options: dict[str, Any]
) -> None:
    def draw(seeds: list[int], values: list[float]) -> Tensor:
        more = dict(options)
        if "mask" in options:
            more["mask"] = (torch.arange(6) < 3).float().expand(len(seeds), 1, 6, 6)
        if "mask" in options or "strength" in options:
            more["image"] = image(*seeds)
        negative = labels(*[0.0] * len(seeds))
        return denoise(model, sampler, ImageNoise(seeds, SHAPE), labels(*values), negative=negative, **more)

    batch = draw([7, 8, 9], [0.1, 0.5, -0.4])
    assert torch.equal(batch[1:2], draw([8], [0.5]))
    assert not torch.equal(batch[:1], draw([8], [0.5]))


@samplers
def test_guidance_is_an_extrapolation_of_the_prediction_only(sampler: DiffusionSampler) -> None:
    def run(scale: float, **options: Any) -> Tensor:
        noise = ImageNoise([1, 2], SHAPE)
        return denoise(model, sampler, noise, labels(0.5, 1.0), guidance_scale=scale, **options)

    negative = labels(0.0, -0.2)
    assert torch.equal(run(1.0, negative=negative), run(1.0))

    def by_hand(inputs: LatentInputs) -> Tensor:
        base, target = model(replace(inputs, **negative)), model(inputs)
        return torch.cat([base[:, :4] + 3.0 * (target - base)[:, :4], target[:, 4:]], 1)

    expected = denoise(by_hand, sampler, ImageNoise([1, 2], SHAPE), labels(0.5, 1.0))
    assert torch.equal(run(3.0, negative=negative), expected)
    assert not torch.allclose(run(3.0, negative=negative), run(1.0))


def test_both_rows_of_guidance_are_in_one_batch() -> None:
    sizes = []

    def counted(inputs: LatentInputs) -> Tensor:
        sizes.append((len(inputs.latents), len(inputs.labels)))
        return model(inputs)

    noise, sampler = ImageNoise([1, 2], SHAPE), DDIM().sampler(3)
    denoise(counted, sampler, noise, labels(0, 1), negative=labels(0, 0), guidance_scale=2.0)
    assert sizes == [(4, 4)] * 3


@pytest.mark.parametrize("num_steps", [1, 7, 50, 100])
def test_first_step_of_a_strength_is_that_of_diffusers(num_steps: int) -> None:
    diffusers = pytest.importorskip("diffusers", reason="the reference: pip install diffusers")
    pipeline = SimpleNamespace(scheduler=diffusers.DDIMScheduler())
    pipeline.scheduler.set_timesteps(num_steps)
    sampler = DDIM().sampler(num_steps)
    for percent in range(1, 101):
        get_timesteps = diffusers.StableDiffusionImg2ImgPipeline.get_timesteps
        timesteps, count = get_timesteps(pipeline, num_steps, percent / 100, "cpu")
        if count:
            assert torch.equal(sampler.timesteps[sampler.start(percent / 100) :], timesteps)


@samplers
def test_strength_1_is_a_start_from_noise(sampler: DiffusionSampler) -> None:
    def run(**options: Any) -> Tensor:
        return denoise(model, sampler, ImageNoise([3], SHAPE), labels(0.3), **options)

    assert torch.equal(run(image=image(5), strength=1.0), run())
    assert not torch.allclose(run(image=image(5), strength=0.9), run())


@samplers
def test_lower_strength_stays_closer_to_the_image(sampler: DiffusionSampler) -> None:
    start, indices = image(5), []

    def perfect(inputs: LatentInputs) -> Tensor:  # predicts the image
        index = int((sampler.timesteps == inputs.timesteps).nonzero()[0])
        indices.append(index)
        w = sampler.weights[index]
        unscaled = inputs.latents * sampler.scale[index]
        output = (start * w[2] - w[0] * unscaled) / w[1]
        return torch.cat([output, torch.full_like(output, -1)], 1)

    result = denoise(perfect, sampler, ImageNoise([3], SHAPE), image=start, strength=0.25)
    assert indices == [9, 10, 11]
    assert (result - start).abs().max() < 1e-4


@samplers
def test_mask_keeps_the_image_where_it_is_0(sampler: DiffusionSampler) -> None:
    start, mask = image(5, 6), (torch.arange(6) < 3).float().expand(2, 1, 6, 6)
    levels: list[float] = []

    def watch(index: int, step: SamplerStep) -> None:
        original = sampler.add_noise(start, ImageNoise([3, 4], SHAPE).draw(), index + 1)
        levels.append(((step.prev_sample - original) * (1 - mask)).abs().max().item())

    noise = ImageNoise([3, 4], SHAPE)
    result = denoise(model, sampler, noise, labels(0, 1), image=start, mask=mask, callback=watch)
    assert max(levels) == 0
    assert torch.equal(result * (1 - mask), start * (1 - mask))
    assert (result - start)[..., :3].abs().min() > 0


def test_inpainting_equals_stable_diffusions() -> None:
    """The loop of `StableDiffusionInpaintPipeline` for a UNet of 4 channels, written out."""
    diffusers = pytest.importorskip("diffusers", reason="the reference: pip install diffusers")
    scheduler = diffusers.EulerDiscreteScheduler()
    scheduler.set_timesteps(10)
    start, mask = image(5), (torch.arange(6) < 3).float().expand(1, 1, 6, 6)
    initial = ImageNoise([3], SHAPE).draw()
    timesteps = scheduler.timesteps[4:]
    scheduler.set_begin_index(4)
    x = scheduler.add_noise(start, initial, timesteps[:1])
    for index, timestep in enumerate(timesteps):
        inputs = LatentInputs(scheduler.scale_model_input(x, timestep), timestep, torch.tensor([0.3]))
        output = model(inputs)[:, :4]
        x = scheduler.step(output, timestep, x).prev_sample
        known = start
        if index < len(timesteps) - 1:
            known = scheduler.add_noise(start, initial, timesteps[index + 1 : index + 2])
        x = (1 - mask) * known + mask * x
    options = {"image": start, "mask": mask, "strength": 0.6}
    ours = denoise(model, Euler().sampler(10), ImageNoise([3], SHAPE), labels(0.3), **options)
    assert (ours - x).abs().max() < 1e-6 * x.abs().max().clamp(min=1)


def test_callback_sees_every_step_and_ends_the_loop() -> None:
    seen: list[int] = []

    def stop(index: int, step: SamplerStep) -> None:
        assert step.prev_sample.shape == step.pred_original_sample.shape == (1, *SHAPE)
        seen.append(index)
        if index == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        denoise(model, DDIM().sampler(9), ImageNoise([1], SHAPE), labels(0), callback=stop)
    assert seen == [0, 1, 2, 3, 4]


def test_noise_of_an_image_is_that_of_its_generator() -> None:
    """The order of draws is that of diffusers with a list of CPU generators."""
    noise = ImageNoise([4, 5], SHAPE)
    draws = [noise.draw() for _ in range(3)]
    generator = torch.Generator().manual_seed(5)
    assert all(torch.equal(draw[1:], torch.randn(1, *SHAPE, generator=generator)) for draw in draws)


def invalid() -> Iterator[Any]:
    half = torch.ones(1, 1, 6, 6)
    yield {"mask": half}, MissingValueError, "image is required for a mask"
    yield {"guidance_scale": 2.0}, MissingValueError, "negative is required"
    yield {"guidance_scale": 2.0, "negative": {"other": half}}, ConflictError, "different fields"
    for strength in (0.0, 1.5, 0.01, float("nan")):
        yield {"image": image(1), "strength": strength}, InvalidValueError, "strength"


@pytest.mark.parametrize(("options", "error", "message"), invalid())
def test_invalid_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        denoise(model, DDIM().sampler(9), ImageNoise([1], SHAPE), labels(0), **options)


def test_nan_on_the_way_is_one_error_at_the_end() -> None:
    calls = []

    def broken(inputs: LatentInputs) -> Tensor:
        calls.append(inputs.timesteps)
        return inputs.latents * (float("nan") if len(calls) == 3 else 1.0)

    with pytest.raises(NonFiniteError, match="denoised sample"):
        denoise(broken, DPMSolverMultistep().sampler(9), ImageNoise([1], SHAPE))
    assert len(calls) == 9


class Reads(TorchDispatchMode):
    """Counts the values that are read from tensors; on a GPU, each read waits for the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@samplers
def test_only_the_end_of_the_loop_waits_for_the_device(sampler: DiffusionSampler) -> None:
    counts: list[int] = []
    with Reads() as reads:
        denoise(
            model,
            sampler,
            ImageNoise([1], SHAPE),
            labels(0.5),
            negative=labels(0.0),
            guidance_scale=2.0,
            image=image(5),
            strength=0.8,
            mask=torch.ones(1, 1, 6, 6),
            callback=lambda *_: counts.append(reads.count),
        )
    assert len(counts) == 9 and max(counts) == 0
    assert reads.count == 1  # is the result finite?


@pytest.mark.parametrize("settings", [DDIM(), DPMSolverMultistep(use_karras_sigmas=True)], ids=name)
@pytest.mark.parametrize("guidance_scale", [1.0, 4.0])
def test_class_to_image_equals_the_pipeline_of_diffusers(
    settings: SamplerSettings, guidance_scale: float, tmp_path: Path
) -> None:
    diffusers = pytest.importorskip("diffusers", reason="the reference: pip install diffusers")
    torch.manual_seed(0)
    size = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "sample_size": 6}
    theirs = diffusers.DiTTransformer2DModel(**size, out_channels=8).eval()
    for name, value in theirs.named_parameters():
        if ".norm1.emb." not in name:  # every layer has a copy of the embeddings
            torch.nn.init.normal_(value, std=0.3 if value.dim() == 1 else value[0].numel() ** -0.5)
    for block in theirs.transformer_blocks:
        block.norm1.emb = theirs.transformer_blocks[0].norm1.emb
    theirs.save_config(tmp_path)
    weights = {name: value.clone() for name, value in theirs.state_dict().items()}
    save_file(weights, tmp_path / "diffusion_pytorch_model.safetensors")
    config = write_scheduler_config(settings)
    scheduler = getattr(diffusers, config["_class_name"]).from_config(config)
    vae = diffusers.AutoencoderKL(block_out_channels=[8], norm_num_groups=2, scaling_factor=1.0)
    pipeline = diffusers.DiTPipeline(theirs, vae, scheduler)
    pipeline.set_progress_bar_config(disable=True)
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    decoded: list[Tensor] = []
    vae.decode = lambda latents: decoded.append(latents) or SimpleNamespace(sample=latents)
    options = {"guidance_scale": guidance_scale, "num_inference_steps": 8, "generator": generators}
    pipeline([7, 207], output_type="pt", **options)

    ours = glassformer.load(tmp_path).model
    condition = {"labels": torch.tensor([7, 207])}
    negative = {"labels": torch.tensor([1000, 1000])}
    noise = ImageNoise([3, 4], (4, 6, 6))
    result = denoise(
        ours, settings.sampler(8), noise, condition, negative=negative, guidance_scale=guidance_scale
    )
    assert (result - decoded[0]).abs().max() < 1e-5 * decoded[0].abs().max()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@samplers
def test_gpu_draws_the_same_image_without_a_synchronization(sampler: DiffusionSampler) -> None:
    condition, negative = labels(0.5, 1.0), labels(0, 0)

    def run(device: str, **options: Any) -> Tensor:
        both = ({key: value.to(device) for key, value in rows.items()} for rows in (condition, negative))
        noise = ImageNoise([1, 2], SHAPE, device)
        given, without = both
        return denoise(model, sampler, noise, given, negative=without, guidance_scale=2.0, **options).cpu()

    def strict(index: int, step: SamplerStep) -> None:  # from the end of the first step to that of the last
        torch.cuda.set_sync_debug_mode("error" if index < len(sampler) - 1 else "default")

    try:
        result = run("cuda", callback=strict)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(result, run("cpu"), rtol=1e-4, atol=1e-4)

"""The denoising loop: from noise, or from an image, to samples.

The loop never waits for the device: timesteps and weights are on it before the first step, and the noise is
drawn on the CPU, ahead of the steps that the device still works on.

B images, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from glassformer.core.inputs import LatentInputs
from glassformer.diffusion.samplers import DiffusionSampler, SamplerStep
from glassformer.errors import ConflictError, MissingValueError, NonFiniteError

Condition = Mapping[str, Tensor]  # fields of `LatentInputs`, each with B rows
EMPTY: Condition = MappingProxyType({})
Denoiser = Callable[[LatentInputs], Tensor]  # returns (B, C, ...), or (B, 2C, ...) with a variance


class ImageNoise:
    """Noise from one generator per image on the CPU.

    A seed therefore gives an image the same noise alone, in a batch and on every device.

    >>> batch = ImageNoise([1, 2], (4, 8, 8)).draw()
    >>> torch.equal(batch[1:], ImageNoise([2], (4, 8, 8)).draw())
    True
    """

    def __init__(
        self, seeds: Sequence[int], shape: Sequence[int], device: torch.device | str = "cpu"
    ) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.shape = tuple(shape)
        self.device = torch.device(device)

    def draw(self) -> Tensor:
        """Return the next noise of every image, (B, C, ...)."""
        rows = [torch.randn(self.shape, generator=generator) for generator in self.generators]
        noise = torch.stack(rows)
        if self.device.type == "cuda":  # copies from pinned memory do not wait for the device
            noise = noise.pin_memory()
        return noise.to(self.device, non_blocking=True)


class DenoisingOptions(TypedDict, total=False):
    """Options of `denoise` besides the condition."""

    negative: Condition | None
    guidance_scale: float
    image: Tensor | None
    strength: float
    mask: Tensor | None


def denoise(
    model: Denoiser,
    sampler: DiffusionSampler,
    noise: ImageNoise,
    condition: Condition = EMPTY,
    *,
    callback: Callable[[int, SamplerStep], Any] | None = None,
    **options: Unpack[DenoisingOptions],
) -> Tensor:
    """Return clean samples, (B, C, ...).

    condition: fields of `LatentInputs`, e.g. `labels`. negative: the same fields without a condition.
    image: clean samples to start from; at strength 1, only what the mask keeps remains of them.
    mask: (B, 1, ...), 1 where the image is replaced, 0 where it is kept.
    callback: called with the index and the result of each step; an exception that it raises ends the loop.

    >>> import glassformer
    >>> from glassformer.diffusion import DDIM
    >>> denoiser, noise = glassformer.tiny("dit"), ImageNoise([1, 2], (4, 8, 8))
    >>> denoise(denoiser, DDIM().sampler(4), noise, {"labels": torch.tensor([3, 7])}).shape
    torch.Size([2, 4, 8, 8])
    """
    for index, step in denoising_steps(model, sampler, noise, condition, **options):
        if callback is not None:
            callback(index, step)
    return step.prev_sample  # a sampler has at least one step


@torch.no_grad()
def denoising_steps(
    model: Denoiser,
    sampler: DiffusionSampler,
    noise: ImageNoise,
    condition: Condition = EMPTY,
    *,
    negative: Condition | None = None,
    guidance_scale: float = 1.0,
    image: Tensor | None = None,
    strength: float = 1.0,
    mask: Tensor | None = None,
) -> Iterator[tuple[int, SamplerStep]]:
    """Yield the index and the result of each step of `denoise`; a step runs when it is asked for."""
    if mask is not None and image is None:
        raise MissingValueError("image", "for a mask")
    predict = _guide(model, condition, negative, guidance_scale)
    first = sampler.start(strength) if image is not None else 0
    sampler = sampler.to(noise.device)
    initial = noise.draw()
    if image is None or strength == 1:
        x = initial * sampler.init_noise_sigma
    else:
        x = sampler.add_noise(image, initial, first)
    clean = None
    for index in range(first, len(sampler)):
        output = predict(sampler.model_input(x, index), sampler.timesteps[index])
        new_noise = noise.draw() if sampler.needs_noise[index] else None
        x, clean = sampler.step(output, index, x, new_noise, clean)
        if mask is not None and image is not None:
            x = mask * x + (1 - mask) * sampler.add_noise(image, initial, index + 1)
        yield index, SamplerStep(x, clean)
    if not x.isfinite().all():
        raise NonFiniteError("the denoised sample", "try float32 or a smaller guidance_scale")


def _guide(
    model: Denoiser, condition: Condition, negative: Condition | None, scale: float
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the model with classifier-free guidance: both predictions come from one batch of 2B rows."""
    if scale == 1:
        return lambda x, timestep: model(LatentInputs(x, timestep, **condition))
    if negative is None:
        raise MissingValueError("negative", "for guidance")
    if negative.keys() != condition.keys():
        raise ConflictError(("condition", "negative"), "they have different fields")
    both = {name: torch.cat([negative[name], value]) for name, value in condition.items()}

    def predict(x: Tensor, timestep: Tensor) -> Tensor:
        output = model(LatentInputs(torch.cat([x, x]), timestep, **both))
        without, with_condition = output.chunk(2)
        # a variance, which follows the C channels, is not extrapolated
        base, target = (rows[:, : x.shape[1]] for rows in (without, with_condition))
        guided = base + scale * (target - base)
        return torch.cat([guided, with_condition[:, x.shape[1] :]], 1)

    return predict

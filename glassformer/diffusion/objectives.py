"""What a denoiser learns: how noise is mixed with clean samples, and what the model predicts from them.

Flow matching mixes x = (1 - t) clean + t noise and predicts noise - clean; times near one half are the most
frequent. Models with a schedule of betas predict the noise, the clean sample or the velocity at one of T
timesteps, all equally frequent.

B images, C channels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from glassformer.diffusion.samplers import BetaSettings, FlowMatchEuler, SamplerSettings
from glassformer.diffusion.schedules import shift_sigmas
from glassformer.errors import UnsupportedError


class NoiseLevel(NamedTuple):
    """How much signal and noise each sample has (B, 1, 1, 1), and the timesteps that the model sees (B,)."""

    timesteps: Tensor
    signal: Tensor
    sigma: Tensor


class DenoisingObjective(nn.Module):
    """The training objective that fits the scheduler of a model. It has no parameters.

    >>> objective, clean = DenoisingObjective(FlowMatchEuler()), torch.ones(2, 1, 8, 8)
    >>> level = objective.level(torch.tensor([0.0, 1.0]))
    >>> objective.mix(clean, torch.zeros_like(clean), level).mean((1, 2, 3))
    tensor([1., 0.])
    """

    alphas_cumprod: Tensor | None

    def __init__(self, settings: SamplerSettings) -> None:
        super().__init__()
        self.num_train_timesteps = settings.num_train_timesteps
        self.prediction_type, self.shift, alphas = "flow", 1.0, None
        if isinstance(settings, FlowMatchEuler):
            self.shift = settings.shift
        elif isinstance(settings, BetaSettings):
            self.prediction_type, alphas = settings.prediction_type, settings.alphas_cumprod()
        else:
            raise UnsupportedError("training", f"the scheduler {settings.config_class}")
        self.register_buffer("alphas_cumprod", alphas, persistent=False)

    def random_times(self, count: int, device: torch.device) -> Tensor:
        """Return times (B,) from 0, clean, to 1, noise."""
        if self.alphas_cumprod is not None:
            return torch.rand(count, device=device)
        times: Tensor = shift_sigmas(torch.randn(count, device=device).sigmoid(), self.shift)
        return times

    def level(self, times: Tensor) -> NoiseLevel:
        """Return the noise level at times (B,)."""
        timesteps = times * self.num_train_timesteps
        if self.alphas_cumprod is None:
            return NoiseLevel(timesteps, _per_image(1 - times), _per_image(times))
        timesteps = timesteps.long().clamp(max=self.num_train_timesteps - 1)
        alphas = self.alphas_cumprod[timesteps]
        return NoiseLevel(timesteps, _per_image(alphas.sqrt()), _per_image((1 - alphas).sqrt()))

    def mix(self, clean: Tensor, noise: Tensor, level: NoiseLevel) -> Tensor:
        """Return noisy samples (B, C, ...)."""
        return level.signal * clean + level.sigma * noise

    def target(self, clean: Tensor, noise: Tensor, level: NoiseLevel) -> Tensor:
        """Return what the model should predict (B, C, ...)."""
        targets = {"flow": noise - clean, "epsilon": noise, "sample": clean}
        if self.prediction_type == "v_prediction":
            return level.signal * noise - level.sigma * clean
        return targets[self.prediction_type]


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]

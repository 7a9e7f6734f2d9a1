"""Noise schedules: how much signal and noise a sample contains at each timestep.

They are computed on the CPU with the precision of diffusers (betas and their products in float32,
interpolation in float64), so that a model sees the noise levels it was trained with, on every device.

T training timesteps, N denoising steps.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BetaSchedule = Literal["linear", "scaled_linear", "squaredcos_cap_v2"]
TimestepSpacing = Literal["leading", "trailing", "linspace"]
FinalSigma = Literal["zero", "sigma_min"]
Floats = NDArray[Any]


def make_betas(
    schedule: BetaSchedule, num_train_timesteps: int, beta_start: float, beta_end: float
) -> Tensor:
    """Return the variance of the noise that each training timestep adds, (T,).

    >>> make_betas("linear", 3, 0.1, 0.3)
    tensor([0.1000, 0.2000, 0.3000])
    """
    if schedule == "linear":
        return torch.linspace(beta_start, beta_end, num_train_timesteps, dtype=torch.float32)
    if schedule == "scaled_linear":
        return torch.linspace(beta_start**0.5, beta_end**0.5, num_train_timesteps, dtype=torch.float32) ** 2
    times = (t / num_train_timesteps for t in range(num_train_timesteps + 1))
    signals = [math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2 for t in times]
    betas = [min(1 - later / earlier, 0.999) for earlier, later in pairwise(signals)]
    return torch.tensor(betas, dtype=torch.float32)


def rescale_zero_terminal_snr(betas: Tensor) -> Tensor:
    """Rescale betas (T,) so that the last timestep is pure noise (Lin et al., 2023, algorithm 1)."""
    signal = (1 - betas).cumprod(0).sqrt()
    signal = (signal - signal[-1]) * (signal[0] / (signal[0] - signal[-1]))
    alphas_cumprod = signal**2
    return 1 - torch.cat([alphas_cumprod[:1], alphas_cumprod[1:] / alphas_cumprod[:-1]])


def space_timesteps(
    spacing: TimestepSpacing, num_train_timesteps: int, num_steps: int, steps_offset: int, *, extra: int = 0
) -> Floats:
    """Return N decreasing timesteps; those of `linspace` are not rounded.

    extra: number of further timesteps at the end, which are counted for the distances and left out.

    >>> space_timesteps("leading", 1000, 4, 1), space_timesteps("trailing", 1000, 4, 0)
    (array([751., 501., 251.,   1.]), array([999., 749., 499., 249.]))
    """
    total = num_steps + extra
    if spacing == "linspace":
        timesteps: Floats = np.linspace(0, num_train_timesteps - 1, total)[::-1]
    elif spacing == "leading":
        timesteps = np.arange(total)[::-1] * float(num_train_timesteps // total) + steps_offset
    else:
        timesteps = np.arange(num_train_timesteps, 0, -num_train_timesteps / num_steps).round() - 1
    return timesteps[:num_steps]


def karras_sigmas(num_steps: int, sigma_min: float, sigma_max: float, rho: float = 7.0) -> Floats:
    """Return N decreasing noise levels, dense at the end (Karras et al., 2022)."""
    ramp = np.linspace(0, 1, num_steps)
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    sigmas: Floats = (high + ramp * (low - high)) ** rho
    return sigmas


def timesteps_of_sigmas(sigmas: Floats, train_sigmas: NDArray[np.float32]) -> Floats:
    """Interpolate the timesteps of noise levels (N,) in the logarithm of those of training (T,)."""
    positions: Floats = np.interp(np.log(sigmas), np.log(train_sigmas), np.arange(len(train_sigmas)))
    return positions


def append_final(sigmas: Floats, train_sigmas: NDArray[np.float32], final: FinalSigma) -> Tensor:
    """Append the level after the last step to noise levels (N,): (N + 1,)."""
    last = 0.0 if final == "zero" else float(train_sigmas[0])
    return torch.from_numpy(np.append(sigmas, last).astype(np.float32))


def shift_sigmas(sigmas: Any, shift: float) -> Any:
    """Move the noise levels of flow matching, from 0 to 1, towards more noise.

    >>> shift_sigmas(0.5, 3.0)
    0.75
    """
    return shift * sigmas / (1 + (shift - 1) * sigmas)

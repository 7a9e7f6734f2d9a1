"""Samplers: how a denoising step computes the next sample from a model's output.

Every sampler here is linear: the next sample is a weighted sum of the sample, the predicted clean sample,
the clean sample predicted one step before, and new noise. A sampler is therefore a table of weights, one row
per step, computed once on the CPU; `DiffusionSampler.step` is the same for all of them. It holds no model,
no generator and no state, and never waits for the device.

A sample of level i is x = signal[i] * clean + sigma[i] * noise. Variance-preserving samplers keep
signal^2 + sigma^2 = 1; Euler keeps signal = 1, and scales what the model sees; flow matching keeps
signal + sigma = 1.

B images, C channels, N denoising steps, T training timesteps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.diffusion.schedules import (
    BetaSchedule,
    FinalSigma,
    Floats,
    TimestepSpacing,
    append_final,
    karras_sigmas,
    make_betas,
    rescale_zero_terminal_snr,
    shift_sigmas,
    space_timesteps,
    timesteps_of_sigmas,
)
from glassformer.errors import InvalidValueError, ShapeError
from glassformer.schema import describe_type, field_types, matches_type, union_members

PredictionType = Literal["epsilon", "v_prediction", "sample"]
Weight = Tensor | float


class SamplerStep(NamedTuple):
    """The result of a step: the next sample, and the clean sample that the model predicts."""

    prev_sample: Tensor  # (B, C, ...)
    pred_original_sample: Tensor  # (B, C, ...)


class StepWeights(NamedTuple):
    """The weights of the steps, each (N,); zero where a sampler does not use a term.

    predicted = (predict_x * x + predict_output * model_output) / predict_divisor, then clipped to `clean`
    next = x * x + clean * clean + output * model_output + change * (clean - previous clean) + noise * noise
    """

    predict_x: Tensor
    predict_output: Tensor
    predict_divisor: Tensor
    x: Tensor
    clean: Tensor
    output: Tensor
    change: Tensor
    noise: Tensor


@dataclass(frozen=True, eq=False)
class DiffusionSampler:
    """The steps of one sampler over N timesteps."""

    timesteps: Tensor  # (N,), what the model is given
    signal: Tensor  # (N + 1,); the last level is the clean sample
    sigma: Tensor  # (N + 1,)
    scale: Tensor  # (N,), divides what the model is given
    weights: Tensor  # (N, 8), columns of `StepWeights`
    needs_noise: tuple[bool, ...]  # by step
    log_variances: Tensor | None = None  # (N, 2), the bounds of a variance that the model predicts
    init_noise_sigma: float = 1.0  # standard deviation of the first sample
    clip_sample_range: float | None = None

    def __len__(self) -> int:
        return len(self.timesteps)

    def to(self, device: torch.device | str) -> DiffusionSampler:
        """Return the sampler with its tensors on a device."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        moved: dict[str, Any] = {k: v.to(device) for k, v in values if isinstance(v, Tensor)}
        return replace(self, **moved)

    def start(self, strength: float) -> int:
        """Return the index of the first step from an image. strength: share of the steps that are taken."""
        index = len(self) - min(int(len(self) * strength), len(self)) if 0 < strength <= 1 else len(self)
        if index == len(self):
            raise InvalidValueError(
                "strength", strength, f"above 0 and at most 1, and at least one of the {len(self)} steps"
            )
        return index

    def add_noise(self, clean: Tensor, noise: Tensor, index: int) -> Tensor:
        """Return a sample of level `index`, which is 0 for the first step and N for a clean sample."""
        return self.signal[index] * clean + self.sigma[index] * noise

    def model_input(self, x: Tensor, index: int) -> Tensor:
        """Scale a sample to what the model expects."""
        return x / self.scale[index]

    def step(
        self,
        model_output: Tensor,
        index: int,
        x: Tensor,
        noise: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> SamplerStep:
        """Take step `index`.

        model_output: (B, C, ...), or (B, 2C, ...) with the variance. noise: of the shape of x, if
        `needs_noise[index]`. previous: the clean sample that the step before predicted; None at the start.
        """
        output, variance = model_output.to(x.dtype).tensor_split([x.shape[1]], dim=1)
        w = StepWeights(*self.weights[index].unbind())
        predicted = (w.predict_x * x + w.predict_output * output) / w.predict_divisor
        limit = self.clip_sample_range
        clean = predicted if limit is None else predicted.clamp(-limit, limit)
        change = clean - (clean if previous is None else previous)
        result = w.x * x + w.clean * clean + w.output * output + w.change * change
        if noise is not None and self.log_variances is not None:
            if variance.shape != x.shape:
                raise ShapeError("the model's output", model_output.shape, "twice the channels of the sample")
            low, high = self.log_variances[index].unbind()
            fraction = (variance + 1) / 2
            noise = noise * torch.exp(0.5 * (fraction * high + (1 - fraction) * low))
        return SamplerStep(result if noise is None else result + w.noise * noise, clean)


def build_sampler(
    prediction_type: str,
    timesteps: Tensor,
    signal: Tensor,
    sigma: Tensor,
    *,
    x: Tensor,
    clean: Tensor,
    output: Weight = 0.0,
    change: Weight = 0.0,
    noise: Weight = 0.0,
    scale: Weight = 1.0,
    log_variances: Tensor | None = None,
    init_noise_sigma: float = 1.0,
    clip_sample_range: float | None = None,
) -> DiffusionSampler:
    """Build a sampler from the levels of its steps and from its weights, each (N,)."""
    predictions: dict[str, tuple[Weight, Weight, Weight]] = {  # of the clean sample
        "epsilon": (1.0, -sigma, signal),
        "v_prediction": (signal / scale**2, -sigma / scale, 1.0),
        "sample": (0.0, 1.0, 1.0),
        "flow": (1.0, -sigma, 1.0),
    }
    columns = (*predictions[prediction_type], x, clean, output, change, noise, scale)
    rows = torch.stack([torch.as_tensor(column).expand(len(timesteps)) for column in columns], 1)
    return DiffusionSampler(
        timesteps=timesteps,
        signal=torch.cat([signal, torch.ones(1)]),
        sigma=torch.cat([sigma, torch.zeros(1)]),
        scale=rows[:, -1],
        weights=rows[:, :-1],
        needs_noise=tuple((rows[:, -2] > 0).tolist()),
        log_variances=log_variances,
        init_noise_sigma=init_noise_sigma,
        clip_sample_range=clip_sample_range,
    )


# ---- the rows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SamplerSettings(ABC):
    """Base of samplers: the noise schedule of a model and the options of a sampler, named as in diffusers."""

    config_class: ClassVar[str]  # in scheduler_config.json

    num_train_timesteps: int = 1000

    def __post_init__(self) -> None:
        for name, hint in field_types(type(self)).items():
            value = getattr(self, name)
            if not any(matches_type(value, choice) for choice in union_members(hint)):
                raise InvalidValueError(name, value, describe_type(hint))
            if matches_type(value, float) and not 0 <= value <= 100_000:
                raise InvalidValueError(name, value, "a number from 0 to 100000")

    def sampler(self, num_inference_steps: int) -> DiffusionSampler:
        """Return the sampler of N steps."""
        limit = self.num_train_timesteps
        if not matches_type(num_inference_steps, int) or not 1 <= num_inference_steps <= limit:
            raise InvalidValueError(
                "num_inference_steps", num_inference_steps, f"an integer from 1 to {limit}"
            )
        with torch.device("cpu"):  # also if another device is the default
            sampler = self._sampler(num_inference_steps)
        levels = (sampler.sigma / sampler.signal)[:-1]
        if (levels.diff() >= 0).any():
            raise InvalidValueError("num_inference_steps", num_inference_steps, "fewer steps, all different")
        return sampler

    @abstractmethod
    def _sampler(self, num_steps: int) -> DiffusionSampler: ...


@dataclass(frozen=True, kw_only=True)
class BetaSettings(SamplerSettings):
    """Base of the samplers of models that are trained with betas."""

    terminal_alpha: ClassVar[float] = 0.0  # in place of a zero terminal SNR, if the sampler divides by it

    beta_start: float = 0.0001
    beta_end: float = 0.02
    beta_schedule: BetaSchedule = "linear"
    rescale_betas_zero_snr: bool = False
    prediction_type: PredictionType = "epsilon"
    timestep_spacing: TimestepSpacing = "leading"
    steps_offset: int = 0

    def alphas_cumprod(self) -> Tensor:
        """Return signal^2 of each training timestep, (T,)."""
        betas = make_betas(self.beta_schedule, self.num_train_timesteps, self.beta_start, self.beta_end)
        if not self.rescale_betas_zero_snr:
            return (1 - betas).cumprod(0)
        alphas = (1 - rescale_zero_terminal_snr(betas)).cumprod(0)
        alphas[-1] = max(self.terminal_alpha, alphas[-1].item())
        return alphas

    def _spaced(self, num_steps: int, extra: int = 0) -> Floats:
        count, offset = self.num_train_timesteps, self.steps_offset
        timesteps = space_timesteps(self.timestep_spacing, count, num_steps, offset, extra=extra)
        if not 0 <= timesteps[-1] <= timesteps[0] < count:
            expected = f"fewer steps, because steps_offset is {offset}"
            raise InvalidValueError("num_inference_steps", num_steps, expected)
        return timesteps


@dataclass(frozen=True, kw_only=True)
class DDPM(BetaSettings):
    """Ancestral sampling (Ho et al., 2020)."""

    config_class = "DDPMScheduler"

    clip_sample: bool = True
    clip_sample_range: float = 1.0
    variance_type: Literal["fixed_small", "fixed_large", "learned_range"] = "fixed_small"

    def _sampler(self, num_steps: int) -> DiffusionSampler:
        timesteps = torch.from_numpy(self._spaced(num_steps).round()).long()
        now = self.alphas_cumprod()[timesteps]
        later = torch.cat([now[1:], torch.ones(1)])
        alpha = now / later
        beta = 1 - alpha
        variance = ((1 - later) / (1 - now) * beta).clamp(min=1e-20)
        learned = self.variance_type == "learned_range"
        deviation = (beta if self.variance_type == "fixed_large" else variance) ** 0.5
        return build_sampler(
            self.prediction_type,
            timesteps,
            now**0.5,
            (1 - now) ** 0.5,
            x=alpha**0.5 * (1 - later) / (1 - now),
            clean=later**0.5 * beta / (1 - now),
            noise=(torch.ones(num_steps) if learned else deviation) * (timesteps > 0),
            log_variances=torch.stack([variance.log(), beta.log()], 1) if learned else None,
            clip_sample_range=self.clip_sample_range if self.clip_sample else None,
        )


@dataclass(frozen=True, kw_only=True)
class DDIM(BetaSettings):
    """Deterministic sampling for eta=0, ancestral for eta=1 (Song et al., 2021)."""

    config_class = "DDIMScheduler"

    clip_sample: bool = True
    clip_sample_range: float = 1.0
    set_alpha_to_one: bool = True
    eta: float = 0.0

    def _sampler(self, num_steps: int) -> DiffusionSampler:
        timesteps = torch.from_numpy(self._spaced(num_steps).round()).long()
        alphas = self.alphas_cumprod()
        now = alphas[timesteps]
        # as in diffusers, the next level is a fixed distance away, for every spacing
        targets = timesteps - self.num_train_timesteps // num_steps
        last = torch.tensor(1.0) if self.set_alpha_to_one else alphas[0]
        later = torch.where(targets >= 0, alphas[targets.clamp(min=0)], last)
        deviation = self.eta * ((1 - later) / (1 - now) * (1 - now / later)) ** 0.5
        direction = (1 - later - deviation**2) ** 0.5
        signal, sigma = now**0.5, (1 - now) ** 0.5
        predictions: dict[str, tuple[Weight, Weight]] = {  # of the noise, from x and the model's output
            "epsilon": (0.0, 1.0),
            "v_prediction": (sigma, signal),
            "sample": (1 / sigma, -signal / sigma),
        }
        noise_x, noise_output = predictions[self.prediction_type]
        return build_sampler(
            self.prediction_type,
            timesteps,
            signal,
            sigma,
            x=direction * noise_x,
            clean=later**0.5,
            output=direction * noise_output,
            noise=deviation,
            clip_sample_range=self.clip_sample_range if self.clip_sample else None,
        )


@dataclass(frozen=True, kw_only=True)
class SigmaSettings(BetaSettings):
    """Base of the samplers that step through sigma / signal, which may lie between training timesteps."""

    terminal_alpha = 2.0**-24
    timestep_spacing: TimestepSpacing = "linspace"

    def _train_sigmas(self) -> Floats:
        """Return sigma / signal of each training timestep, (T,)."""
        alphas = self.alphas_cumprod()
        return (((1 - alphas) / alphas) ** 0.5).numpy()

    def _euler(self, num_steps: int, karras: bool, final: FinalSigma, ancestral: bool) -> DiffusionSampler:
        train = self._train_sigmas()
        timesteps: Floats = self._spaced(num_steps).astype(np.float32)
        sigmas: Floats = np.interp(timesteps, np.arange(len(train)), train)
        if karras:
            sigmas = karras_sigmas(num_steps, sigmas[-1], sigmas[0])
            timesteps = timesteps_of_sigmas(sigmas, train)
        levels = append_final(sigmas, train, final)
        now, later = levels[:-1], levels[1:]
        noise = (later**2 * (now**2 - later**2) / now**2) ** 0.5 * ancestral
        rest = (later**2 - noise**2) ** 0.5 / now
        leading = self.timestep_spacing == "leading"
        return build_sampler(
            self.prediction_type,
            torch.from_numpy(timesteps).float(),
            torch.ones(num_steps),
            now,
            x=rest,
            clean=1 - rest,
            noise=noise,
            scale=(now**2 + 1) ** 0.5,
            init_noise_sigma=float((now[0] ** 2 + leading) ** 0.5),
        )


@dataclass(frozen=True, kw_only=True)
class Euler(SigmaSettings):
    """Euler's method (Karras et al., 2022)."""

    config_class = "EulerDiscreteScheduler"

    use_karras_sigmas: bool = False
    final_sigmas_type: FinalSigma = "zero"

    def _sampler(self, num_steps: int) -> DiffusionSampler:
        return self._euler(num_steps, self.use_karras_sigmas, self.final_sigmas_type, ancestral=False)


@dataclass(frozen=True, kw_only=True)
class EulerAncestral(SigmaSettings):
    """Euler's method with new noise in every step, as in k-diffusion."""

    config_class = "EulerAncestralDiscreteScheduler"

    def _sampler(self, num_steps: int) -> DiffusionSampler:
        return self._euler(num_steps, False, "zero", ancestral=True)


@dataclass(frozen=True, kw_only=True)
class DPMSolverMultistep(SigmaSettings):
    """DPM-Solver++ of order 2 with the midpoint method, DPM++ 2M (Lu et al., 2022)."""

    config_class = "DPMSolverMultistepScheduler"

    use_karras_sigmas: bool = False
    final_sigmas_type: FinalSigma = "zero"
    lower_order_final: bool = True
    euler_at_final: bool = False

    def _sampler(self, num_steps: int) -> DiffusionSampler:
        train = self._train_sigmas()
        timesteps = self._spaced(num_steps, extra=1).round()
        sigmas: Floats = np.interp(timesteps, np.arange(len(train)), train)
        if self.use_karras_sigmas:
            sigmas = karras_sigmas(num_steps, float(train[0]), float(train[-1]))
            timesteps = timesteps_of_sigmas(sigmas, train)
            if self.beta_schedule != "squaredcos_cap_v2":
                timesteps = timesteps.round()
        levels = append_final(sigmas, train, self.final_sigmas_type)
        signal = 1 / (levels**2 + 1) ** 0.5
        sigma = levels * signal
        log_ratio = signal.log() - sigma.log()
        h = log_ratio.diff()
        factor = signal[1:] * (torch.exp(-h) - 1)
        ratio = torch.cat([torch.ones(1), h[:-1]]) / h
        change = -0.5 * factor / ratio
        change[0] = 0  # nothing was predicted before
        zero = self.final_sigmas_type == "zero"
        if zero or self.euler_at_final or (self.lower_order_final and num_steps < 15):
            change[-1] = 0
        return build_sampler(
            self.prediction_type,
            torch.from_numpy(timesteps.astype(np.int64)),
            signal[:-1],
            sigma[:-1],
            x=sigma[1:] / sigma[:-1],
            clean=-factor,
            change=change,
        )


@dataclass(frozen=True, kw_only=True)
class FlowMatchEuler(SamplerSettings):
    """Euler's method for flow matching: the model predicts noise - clean."""

    config_class = "FlowMatchEulerDiscreteScheduler"

    shift: float = 1.0

    def _sampler(self, num_steps: int) -> DiffusionSampler:
        count = self.num_train_timesteps
        # diffusers shifts the smallest level twice
        high, low = (shift_sigmas(torch.tensor([1, 1 / count]), self.shift).double() * count).tolist()
        sigmas = shift_sigmas(np.linspace(high, low, num_steps) / count, self.shift)
        now = torch.from_numpy(sigmas.astype(np.float32))
        rest = torch.cat([now[1:], torch.zeros(1)]) / now
        return build_sampler("flow", now * count, 1 - now, now, x=rest, clean=1 - rest)


SAMPLERS: Mapping[str, type[SamplerSettings]] = {
    "ddpm": DDPM,
    "ddim": DDIM,
    "euler": Euler,
    "euler_ancestral": EulerAncestral,
    "dpmpp_2m": DPMSolverMultistep,
    "flow_match_euler": FlowMatchEuler,
}

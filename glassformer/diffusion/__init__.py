"""Diffusion without a model: noise schedules, samplers, guidance and the denoising loop."""

from glassformer.diffusion.loop import ImageNoise, denoise, denoising_steps
from glassformer.diffusion.samplers import (
    DDIM,
    DDPM,
    SAMPLERS,
    DiffusionSampler,
    DPMSolverMultistep,
    Euler,
    EulerAncestral,
    FlowMatchEuler,
    SamplerSettings,
    SamplerStep,
)
from glassformer.diffusion.scheduler_config import read_scheduler_config, write_scheduler_config

__all__ = [
    "SAMPLERS",
    "SamplerSettings",
    "DDPM",
    "DDIM",
    "Euler",
    "EulerAncestral",
    "DPMSolverMultistep",
    "FlowMatchEuler",
    "DiffusionSampler",
    "SamplerStep",
    "ImageNoise",
    "denoise",
    "denoising_steps",
    "read_scheduler_config",
    "write_scheduler_config",
]

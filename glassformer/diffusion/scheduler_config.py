"""Read and write `scheduler_config.json` of diffusers: a noise schedule with a sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import inf
from typing import Any

from glassformer.diffusion.samplers import DDIM, SAMPLERS, SamplerSettings
from glassformer.errors import UnknownNameError, UnsupportedError
from glassformer.schema import field_types

NOT_IN_CONFIG = {"eta"}  # an argument of a call in diffusers
# options of each scheduler, with the only supported value
_SIGMAS = dict.fromkeys(("use_exponential_sigmas", "use_beta_sigmas"), False)
_BETAS = {"trained_betas": None}
FIXED: Mapping[str, Mapping[str, Any]] = {
    "DDPMScheduler": {**_BETAS, "thresholding": False},
    "DDIMScheduler": {**_BETAS, "thresholding": False},
    "EulerDiscreteScheduler": {
        **_BETAS,
        **_SIGMAS,
        **dict.fromkeys(("sigma_min", "sigma_max")),
        "interpolation_type": "linear",
        "timestep_type": "discrete",
    },
    "EulerAncestralDiscreteScheduler": _BETAS,
    "DPMSolverMultistepScheduler": {
        **_BETAS,
        **_SIGMAS,
        **dict.fromkeys(("thresholding", "use_lu_lambdas", "use_flow_sigmas", "use_dynamic_shifting"), False),
        "solver_order": 2,
        "algorithm_type": "dpmsolver++",
        "solver_type": "midpoint",
        "lambda_min_clipped": -inf,
    },
    "FlowMatchEulerDiscreteScheduler": {
        **_SIGMAS,
        **dict.fromkeys(("use_karras_sigmas", "use_dynamic_shifting"), False),
        **dict.fromkeys(("invert_sigmas", "stochastic_sampling"), False),
        "shift_terminal": None,
    },
}


def read_scheduler_config(config: Mapping[str, Any]) -> SamplerSettings:
    """Return the noise schedule and sampler of a scheduler's config.

    Like diffusers, it ignores options of other schedulers. `PNDMScheduler`, the default of Stable Diffusion
    1.5, is read as DDIM with the same noise schedule and timesteps; no other sampler is replaced.

    >>> read_scheduler_config({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0})
    FlowMatchEuler(num_train_timesteps=1000, shift=3.0)
    """
    rows = {row.config_class: row for row in SAMPLERS.values()}
    name = str(config.get("_class_name"))
    if name == "PNDMScheduler":
        values = {"set_alpha_to_one": False, **config, "clip_sample": False, "rescale_betas_zero_snr": False}
        return read_scheduler_config({**values, "_class_name": DDIM.config_class})
    if name not in rows:
        raise UnknownNameError("scheduler", name, [*rows, "PNDMScheduler"], where="scheduler_config.json")
    for key, value in FIXED[name].items():
        if (config.get(key, value) or None) != (value or None):
            raise UnsupportedError(name, f"{key}={config[key]}")
    known = field_types(rows[name]).keys() - NOT_IN_CONFIG
    return rows[name](**{key: value for key, value in config.items() if key in known and value is not None})


def write_scheduler_config(settings: SamplerSettings) -> dict[str, Any]:
    """Return the config of a scheduler of diffusers with these settings; it does not contain `eta`."""
    values = {key: value for key, value in asdict(settings).items() if key not in NOT_IN_CONFIG}
    return {"_class_name": settings.config_class, **values}

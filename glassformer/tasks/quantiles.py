"""Quantiles of a predicted distribution, in double precision.

Student's t has no closed form: its density is integrated and the quantile found by Newton's method. Those of
the negative binomial are empirical, of samples with a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from glassformer.core.distributions import Gaussian, NegativeBinomial, Parameters, StudentT
from glassformer.errors import InvalidValueError

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SAMPLES = 2000
_NEWTON_STEPS = 60
_NODES = 64  # of the quadrature


def check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Levels between 0 and 1, ascending."""
    for level in levels:
        if not 0.001 <= level <= 0.999:
            raise InvalidValueError("levels", level, "numbers from 0.001 to 0.999")
    return tuple(sorted(set(levels)))


def quantiles(predicted: Parameters, levels: Sequence[float]) -> Tensor:
    """The quantiles of each value: parameters of any shape -> (levels, *shape), float64.

    >>> normal = Gaussian(loc=torch.zeros(1), scale=torch.ones(1))
    >>> [round(float(q), 3) for q in quantiles(normal, (0.1, 0.5, 0.9))]
    [-1.282, 0.0, 1.282]
    """
    match predicted:
        case Gaussian(loc, scale):
            return torch.stack([loc.double() + scale.double() * _normal_quantile(level) for level in levels])
        case StudentT(df, loc, scale):
            return torch.stack(
                [loc.double() + scale.double() * _student_t_quantile(df.double(), level) for level in levels]
            )
        case NegativeBinomial():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                samples = predicted.distribution.sample(torch.Size((SAMPLES,))).double().sort(0).values
            return torch.stack([samples[min(SAMPLES - 1, int(level * SAMPLES))] for level in levels])


def _normal_quantile(level: float) -> float:
    """A quantile of the standard normal distribution."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * level - 1, dtype=torch.float64)))


def _student_t_quantile(df: Tensor, level: float) -> Tensor:
    """A quantile of Student's t for degrees of freedom of any shape.

    Above the median the CDF is concave, so Newton's method converges from the normal quantile, which is too
    low, without overshooting.
    """
    if level < 0.5:
        return -_student_t_quantile(df, 1 - level)
    nodes, weights = _legendre()
    constant = torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * (df * math.pi).log()

    def density(x: Tensor) -> Tensor:
        return (constant - (df + 1) / 2 * torch.log1p(x.square() / df)).exp()

    x = torch.full_like(df, _normal_quantile(level))
    for _ in range(_NEWTON_STEPS):
        inside = sum(weight * density(x * node) for node, weight in zip(nodes, weights, strict=True)) * x
        step = (level - 0.5 - inside) / density(x)
        x = x + step
        if bool((step.abs() <= 1e-10 * x.abs().clamp_min(1.0)).all()):
            break
    return x


def _legendre() -> tuple[list[float], list[float]]:
    """Nodes and weights of Gauss-Legendre quadrature on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()

"""Quantiles of a forecast's distribution: the value that the future stays below so often.

Worked out in double precision. For heavy tails there is no closed form, so the density is integrated and the
value found by Newton's steps; for counts they are read off draws, always the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from glassformer.core.distributions import Gaussian, NegativeBinomial, Parameters, StudentT
from glassformer.errors import GlassformerError

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAWS = 2000
_STEPS = 60  # of Newton's, at most
_NODES = 64  # where the density is looked at


def checked(levels: Sequence[float]) -> tuple[float, ...]:
    """Levels that lie between 0 and 1, upwards."""
    for level in levels:
        if not 0.001 <= level <= 0.999:
            raise GlassformerError(f"there is no quantile {level}; give numbers from 0.001 to 0.999")
    return tuple(sorted(set(levels)))


def quantiles(told: Parameters, levels: Sequence[float]) -> Tensor:
    """The quantiles of each value: parameters of any shape -> (levels, *shape), float64.

    >>> told = Gaussian(loc=torch.zeros(1), scale=torch.ones(1))
    >>> [round(float(q), 3) for q in quantiles(told, (0.1, 0.5, 0.9))]
    [-1.282, 0.0, 1.282]
    """
    match told:
        case Gaussian(loc, scale):
            return torch.stack([loc.double() + scale.double() * _bell(level) for level in levels])
        case StudentT(df, loc, scale):
            return torch.stack(
                [loc.double() + scale.double() * _tailed(df.double(), level) for level in levels]
            )
        case NegativeBinomial():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                drawn = told.distribution.sample(torch.Size((DRAWS,))).double().sort(0).values
            return torch.stack([drawn[min(DRAWS - 1, int(level * DRAWS))] for level in levels])


def _bell(level: float) -> float:
    """A quantile of the bell of centre 0 and width 1."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * level - 1, dtype=torch.float64)))


def _tailed(df: Tensor, level: float) -> Tensor:
    """A quantile of Student's t for degrees of freedom of any shape.

    Above the centre the share below a value grows ever slower, so Newton's steps from the bell's quantile,
    which lies too low, rise to the value and never past it.
    """
    if level < 0.5:
        return -_tailed(df, 1 - level)
    nodes, weights = _legendre()
    constant = torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * (df * math.pi).log()

    def density(x: Tensor) -> Tensor:
        return (constant - (df + 1) / 2 * torch.log1p(x.square() / df)).exp()

    x = torch.full_like(df, _bell(level))
    for _ in range(_STEPS):
        inside = sum(weight * density(x * node) for node, weight in zip(nodes, weights, strict=True)) * x
        step = (level - 0.5 - inside) / density(x)
        x = x + step
        if bool((step.abs() <= 1e-10 * x.abs().clamp_min(1.0)).all()):
            break
    return x


def _legendre() -> tuple[list[float], list[float]]:
    """Places and weights that integrate smooth functions over 0 to 1 all but exactly."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()

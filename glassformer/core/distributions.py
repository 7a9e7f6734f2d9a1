"""A forecast with its uncertainty: the parameters of a distribution, one number each for every value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, distributions, nn

Distribution = Literal["none", "student_t", "normal", "negative_binomial"]


def _positive(x: Tensor) -> Tensor:
    """A smooth map onto the numbers above 0: (x + sqrt(x^2 + 4)) / 2."""
    return (x + (x.square() + 4.0).sqrt()) / 2.0


def _width(x: Tensor) -> Tensor:
    return _positive(x).clamp_min(torch.finfo(x.dtype).eps)


def _log_prob(kind: Any, *parameters: Tensor | None, values: Tensor) -> Tensor:
    """Without validation: NaN parameters give NaN instead of an error."""
    found: Tensor = kind(*parameters, validate_args=False).log_prob(values)
    return found


class StudentT(NamedTuple):
    """A bell with heavy tails: degrees of freedom (above 2), centre, width."""

    df: Tensor
    loc: Tensor
    scale: Tensor

    @classmethod
    def of(cls, df: Tensor, loc: Tensor, scale: Tensor) -> StudentT:
        """From the unconstrained outputs of a layer."""
        return cls(2.0 + _positive(df), loc, _width(scale))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def distribution(self) -> distributions.Distribution:
        return distributions.StudentT(self.df, self.loc, self.scale)

    def log_prob(self, values: Tensor) -> Tensor:
        """The log-density at each value."""
        # by hand: torch validates the degrees of freedom even with validate_args=False, and NaN must stay NaN
        z = (values - self.loc) / self.scale
        normalizer = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi)
        normalizer = normalizer + torch.lgamma(0.5 * self.df) - torch.lgamma(0.5 * (self.df + 1.0))
        return -0.5 * (self.df + 1.0) * torch.log1p(z**2 / self.df) - normalizer

    def unscale(self, loc: Tensor, scale: Tensor) -> StudentT:
        """The same for values before they were shifted by `loc` and divided by `scale`."""
        return StudentT(self.df, self.loc * scale + loc, self.scale * scale)


class Gaussian(NamedTuple):
    """A bell: centre and width."""

    loc: Tensor
    scale: Tensor

    @classmethod
    def of(cls, loc: Tensor, scale: Tensor) -> Gaussian:
        """From the unconstrained outputs of a layer."""
        return cls(loc, _width(scale))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def distribution(self) -> distributions.Distribution:
        return distributions.Normal(self.loc, self.scale)

    def log_prob(self, values: Tensor) -> Tensor:
        """The log-density at each value."""
        return _log_prob(distributions.Normal, *self, values=values)

    def unscale(self, loc: Tensor, scale: Tensor) -> Gaussian:
        """The same for values before they were shifted by `loc` and divided by `scale`."""
        return Gaussian(self.loc * scale + loc, self.scale * scale)


class NegativeBinomial(NamedTuple):
    """Counts: how many failures to wait for, and the log-odds of a success on each try."""

    total_count: Tensor
    logits: Tensor

    @classmethod
    def of(cls, total_count: Tensor, logits: Tensor) -> NegativeBinomial:
        """From the unconstrained outputs of a layer."""
        return cls(_positive(total_count), logits)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def distribution(self) -> distributions.Distribution:
        return distributions.NegativeBinomial(self.total_count, logits=self.logits)

    def log_prob(self, values: Tensor) -> Tensor:
        """The log-probability of each count; NaN below 0."""
        chance = _log_prob(distributions.NegativeBinomial, self.total_count, None, self.logits, values=values)
        return chance.where(values >= 0, torch.nan)

    def unscale(self, loc: Tensor, scale: Tensor) -> NegativeBinomial:
        """The same with its mean times `scale`; counts start at 0, so they are never shifted by `loc`."""
        return NegativeBinomial(self.total_count, self.logits + scale.log())


DistributionParameters = StudentT | Gaussian | NegativeBinomial
DISTRIBUTIONS: dict[Distribution, type[Any]] = {
    "student_t": StudentT,
    "normal": Gaussian,
    "negative_binomial": NegativeBinomial,
}


def map_parameters(
    parameters: DistributionParameters, change: Callable[[str, Tensor], Tensor]
) -> DistributionParameters:
    """Every parameter changed by a function of its name and its tensor."""
    made: DistributionParameters = type(parameters)(*map(change, parameters._fields, parameters))
    return made


def stack_parameters(each: Sequence[DistributionParameters], dim: int) -> DistributionParameters:
    """Several distributions of one kind as one, along a new dimension."""
    made: DistributionParameters = type(each[0])(
        *(torch.stack(tensors, dim) for tensors in zip(*each, strict=True))
    )
    return made


class ParameterLayers(nn.Module):
    """Vectors (..., width) to a distribution's parameters, each (..., count), by a layer for each."""

    def __init__(self, width: int, count: int, distribution: Distribution) -> None:
        super().__init__()
        self.kind = DISTRIBUTIONS[distribution]
        for name in self.kind._fields:
            self.add_module(name, nn.Linear(width, count))

    def forward(self, x: Tensor) -> DistributionParameters:
        parameters: DistributionParameters = self.kind.of(*(layer(x) for layer in self.children()))
        return parameters


def value_projection(width: int, count: int, distribution: Distribution) -> nn.Module:
    """Vectors (..., width) to (..., count) numbers, or to a distribution's parameters for them."""
    if distribution == "none":
        return nn.Linear(width, count)
    return ParameterLayers(width, count, distribution)

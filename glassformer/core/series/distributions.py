"""Output distributions of probabilistic forecasts; each holds its parameters as tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, distributions, nn

Distribution = Literal["none", "student_t", "normal", "negative_binomial"]


def _positive(x: Tensor) -> Tensor:
    """Map x smoothly to a positive number: (x + sqrt(x^2 + 4)) / 2."""
    return (x + (x.square() + 4.0).sqrt()) / 2.0


def _positive_scale(x: Tensor) -> Tensor:
    return _positive(x).clamp_min(torch.finfo(x.dtype).eps)


def _log_prob(kind: Any, *parameters: Tensor | None, values: Tensor) -> Tensor:
    """Return the log-density without validation: NaN parameters give NaN instead of an error."""
    log_prob: Tensor = kind(*parameters, validate_args=False).log_prob(values)
    return log_prob


class StudentT(NamedTuple):
    """Student's t-distribution: degrees of freedom (above 2), location, scale."""

    df: Tensor
    loc: Tensor
    scale: Tensor

    @classmethod
    def from_outputs(cls, df: Tensor, loc: Tensor, scale: Tensor) -> StudentT:
        """Create the distribution from the unconstrained outputs of a layer."""
        return cls(2.0 + _positive(df), loc, _positive_scale(scale))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def distribution(self) -> distributions.Distribution:
        return distributions.StudentT(self.df, self.loc, self.scale)

    def log_prob(self, values: Tensor) -> Tensor:
        """Return the log-density at each value."""
        # not torch's StudentT, which validates df even with validate_args=False; NaN must stay NaN
        z = (values - self.loc) / self.scale
        normalizer = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi)
        normalizer = normalizer + torch.lgamma(0.5 * self.df) - torch.lgamma(0.5 * (self.df + 1.0))
        return -0.5 * (self.df + 1.0) * torch.log1p(z**2 / self.df) - normalizer

    def unscale(self, loc: Tensor, scale: Tensor) -> StudentT:
        """Return the distribution of values * scale + loc."""
        return StudentT(self.df, self.loc * scale + loc, self.scale * scale)


class Gaussian(NamedTuple):
    """Normal distribution: mean and standard deviation."""

    loc: Tensor
    scale: Tensor

    @classmethod
    def from_outputs(cls, loc: Tensor, scale: Tensor) -> Gaussian:
        """Create the distribution from the unconstrained outputs of a layer."""
        return cls(loc, _positive_scale(scale))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def distribution(self) -> distributions.Distribution:
        return distributions.Normal(self.loc, self.scale)

    def log_prob(self, values: Tensor) -> Tensor:
        """Return the log-density at each value."""
        return _log_prob(distributions.Normal, *self, values=values)

    def unscale(self, loc: Tensor, scale: Tensor) -> Gaussian:
        """Return the distribution of values * scale + loc."""
        return Gaussian(self.loc * scale + loc, self.scale * scale)


class NegativeBinomial(NamedTuple):
    """Negative binomial distribution: number of failures, and log-odds of success."""

    total_count: Tensor
    logits: Tensor

    @classmethod
    def from_outputs(cls, total_count: Tensor, logits: Tensor) -> NegativeBinomial:
        """Create the distribution from the unconstrained outputs of a layer."""
        return cls(_positive(total_count), logits)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def distribution(self) -> distributions.Distribution:
        return distributions.NegativeBinomial(self.total_count, logits=self.logits)

    def log_prob(self, values: Tensor) -> Tensor:
        """Return the log-probability of each count; NaN below 0."""
        log_prob = _log_prob(
            distributions.NegativeBinomial, self.total_count, None, self.logits, values=values
        )
        return log_prob.where(values >= 0, torch.nan)

    def unscale(self, loc: Tensor, scale: Tensor) -> NegativeBinomial:
        """Multiply the mean by `scale`; counts start at 0, so `loc` is ignored."""
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
    """Apply `change(name, tensor)` to every parameter."""
    result: DistributionParameters = type(parameters)(*map(change, parameters._fields, parameters))
    return result


def stack_parameters(parameters: Sequence[DistributionParameters], dim: int) -> DistributionParameters:
    """Stack the parameters of several distributions of one kind along a new dimension."""
    result: DistributionParameters = type(parameters[0])(
        *(torch.stack(tensors, dim) for tensors in zip(*parameters, strict=True))
    )
    return result


class ParameterLayers(nn.Module):
    """One linear layer per distribution parameter, each (..., width) -> (..., count)."""

    def __init__(self, width: int, count: int, distribution: Distribution) -> None:
        super().__init__()
        self.kind = DISTRIBUTIONS[distribution]
        for name in self.kind._fields:
            self.add_module(name, nn.Linear(width, count))

    def forward(self, x: Tensor) -> DistributionParameters:
        parameters: DistributionParameters = self.kind.from_outputs(*(layer(x) for layer in self.children()))
        return parameters


def value_projection(width: int, count: int, distribution: Distribution) -> nn.Module:
    """Create a layer from (..., width) to (..., count) values, or to the parameters of their distribution."""
    if distribution == "none":
        return nn.Linear(width, count)
    return ParameterLayers(width, count, distribution)

"""Time series as patches: the input, and heads for forecasts, labels and values.

Every channel is a separate sequence: the input folds channels into the batch dimension, and each head unfolds
them. B series, C channels, T time steps, P patches (and prefix tokens), L patch length, D d_model.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.backend import Dropout
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.heads import HeadContext
from glassformer.core.inputs import SeriesInputs
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, tap
from glassformer.core.positions import sinusoids
from glassformer.core.precision import upcast
from glassformer.core.series.distributions import (
    DistributionParameters,
    map_parameters,
    stack_parameters,
    value_projection,
)
from glassformer.errors import MissingValueError, ShapeError, UnsupportedError

Scaling = Literal["std", "mean", "none"]
Pool = Literal["flatten", "mean", "max", "first"]
COVARIATE_WIDTH = 64
_SMALLEST_VARIANCE, _SMALLEST_MEAN = 1e-5, 1e-10


def compute_scaling(values: Tensor, observed: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
    """Compute the shift and scale (B, 1, C) that normalize each channel, from observed values only.

    scaling: "std" gives mean 0 and standard deviation 1; "mean" gives a mean absolute value of 1, and a
    channel without observed values uses the mean of the batch; "none" changes nothing.
    values: must be 0 where not observed.
    """
    weight = observed.to(values.dtype)
    count = weight.sum(1, keepdim=True)  # (B, 1, C)
    match scaling:
        case "std":
            loc = values.sum(1, keepdim=True) / count.clamp_min(1.0)
            variance = ((values - loc) * weight).square().sum(1, keepdim=True) / count.clamp_min(1.0)
            return loc, (variance + _SMALLEST_VARIANCE).sqrt()
        case "mean":
            total = values.abs().sum(1, keepdim=True)  # (B, 1, C)
            batch_mean = total.sum(0, keepdim=True) / count.sum(0, keepdim=True).clamp_min(1.0)
            scale = torch.where(count > 0, total / count.clamp_min(1.0), batch_mean)
            return torch.zeros_like(scale), scale.clamp_min(_SMALLEST_MEAN)
        case "none":
            return torch.zeros_like(count), torch.ones_like(count)


def extract_patches(values: Tensor, patch_length: int, stride: int) -> Tensor:
    """Split series (B, T, C) into overlapping patches (B, C, P, L); the last one ends with the series.

    If the patches do not cover the series exactly, its first values are left out.
    """
    unused = (values.shape[1] - patch_length) % stride
    return values[:, unused:].unfold(1, patch_length, stride).transpose(1, 2)


def scaled_sinusoids(rows: int, d_model: int) -> Tensor:
    """Return the sinusoidal table (rows, D), with mean 0 and standard deviation 0.1."""
    table = sinusoids(rows, d_model)
    table = table - table.mean()
    return table / (table.std() * 10)


class CovariateEffect(nn.Module):
    """Map the known covariates of each time step to their effect on each channel: (B, S, K) -> (B, S, C)."""

    def __init__(self, covariates: int, channels: int, hidden: int = COVARIATE_WIDTH) -> None:
        super().__init__()
        self.linear = nn.Linear(covariates, channels, bias=False)
        self.up, self.down = nn.Linear(covariates, hidden), nn.Linear(hidden, channels, bias=False)

    def forward(self, covariates: Tensor) -> Tensor:
        covariates = covariates.to(self.up.weight.dtype)
        effect: Tensor = self.linear(covariates) + self.down(F.gelu(self.up(covariates)))
        return effect


class SeriesInput(nn.Module):
    """Scale series, embed their patches, prepend trained prefix tokens, and add positions."""

    has_tables = True  # its own parameters are initialized like embeddings

    def __init__(self, d_model: int, spec: specs.SeriesPatchesSpec) -> None:
        super().__init__()
        self.context_length, self.patch_length, self.stride = (
            spec.context_length,
            spec.patch_length,
            spec.stride,
        )
        self.channels, self.scaling = spec.channels, spec.scaling
        rows = spec.prefix + spec.num_patches
        self.patch: nn.Linear | nn.ModuleList
        if spec.embedding == "shared":
            self.patch = nn.Linear(spec.patch_length, d_model)
        else:
            self.patch = nn.ModuleList(nn.Linear(spec.patch_length, d_model) for _ in range(spec.channels))
        self.prefix = nn.Parameter(torch.zeros(1, spec.prefix, d_model)) if spec.prefix else None
        self.position: Tensor
        if spec.position == "learned":
            self.position = nn.Parameter(torch.zeros(rows, d_model))
        else:
            self.register_buffer("position", torch.empty(rows, d_model))
            if not self.position.is_meta:
                self.position.copy_(scaled_sinusoids(rows, d_model))
        self.dropout = Dropout(spec.dropout)
        self.covariates = CovariateEffect(spec.covariates, spec.channels) if spec.covariates else None

    def forward(self, inputs: Tensor | SeriesInputs, *, obs: Observer | None = None) -> EmbeddingOutput:
        """Series (B, T, C) -> vectors (B*C, P, D), and the shift and scale (B, 1, C).

        Missing values are ignored. Masked patches are zeroed after scaling. With known covariates of N steps
        to forecast, the shift is (B, N, C).
        """
        series = inputs if isinstance(inputs, SeriesInputs) else SeriesInputs(inputs)
        values, masked_patches = series.values, series.masked_patches
        effect = self._effect(values, series.covariates)  # (B, T + N, C)
        if effect is not None:
            values = values - tap(obs, "effect", effect)[:, : self.context_length].to(values.dtype)
        values, loc, scale = self._scale(values, series.observed)
        values = tap(obs, "scaled", values)  # (B, T, C)
        patches = extract_patches(values, self.patch_length, self.stride)  # (B, C, patches, L)
        if masked_patches is not None:
            if masked_patches.dtype != torch.bool or masked_patches.shape != patches.shape[:3]:
                expected = f"a bool for each patch of each channel, {tuple(patches.shape[:3])}"
                raise ShapeError("masked_patches", masked_patches.shape, expected)
            patches = patches.masked_fill(masked_patches[..., None], 0.0)
        x = tap(obs, "patch", self._embed_patches(patches).flatten(0, 1))  # (B*C, patches, D)
        position = tap(obs, "position", self.position[None]).to(x.dtype)
        if self.prefix is None:
            x = self.dropout(x + position)
        else:
            first = self.prefix.shape[1]
            x = self.dropout(x + position[:, first:])
            x = torch.cat(((self.prefix + position[:, :first]).expand(x.shape[0], -1, -1), x), 1)
        if effect is not None:
            loc = loc + effect[:, self.context_length :]
        return EmbeddingOutput(tap(obs, "out", x), Mask(), loc=loc, scale=scale)

    def _effect(self, values: Tensor, covariates: Tensor | None) -> Tensor | None:
        """Return the effect (B, T + N, C) of known covariates; None if the model has none."""
        if self.covariates is None:
            if covariates is not None:
                raise ShapeError("covariates", covariates.shape, "none: the model has no known covariates")
            return None
        width = self.covariates.up.in_features
        if covariates is None:
            raise MissingValueError("covariates", "by a model with known covariates")
        if covariates.dim() != 3 or covariates.shape[0] != values.shape[0] or covariates.shape[2] != width:
            raise ShapeError("covariates", covariates.shape, f"({values.shape[0]}, T + N, {width})")
        effect: Tensor = self.covariates(covariates)
        return upcast(effect)

    def _scale(self, values: Tensor, observed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if values.dim() != 3 or tuple(values.shape[1:]) != (self.context_length, self.channels):
            expected = f"(B, {self.context_length}, {self.channels}), time before channels"
            raise ShapeError("the series", values.shape, expected)
        # in half precision the squares of large values would overflow
        values = upcast(values)
        if observed is None:
            observed = torch.ones_like(values, dtype=torch.bool)
        elif observed.shape != values.shape:
            raise ShapeError("observed", observed.shape, f"the series' shape {tuple(values.shape)}")
        else:
            observed = observed.bool()
            values = values.masked_fill(~observed, 0.0)
        loc, scale = compute_scaling(values, observed, self.scaling)
        return (values - loc) / scale, loc, scale

    def _embed_patches(self, patches: Tensor) -> Tensor:
        """Embed patches (B, C, P, L) -> (B, C, P, D), in the dtype of the weights."""
        if isinstance(self.patch, nn.Linear):
            x: Tensor = self.patch(patches.to(self.patch.weight.dtype))
            return x
        channels = patches.to(self.position.dtype).unbind(1)  # (B, P, L) each
        return torch.stack([layer(x) for layer, x in zip(self.patch, channels, strict=True)], 1)


class SeriesHead(nn.Module):
    """Base of heads for time series, which move channels out of the batch dimension again."""

    def __init__(self, spec: Any, source: specs.SeriesPatchesSpec) -> None:
        super().__init__()
        self.channels = source.channels
        self.pool: Pool = getattr(spec, "pool", "mean")
        self.dropout = Dropout(getattr(spec, "dropout", 0.0))

    def unfold(self, x: Tensor) -> Tensor:
        """Move channels out of the batch dimension: (B*C, ...) -> (B, C, ...)."""
        return x.reshape(x.shape[0] // self.channels, self.channels, *x.shape[1:])

    def pool_patches(self, x: Tensor) -> Tensor:
        """Pool the patches of each channel: (B*C, P, D) -> (B, C, D), or (B, C, P*D) for "flatten"."""
        match self.pool:
            case "first":
                return self.unfold(x[:, 0])
            case "mean":
                return self.unfold(x.mean(1))
            case "max":
                return self.unfold(x.amax(1))
        return self.unfold(x.flatten(1))


class SeriesFeaturesHead(SeriesHead):
    """Return the hidden states: (B*C, P, D) -> (B, C, P, D)."""

    def __init__(self, d_model: int, spec: specs.FeaturesSpec, source: specs.SeriesPatchesSpec) -> None:
        super().__init__(spec, source)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        return self.unfold(x)


class ForecastHead(SeriesHead):
    """Forecast the next N values of every channel, unscaled: (B*C, P, D) -> (B, N, C).

    With a distribution, return the parameters of its values, each (B, N, C).
    """

    def __init__(self, d_model: int, spec: specs.ForecastSpec, source: specs.SeriesPatchesSpec) -> None:
        super().__init__(spec, source)
        width = d_model * (source.prefix + source.num_patches) if spec.pool == "flatten" else d_model
        shared = spec.projection == "shared"
        layers = [
            value_projection(width, spec.prediction_length, spec.distribution)
            for _ in range(1 if shared else source.channels)
        ]
        self.out = layers[0] if shared else nn.ModuleList(layers)

    def forward(
        self, x: Tensor, context: HeadContext, *, obs: Observer | None = None
    ) -> Tensor | DistributionParameters:
        vectors = self.dropout(tap(obs, "pooled", self.pool_patches(x)))  # (B, C, W)
        output: Tensor | DistributionParameters  # (B, C, N), or parameters of this shape
        if isinstance(self.out, nn.ModuleList):
            outputs = [layer(vectors[:, c]) for c, layer in enumerate(self.out)]
            stack = torch.stack if isinstance(outputs[0], Tensor) else stack_parameters
            output = stack(outputs, 1)
        else:
            output = self.out(vectors)
        assert context.loc is not None and context.scale is not None
        if isinstance(output, Tensor):
            return tap(obs, "forecast", output.transpose(1, 2) * context.scale + context.loc)
        output = map_parameters(output, lambda _, tensor: tensor.transpose(1, 2)).unscale(
            context.loc, context.scale
        )
        return map_parameters(output, lambda name, tensor: tap(obs, name, tensor))


class SeriesClassifyHead(SeriesHead):
    """Classify the concatenated pooled vectors of all channels: (B*C, P, D) -> logits (B, labels)."""

    def __init__(self, d_model: int, spec: specs.SeriesClassifySpec, source: specs.SeriesPatchesSpec) -> None:
        super().__init__(spec, source)
        self.out = nn.Linear(source.channels * d_model, spec.num_labels)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        vector = tap(obs, "pooled", self.pool_patches(x).flatten(1))  # (B, C*D)
        return tap(obs, "logits", self.out(self.dropout(vector)))


class SeriesRegressHead(SeriesHead):
    """Predict targets, or their distribution's parameters, from all channels: (B*C, P, D) -> (B, targets)."""

    def __init__(self, d_model: int, spec: specs.SeriesRegressSpec, source: specs.SeriesPatchesSpec) -> None:
        super().__init__(spec, source)
        self.output_range = spec.output_range
        self.out = value_projection(source.channels * d_model, spec.num_targets, spec.distribution)

    def forward(
        self, x: Tensor, context: HeadContext, *, obs: Observer | None = None
    ) -> Tensor | DistributionParameters:
        vector = tap(obs, "pooled", self.pool_patches(x).flatten(1))  # (B, C*D)
        output: Tensor | DistributionParameters = self.out(self.dropout(vector))
        if not isinstance(output, Tensor):
            return map_parameters(output, lambda name, tensor: tap(obs, name, tensor))
        if self.output_range is not None:
            low, high = self.output_range
            output = torch.sigmoid(output) * (high - low) + low
        return tap(obs, "targets", output)


class PatchReconstructHead(SeriesHead):
    """Reconstruct the scaled values of each patch: (B*C, P, D) -> (B, C, patches, L)."""

    def __init__(
        self, d_model: int, spec: specs.PatchReconstructSpec, source: specs.SeriesPatchesSpec
    ) -> None:
        super().__init__(spec, source)
        self.prefix = source.prefix
        self.out = nn.Linear(d_model, source.patch_length)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        return tap(obs, "patches", self.unfold(self.out(self.dropout(x[:, self.prefix :]))))


SERIES_HEADS: dict[type, type[nn.Module]] = {
    specs.FeaturesSpec: SeriesFeaturesHead,
    specs.ForecastSpec: ForecastHead,
    specs.SeriesClassifySpec: SeriesClassifyHead,
    specs.SeriesRegressSpec: SeriesRegressHead,
    specs.PatchReconstructSpec: PatchReconstructHead,
}


def build_series_head(spec: specs.HeadSpec, d_model: int, source: specs.SeriesPatchesSpec) -> nn.Module:
    """Build a head for time series."""
    if type(spec) not in SERIES_HEADS or getattr(spec, "pooler", False):
        known = ", ".join(kind.__name__ for kind in SERIES_HEADS)
        raise UnsupportedError(f"the {spec.kind} head", "time series", hint=f"use {known}, without a pooler")
    return SERIES_HEADS[type(spec)](d_model, spec, source)

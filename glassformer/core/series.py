"""Series of numbers as patches: from values to vectors, and from vectors to forecasts, labels, values.

Every channel is a sequence of its own: channels are folded into the batch on the way in, and each head
unfolds them. B series, C channels, T time steps, P patches (and prefix tokens), L patch length, D d_model.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from glassformer.core import spec
from glassformer.core.backend import Dropout
from glassformer.core.distributions import (
    DistributionParameters,
    map_parameters,
    stack_parameters,
    value_projection,
)
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.heads import HeadContext
from glassformer.core.observe import Observer, tap
from glassformer.core.positions import sinusoids
from glassformer.errors import ShapeError

Scaling = Literal["std", "mean", "none"]
Pool = Literal["flatten", "mean", "max", "first"]
_SMALLEST_VARIANCE, _SMALLEST_MEAN = 1e-5, 1e-10


def compute_scaling(values: Tensor, observed: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
    """How to shift and divide each channel of each series, from observed values alone: two of (B, 1, C).

    "std": to mean 0 and spread 1. "mean": to a mean size of 1; a channel never observed takes the size
    of that channel over the whole batch. `values` are 0 where not observed.
    """
    seen_at = observed.to(values.dtype)
    count = seen_at.sum(1, keepdim=True)  # (B, 1, C)
    match scaling:
        case "std":
            loc = values.sum(1, keepdim=True) / count.clamp_min(1.0)
            spread = ((values - loc) * seen_at).square().sum(1, keepdim=True) / count.clamp_min(1.0)
            return loc, (spread + _SMALLEST_VARIANCE).sqrt()
        case "mean":
            total = values.abs().sum(1, keepdim=True)  # (B, 1, C)
            everywhere = total.sum(0, keepdim=True) / count.sum(0, keepdim=True).clamp_min(1.0)
            scale = torch.where(count > 0, total / count.clamp_min(1.0), everywhere)
            return torch.zeros_like(scale), scale.clamp_min(_SMALLEST_MEAN)
        case "none":
            return torch.zeros_like(count), torch.ones_like(count)


def extract_patches(values: Tensor, patch_length: int, stride: int) -> Tensor:
    """Overlapping pieces (B, T, C) -> (B, C, P, L); the last ends where the series ends.

    What is left over when the stride does not fit is left out at the start, the oldest values.
    """
    spare = (values.shape[1] - patch_length) % stride
    return values[:, spare:].unfold(1, patch_length, stride).transpose(1, 2)


def small_sinusoids(rows: int, d_model: int) -> Tensor:
    """The sinusoidal table (rows, D), moved to mean 0 and shrunk to a spread of 0.1."""
    table = sinusoids(rows, d_model)
    table = table - table.mean()
    return table / (table.std() * 10)


class SeriesInput(nn.Module):
    """Series scaled and cut into patches, each a vector, after learned prefix tokens, plus positions."""

    def __init__(self, d_model: int, what: spec.SeriesPatchesSpec) -> None:
        super().__init__()
        self.context_length, self.patch_length, self.stride = (
            what.context_length,
            what.patch_length,
            what.stride,
        )
        self.channels, self.scaling = what.channels, what.scaling
        rows = what.prefix + what.num_patches
        self.patch: nn.Linear | nn.ModuleList
        if what.embedding == "shared":
            self.patch = nn.Linear(what.patch_length, d_model)
        else:
            self.patch = nn.ModuleList(nn.Linear(what.patch_length, d_model) for _ in range(what.channels))
        self.prefix = nn.Parameter(torch.zeros(1, what.prefix, d_model)) if what.prefix else None
        self.position: Tensor
        if what.position == "learned":
            self.position = nn.Parameter(torch.zeros(rows, d_model))
        else:
            self.register_buffer("position", torch.empty(rows, d_model))
            if not self.position.is_meta:
                self.position.copy_(small_sinusoids(rows, d_model))
        self.dropout = Dropout(what.dropout)

    def forward(
        self,
        values: Tensor,
        *,
        observed: Tensor | None = None,
        hidden: Tensor | None = None,
        obs: Observer | None = None,
    ) -> EmbeddingOutput:
        """values (B, T, C) -> vectors (B*C, P, D), with the shift and scale (B, 1, C) taken out.

        `observed` (B, T, C) is False where a value is missing; what stands there is not looked at.
        `hidden` (B, C, patches) is True for patches to be blanked after scaling, to be guessed back.
        """
        values, loc, scale = self._scaled(values, observed)
        values = tap(obs, "scaled", values)  # (B, T, C)
        patches = extract_patches(values, self.patch_length, self.stride)  # (B, C, patches, L)
        if hidden is not None:
            if hidden.dtype != torch.bool or hidden.shape != patches.shape[:3]:
                wanted = f"a bool for each patch of each channel, {tuple(patches.shape[:3])}"
                raise ShapeError("hidden", hidden.shape, wanted)
            patches = patches.masked_fill(hidden[..., None], 0.0)
        x = tap(obs, "patch", self._vectors(patches).flatten(0, 1))  # (B*C, patches, D)
        position = tap(obs, "position", self.position[None]).to(x.dtype)
        if self.prefix is None:
            x = self.dropout(x + position)
        else:
            first = self.prefix.shape[1]
            x = self.dropout(x + position[:, first:])
            x = torch.cat(((self.prefix + position[:, :first]).expand(x.shape[0], -1, -1), x), 1)
        return EmbeddingOutput(tap(obs, "out", x), loc, scale)

    def _scaled(self, values: Tensor, observed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if values.dim() != 3 or tuple(values.shape[1:]) != (self.context_length, self.channels):
            wanted = f"(B, {self.context_length}, {self.channels}), time before channels"
            raise ShapeError("the series", values.shape, wanted)
        # in half precision the squares of large values would overflow
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        if observed is None:
            observed = torch.ones_like(values, dtype=torch.bool)
        elif observed.shape != values.shape:
            raise ShapeError("observed", observed.shape, f"the series' shape {tuple(values.shape)}")
        else:
            observed = observed.bool()
            values = values.masked_fill(~observed, 0.0)
        loc, scale = compute_scaling(values, observed, self.scaling)
        return (values - loc) / scale, loc, scale

    def _vectors(self, patches: Tensor) -> Tensor:
        """(B, C, P, L) -> (B, C, P, D), in the precision of the weights."""
        if isinstance(self.patch, nn.Linear):
            x: Tensor = self.patch(patches.to(self.patch.weight.dtype))
            return x
        pieces = patches.to(self.position.dtype).unbind(1)  # a channel each (B, P, L)
        return torch.stack([layer(piece) for layer, piece in zip(self.patch, pieces, strict=True)], 1)


class SeriesHead(nn.Module):
    """A head of a series model: channels, folded into the batch, are separated again."""

    def __init__(self, what: Any, source: spec.SeriesPatchesSpec) -> None:
        super().__init__()
        self.channels = source.channels
        self.pool: Pool = getattr(what, "pool", "mean")
        self.dropout = Dropout(getattr(what, "dropout", 0.0))

    def unfold(self, x: Tensor) -> Tensor:
        """(B*C, ...) -> (B, C, ...)."""
        return x.reshape(x.shape[0] // self.channels, self.channels, *x.shape[1:])

    def pooled(self, x: Tensor) -> Tensor:
        """Vectors (B*C, P, D) -> one for each channel (B, C, D), or (B, C, P*D) when "flatten"."""
        match self.pool:
            case "first":
                return self.unfold(x[:, 0])
            case "mean":
                return self.unfold(x.mean(1))
            case "max":
                return self.unfold(x.amax(1))
        return self.unfold(x.flatten(1))


class SeriesFeaturesHead(SeriesHead):
    """The vectors themselves: (B*C, P, D) -> (B, C, P, D)."""

    def __init__(self, d_model: int, what: spec.FeaturesSpec, source: spec.SeriesPatchesSpec) -> None:
        super().__init__(what, source)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        return self.unfold(x)


class ForecastHead(SeriesHead):
    """The next N values of every channel, in the series' own units: (B*C, P, D) -> (B, N, C).

    With a distribution, its parameters, each (B, N, C), for values in the series' own units.
    """

    def __init__(self, d_model: int, what: spec.ForecastSpec, source: spec.SeriesPatchesSpec) -> None:
        super().__init__(what, source)
        width = d_model * (source.prefix + source.num_patches) if what.pool == "flatten" else d_model
        shared = what.projection == "shared"
        layers = [
            value_projection(width, what.prediction_length, what.distribution)
            for _ in range(1 if shared else source.channels)
        ]
        self.out = layers[0] if shared else nn.ModuleList(layers)

    def forward(
        self, x: Tensor, context: HeadContext, *, obs: Observer | None = None
    ) -> Tensor | DistributionParameters:
        vectors = self.dropout(tap(obs, "pooled", self.pooled(x)))  # (B, C, W)
        found: Tensor | DistributionParameters  # (B, C, N), or parameters of this shape
        if isinstance(self.out, nn.ModuleList):
            each = [layer(vectors[:, c]) for c, layer in enumerate(self.out)]
            found = torch.stack(each, 1) if isinstance(each[0], Tensor) else stack_parameters(each, 1)
        else:
            found = self.out(vectors)
        assert context.loc is not None and context.scale is not None
        if isinstance(found, Tensor):
            return tap(obs, "forecast", found.transpose(1, 2) * context.scale + context.loc)
        found = map_parameters(found, lambda _, tensor: tensor.transpose(1, 2)).unscale(
            context.loc, context.scale
        )
        return map_parameters(found, lambda name, tensor: tap(obs, name, tensor))


class SeriesClassifyHead(SeriesHead):
    """Scores off the channels' pooled vectors laid side by side: (B*C, P, D) -> (B, labels)."""

    def __init__(self, d_model: int, what: spec.SeriesClassifySpec, source: spec.SeriesPatchesSpec) -> None:
        super().__init__(what, source)
        self.out = nn.Linear(source.channels * d_model, what.num_labels)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        vector = tap(obs, "pooled", self.pooled(x).flatten(1))  # (B, C*D)
        return tap(obs, "logits", self.out(self.dropout(vector)))


class SeriesRegressHead(SeriesHead):
    """Numbers, or a distribution's parameters for them, off all channels: (B*C, P, D) -> (B, targets)."""

    def __init__(self, d_model: int, what: spec.SeriesRegressSpec, source: spec.SeriesPatchesSpec) -> None:
        super().__init__(what, source)
        self.output_range = what.output_range
        self.out = value_projection(source.channels * d_model, what.num_targets, what.distribution)

    def forward(
        self, x: Tensor, context: HeadContext, *, obs: Observer | None = None
    ) -> Tensor | DistributionParameters:
        vector = tap(obs, "pooled", self.pooled(x).flatten(1))  # (B, C*D)
        found: Tensor | DistributionParameters = self.out(self.dropout(vector))
        if not isinstance(found, Tensor):
            return map_parameters(found, lambda name, tensor: tap(obs, name, tensor))
        if self.output_range is not None:
            low, high = self.output_range
            found = torch.sigmoid(found) * (high - low) + low
        return tap(obs, "targets", found)


class PatchReconstructHead(SeriesHead):
    """Each patch's own scaled values again: (B*C, P, D) -> (B, C, patches, L)."""

    def __init__(self, d_model: int, what: spec.PatchReconstructSpec, source: spec.SeriesPatchesSpec) -> None:
        super().__init__(what, source)
        self.prefix = source.prefix
        self.out = nn.Linear(d_model, source.patch_length)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        return tap(obs, "patches", self.unfold(self.out(self.dropout(x[:, self.prefix :]))))


SERIES_HEADS: dict[type, type[nn.Module]] = {
    spec.FeaturesSpec: SeriesFeaturesHead,
    spec.ForecastSpec: ForecastHead,
    spec.SeriesClassifySpec: SeriesClassifyHead,
    spec.SeriesRegressSpec: SeriesRegressHead,
    spec.PatchReconstructSpec: PatchReconstructHead,
}

"""Series of numbers as patches: from values to vectors, and from vectors to forecasts, labels, values.

Every channel is a sequence of its own: channels are folded into the batch on the way in, and each head
unfolds them. B series, C channels, T time steps, P patches (and prefix tokens), L patch length, D d_model.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.core.backend import Dropout
from glassformer.core.distributions import Distribution, Parameters, mapped, numbers, stacked
from glassformer.core.embeddings import Embedded
from glassformer.core.heads import Context
from glassformer.core.observe import Observer, tap
from glassformer.core.positions import sinusoids
from glassformer.errors import ShapeError

Scaling = Literal["std", "mean", "none"]
Pool = Literal["flatten", "mean", "max", "first"]
_SMALLEST_VARIANCE, _SMALLEST_MEAN = 1e-5, 1e-10


def scaling_of(values: Tensor, observed: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
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


def patches_of(values: Tensor, patch_length: int, stride: int) -> Tensor:
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
    """Series scaled and cut into patches, each a vector, after learned prefix tokens, plus positions.

    >>> read = SeriesInput(16, context_length=20, patch_length=8, stride=4, channels=3)
    >>> read(torch.randn(2, 20, 3)).x.shape
    torch.Size([6, 4, 16])
    """

    def __init__(
        self,
        d_model: int,
        *,
        context_length: int,
        patch_length: int,
        stride: int,
        channels: int,
        position: Literal["learned", "sincos"] = "sincos",
        scaling: Scaling = "std",
        embedding: Literal["shared", "per_channel"] = "shared",
        prefix: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.context_length, self.patch_length, self.stride = context_length, patch_length, stride
        self.channels, self.scaling = channels, scaling
        rows = prefix + (context_length - patch_length) // stride + 1
        self.patch: nn.Linear | nn.ModuleList
        if embedding == "shared":
            self.patch = nn.Linear(patch_length, d_model)
        else:
            self.patch = nn.ModuleList(nn.Linear(patch_length, d_model) for _ in range(channels))
        self.prefix = nn.Parameter(torch.zeros(1, prefix, d_model)) if prefix else None
        self.position: Tensor
        if position == "learned":
            self.position = nn.Parameter(torch.zeros(rows, d_model))
        else:
            self.register_buffer("position", torch.empty(rows, d_model))
            if not self.position.is_meta:
                self.position.copy_(small_sinusoids(rows, d_model))
        self.dropout = Dropout(dropout)

    def forward(
        self,
        values: Tensor,
        *,
        observed: Tensor | None = None,
        hidden: Tensor | None = None,
        obs: Observer | None = None,
    ) -> Embedded:
        """values (B, T, C) -> vectors (B*C, P, D), with the shift and scale (B, 1, C) taken out.

        `observed` (B, T, C) is False where a value is missing; what stands there is not looked at.
        `hidden` (B, C, patches) is True for patches to be blanked after scaling, to be guessed back.
        """
        values, loc, scale = self._scaled(values, observed)
        values = tap(obs, "scaled", values)  # (B, T, C)
        patches = patches_of(values, self.patch_length, self.stride)  # (B, C, patches, L)
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
        return Embedded(tap(obs, "out", x), loc, scale)

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
        loc, scale = scaling_of(values, observed, self.scaling)
        return (values - loc) / scale, loc, scale

    def _vectors(self, patches: Tensor) -> Tensor:
        """(B, C, P, L) -> (B, C, P, D), in the precision of the weights."""
        if isinstance(self.patch, nn.Linear):
            x: Tensor = self.patch(patches.to(self.patch.weight.dtype))
            return x
        pieces = patches.to(self.position.dtype).unbind(1)  # a channel each (B, P, L)
        return torch.stack([layer(piece) for layer, piece in zip(self.patch, pieces, strict=True)], 1)


def unfolded(x: Tensor, channels: int) -> Tensor:
    """Channels apart again: (B*C, ...) -> (B, C, ...)."""
    return x.reshape(x.shape[0] // channels, channels, *x.shape[1:])


def pooled(x: Tensor, channels: int, pool: Pool) -> Tensor:
    """Vectors (B*C, P, D) -> one for each channel (B, C, D), or (B, C, P*D) when "flatten"."""
    match pool:
        case "first":
            one = x[:, 0]
        case "mean":
            one = x.mean(1)
        case "max":
            one = x.amax(1)
        case "flatten":
            one = x.flatten(1)
    return unfolded(one, channels)


class SeriesFeaturesHead(nn.Module):
    """The vectors themselves, channels apart again: (B*C, P, D) -> (B, C, P, D).

    >>> SeriesFeaturesHead(channels=3)(torch.randn(6, 5, 16), Context()).shape
    torch.Size([2, 3, 5, 16])
    """

    def __init__(self, *, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor:
        return unfolded(x, self.channels)


class ForecastHead(nn.Module):
    """The next N values of every channel, in the series' own units: (B*C, P, D) -> (B, N, C).

    With a distribution, its parameters, each (B, N, C), for values in the series' own units.

    >>> head = ForecastHead(16, prediction_length=7, channels=3, rows=5)
    >>> head(torch.randn(6, 5, 16), Context(loc=torch.zeros(2, 1, 3), scale=torch.ones(2, 1, 3))).shape
    torch.Size([2, 7, 3])
    """

    def __init__(
        self,
        d_model: int,
        *,
        prediction_length: int,
        channels: int,
        rows: int,
        pool: Pool = "flatten",
        projection: Literal["shared", "per_channel"] = "shared",
        distribution: Distribution = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.channels, self.pool = channels, pool
        width = d_model * rows if pool == "flatten" else d_model
        layers = [
            numbers(width, prediction_length, distribution)
            for _ in range(1 if projection == "shared" else channels)
        ]
        self.dropout = Dropout(dropout)
        self.out = layers[0] if projection == "shared" else nn.ModuleList(layers)

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor | Parameters:
        vectors = self.dropout(tap(obs, "pooled", pooled(x, self.channels, self.pool)))  # (B, C, W)
        told = self._told(vectors)  # (B, C, N), or parameters of this shape
        assert context.loc is not None and context.scale is not None
        if isinstance(told, Tensor):
            return tap(obs, "forecast", told.transpose(1, 2) * context.scale + context.loc)
        told = mapped(told, lambda _, tensor: tensor.transpose(1, 2))
        told = told.undone(context.loc, context.scale)
        return mapped(told, lambda name, tensor: tap(obs, name, tensor))

    def _told(self, vectors: Tensor) -> Tensor | Parameters:
        told: Tensor | Parameters
        if not isinstance(self.out, nn.ModuleList):
            told = self.out(vectors)
            return told
        each = [layer(vectors[:, c]) for c, layer in enumerate(self.out)]
        return torch.stack(each, 1) if isinstance(each[0], Tensor) else stacked(each, 1)


class SeriesClassifyHead(nn.Module):
    """Scores off the channels' pooled vectors laid side by side: (B*C, P, D) -> (B, labels).

    >>> SeriesClassifyHead(16, num_labels=4, channels=3)(torch.randn(6, 5, 16), Context()).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        d_model: int,
        *,
        num_labels: int,
        channels: int,
        pool: Literal["mean", "max", "first"] = "mean",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.channels, self.pool = channels, pool
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(channels * d_model, num_labels)

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor:
        vector = tap(obs, "pooled", pooled(x, self.channels, self.pool).flatten(1))  # (B, C*D)
        return tap(obs, "logits", self.out(self.dropout(vector)))


class SeriesRegressHead(nn.Module):
    """Numbers, or a distribution's parameters for them, off all channels: (B*C, P, D) -> (B, targets).

    >>> SeriesRegressHead(16, num_targets=4, channels=3)(torch.randn(6, 5, 16), Context()).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        d_model: int,
        *,
        num_targets: int,
        channels: int,
        pool: Literal["mean", "max", "first"] = "mean",
        distribution: Distribution = "none",
        output_range: tuple[float, float] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.channels, self.pool, self.output_range = channels, pool, output_range
        self.dropout = Dropout(dropout)
        self.out = numbers(channels * d_model, num_targets, distribution)

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor | Parameters:
        vector = tap(obs, "pooled", pooled(x, self.channels, self.pool).flatten(1))  # (B, C*D)
        told: Tensor | Parameters = self.out(self.dropout(vector))
        if isinstance(told, Tensor):
            if self.output_range is not None:
                low, high = self.output_range
                told = torch.sigmoid(told) * (high - low) + low
            return tap(obs, "targets", told)
        return mapped(told, lambda name, tensor: tap(obs, name, tensor))


class PatchReconstructHead(nn.Module):
    """Each patch's own scaled values again: (B*C, P, D) -> (B, C, patches, L).

    >>> PatchReconstructHead(16, patch_length=8, channels=3)(torch.randn(6, 5, 16), Context()).shape
    torch.Size([2, 3, 5, 8])
    """

    def __init__(
        self, d_model: int, *, patch_length: int, channels: int, prefix: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.channels, self.prefix = channels, prefix
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(d_model, patch_length)

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Tensor:
        values = self.out(self.dropout(x[:, self.prefix :]))
        return tap(obs, "patches", unfolded(values, self.channels))

"""A copy of a model whose position ids are all multiplied by a factor, for every position scheme.

Only the modules on the path to the positions are copied; everything else, and all weights, are shared with
the original. A sinusoidal table is recomputed at the new positions, a learned one is interpolated, rotary
frequencies and ALiBi slopes are scaled, and relative distances are rounded. T positions, D d_model.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from glassformer.core.embeddings import ImageInput
from glassformer.core.positions import (
    AlibiBias,
    LearnedPositions,
    PositionTerms,
    RelativeBias,
    RotaryPositions,
    SinusoidalPositions,
    sinusoids,
)
from glassformer.core.series import SeriesInput
from glassformer.errors import InvalidValueError, UnsupportedError

Part = TypeVar("Part", bound=nn.Module)


def stretch_positions(model: Part, *, stack: str, embed: str, stretch: float, length: int) -> Part:
    """The model with the positions of one stack, and of the `embed` that feeds it, stretched for T tokens."""
    source, blocks = getattr(model, embed), getattr(model, stack)
    parts: dict[str, nn.Module] = {}
    if (stretched := _stretch_embedding(source, stretch, length)) is not None:
        parts[embed] = stretched
    if blocks.position is not None:
        parts[stack] = replace_parts(blocks, position=_stretch_attention_positions(blocks.position, stretch))
    if not parts:
        raise UnsupportedError(f"the {stack}", "stretched positions: it has none")
    return replace_parts(model, **parts)


def replace_parts(module: Part, **parts: Any) -> Part:
    """A shallow copy of one module with other submodules, parameters, buffers or attributes."""
    result = copy.copy(module)
    result._modules, result._parameters = dict(module._modules), dict(module._parameters)
    result._buffers = dict(module._buffers)
    for name, part in parts.items():
        if name in result._parameters:
            result._parameters[name] = nn.Parameter(part, requires_grad=False)
        elif name in result._buffers:
            result._buffers[name] = part
        elif isinstance(part, nn.Module):
            result._modules[name] = part
        else:
            setattr(result, name, part)
    return result


def _stretch_embedding(embed: nn.Module, stretch: float, length: int) -> nn.Module | None:
    """The embedding with its added positions stretched; None if it adds none."""
    position: Any = getattr(embed, "position", None)
    if isinstance(embed, ImageInput):
        rows, columns = (
            size // patch for size, patch in zip(embed.image_size, embed.patch_size, strict=True)
        )
        first = embed.prefix.shape[1]
        grid = position[0, first:].unflatten(0, (rows, columns))  # (rows, columns, D)
        grid = _interpolate(grid, stretch, rows)
        grid = _interpolate(grid.transpose(0, 1), stretch, columns).transpose(0, 1)
        return replace_parts(embed, position=torch.cat((position[:, :first], grid.flatten(0, 1)[None]), 1))
    if isinstance(embed, SeriesInput):
        first = 0 if embed.prefix is None else embed.prefix.shape[1]
        moved = _interpolate(position[first:], stretch, len(position) - first)
        return replace_parts(embed, position=torch.cat((position[:first], moved)))
    if isinstance(position, SinusoidalPositions):
        positions = torch.arange(length, dtype=torch.float64) * stretch
        table = sinusoids(positions, position.d_model, position.layout, position.base).to(position.table)
        return replace_parts(embed, position=replace_parts(position, table=table, max_len=length))
    if isinstance(position, LearnedPositions):
        before = position.weight[: position.offset]
        moved = _interpolate(position.weight[position.offset :], stretch, length)
        weight = torch.cat((before, moved))
        return replace_parts(embed, position=replace_parts(position, weight=weight, max_len=length))
    return None


def _interpolate(table: Tensor, stretch: float, length: int) -> Tensor:
    """Rows 0, stretch, 2 * stretch, ... of a table (N, ...), interpolated linearly: (T, ...)."""
    at = torch.arange(length, dtype=torch.float64, device=table.device) * stretch
    if length and float(at[-1]) > len(table) - 1:
        limit = (len(table) - 1) / max(length - 1, 1)
        raise InvalidValueError(
            "stretch", stretch, f"at most {limit:.3g}: the model has {len(table)} learned positions"
        )
    low = at.floor().long()
    share = (at - low).to(table.dtype).view(-1, *[1] * (table.dim() - 1))
    with torch.no_grad():
        return torch.lerp(table[low], table[(low + 1).clamp(max=len(table) - 1)], share)


def _stretch_attention_positions(position: nn.Module, stretch: float) -> nn.Module:
    """The position scheme of an attention stack, stretched."""
    if isinstance(position, RotaryPositions):
        return replace_parts(position, freq=position.freq * stretch)
    if isinstance(position, AlibiBias):
        return replace_parts(position, slopes=position.slopes * stretch)
    assert isinstance(position, RelativeBias)
    return _StretchedRelativeBias(position, stretch)


class _StretchedRelativeBias(RelativeBias):
    """A relative bias that shares its weights and multiplies every distance."""

    def __init__(self, other: RelativeBias, stretch: float) -> None:
        nn.Module.__init__(self)
        self.buckets, self.max_distance, self.both_ways = other.buckets, other.max_distance, other.both_ways
        self.weight, self.stretch = other.weight, stretch

    def at(self, distance: Tensor) -> PositionTerms:
        return super().at((distance * self.stretch).round().long())

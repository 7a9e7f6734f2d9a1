"""A model in which every token stands `stretch` times as far along, by whatever scheme it knows positions.

The model itself stays as it is, for others read with it: the parts on the way to the positions are copied,
one module each, and share every other part and all weights. A sinusoidal table is worked out at the new
places, a learned one is read between its rows, rotary angles and the slopes of ALiBi grow, and relative
distances are rounded to whole ones. T positions, D d_model.
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
    sinusoids_at,
)
from glassformer.core.series import SeriesInput
from glassformer.errors import GlassformerError

Part = TypeVar("Part", bound=nn.Module)


def stretched(model: Part, *, stack: str, embed: str, stretch: float, length: int) -> Part:
    """The model with the positions of one stack, and of the `embed` that feeds it, stretched for T tokens."""
    source, blocks = getattr(model, embed), getattr(model, stack)
    parts: dict[str, nn.Module] = {}
    if (found := _added(source, stretch, length)) is not None:
        parts[embed] = found
    if blocks.position is not None:
        parts[stack] = with_parts(blocks, position=_inside(blocks.position, stretch))
    if not parts:
        raise GlassformerError(f"the {stack} knows no positions, so there is nothing to stretch")
    return with_parts(model, **parts)


def with_parts(module: Part, **parts: Any) -> Part:
    """A copy of one module with other parts, weights or buffers; all else is shared."""
    made = copy.copy(module)
    made._modules, made._parameters = dict(module._modules), dict(module._parameters)
    made._buffers = dict(module._buffers)
    for name, part in parts.items():
        if name in made._parameters:
            made._parameters[name] = nn.Parameter(part, requires_grad=False)
        elif name in made._buffers:
            made._buffers[name] = part
        elif isinstance(part, nn.Module):
            made._modules[name] = part
        else:
            setattr(made, name, part)
    return made


def _added(embed: nn.Module, stretch: float, length: int) -> nn.Module | None:
    """The input with its added positions stretched; None where it adds none."""
    position: Any = getattr(embed, "position", None)
    if isinstance(embed, ImageInput):
        rows, columns = (
            size // patch for size, patch in zip(embed.image_size, embed.patch_size, strict=True)
        )
        first = embed.prefix.shape[1]
        grid = position[0, first:].unflatten(0, (rows, columns))  # (rows, columns, D)
        grid = _between(grid, stretch, rows)
        grid = _between(grid.transpose(0, 1), stretch, columns).transpose(0, 1)
        return with_parts(embed, position=torch.cat((position[:, :first], grid.flatten(0, 1)[None]), 1))
    if isinstance(embed, SeriesInput):
        first = 0 if embed.prefix is None else embed.prefix.shape[1]
        moved = _between(position[first:], stretch, len(position) - first)
        return with_parts(embed, position=torch.cat((position[:first], moved)))
    if isinstance(position, SinusoidalPositions):
        places = torch.arange(length, dtype=torch.float64) * stretch
        table = sinusoids_at(places, position.d_model, position.layout, position.base).to(position.table)
        return with_parts(embed, position=with_parts(position, table=table, max_len=length))
    if isinstance(position, LearnedPositions):
        before = position.weight[: position.offset]
        moved = _between(position.weight[position.offset :], stretch, length)
        weight = torch.cat((before, moved))
        return with_parts(embed, position=with_parts(position, weight=weight, max_len=length))
    return None


def _between(table: Tensor, stretch: float, length: int) -> Tensor:
    """The first T places of a table (N, ...), read at `stretch` times their number, between rows by share."""
    at = torch.arange(length, dtype=torch.float64, device=table.device) * stretch
    if length and float(at[-1]) > len(table) - 1:
        raise GlassformerError(
            f"position {length - 1} times {stretch:g} lies beyond the model's table of {len(table)} "
            f"positions; stretch by at most {(len(table) - 1) / max(length - 1, 1):.3g}"
        )
    low = at.floor().long()
    share = (at - low).to(table.dtype).view(-1, *[1] * (table.dim() - 1))
    with torch.no_grad():
        return torch.lerp(table[low], table[(low + 1).clamp(max=len(table) - 1)], share)


def _inside(position: nn.Module, stretch: float) -> nn.Module:
    """Positions that act inside attention, stretched."""
    if isinstance(position, RotaryPositions):
        return with_parts(position, freq=position.freq * stretch)
    if isinstance(position, AlibiBias):
        return with_parts(position, slopes=position.slopes * stretch)
    assert isinstance(position, RelativeBias)
    return _Farther(position, stretch)


class _Farther(RelativeBias):
    """Another's relative bias, of distances `stretch` times as far."""

    def __init__(self, other: RelativeBias, stretch: float) -> None:
        nn.Module.__init__(self)
        self.buckets, self.max_distance, self.both_ways = other.buckets, other.max_distance, other.both_ways
        self.weight, self.stretch = other.weight, stretch

    def at(self, distance: Tensor) -> PositionTerms:
        return super().at((distance * self.stretch).round().long())

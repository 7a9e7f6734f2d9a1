"""Decode latents in overlapping tiles, whose borders are blended.

A tile needs less memory than the whole image, but its group norms see only the tile. So the result is not
exact, and tiles are only used for images that would need too much memory otherwise.

B images, C and L channels of images and latents, h and w rows and columns of the latents.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def decode_in_tiles(
    decode: Callable[[Tensor], Tensor],
    latents: Tensor,
    *,
    tile: int = 64,
    overlap: int = 16,
    on_tile: Callable[[], None] = lambda: None,
) -> Tensor:
    """Decode latents (B, L, h, w) -> images (B, C, H, W) with tiles of at most `tile` rows and columns.

    overlap: rows and columns that neighbors share at least. on_tile: called before each tile.

    >>> x = torch.randn(1, 3, 20, 9)
    >>> double = torch.nn.Upsample(scale_factor=2)
    >>> doubled = decode_in_tiles(double, x, tile=8, overlap=2)
    >>> torch.allclose(doubled[:, :, ::2, ::2], x), tuple(doubled.shape)
    (True, (1, 3, 40, 18))
    """
    images = total = None
    height, width = latents.shape[-2:]
    for top in tile_starts(height, tile, overlap):
        for left in tile_starts(width, tile, overlap):
            on_tile()
            part = decode(latents[..., top : top + tile, left : left + tile])
            scale = part.shape[-1] // min(tile, width)
            rows, columns = (_ramp(side, overlap * scale, part) for side in part.shape[-2:])
            weight = rows[:, None] * columns
            if images is None or total is None:
                images = part.new_zeros(*part.shape[:-2], height * scale, width * scale)
                total = part.new_zeros(height * scale, width * scale)
            y, x = top * scale, left * scale
            images[..., y : y + part.shape[-2], x : x + part.shape[-1]] += part * weight
            total[y : y + part.shape[-2], x : x + part.shape[-1]] += weight
    assert images is not None and total is not None  # there is at least one tile
    return images / total


def tile_starts(length: int, tile: int, overlap: int) -> list[int]:
    """Return where tiles start: as few as possible, evenly spaced, with at least this overlap.

    >>> tile_starts(20, 8, 2), tile_starts(8, 8, 2)
    ([0, 6, 12], [0])
    """
    count = max(1, -(-(length - overlap) // (tile - overlap)))
    return [round(n * max(0, length - tile) / max(1, count - 1)) for n in range(count)]


def _ramp(length: int, overlap: int, like: Tensor) -> Tensor:
    """Return weights that rise from the border of a tile over the overlap: (length,)."""
    position = torch.arange(length, device=like.device, dtype=like.dtype)
    distance = torch.minimum(position, length - 1 - position) + 0.5
    return (distance / overlap).clamp(max=1.0)

"""Masks as run-length encodings (RLE) and polygons, equal to pycocotools bit by bit.

COCO runs go down the columns: the first count is of zeros, the next of ones, and so on. In JSON the counts
are a list, or a compressed string: differences to the count before last, in groups of five bits.
H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.data.store import positions_in_rows

Mask = NDArray[np.bool_]  # (H, W)
Counts = NDArray[np.int64]
_POLYGON_SCALE = 5  # pycocotools rasterizes edges on a grid that is finer by this factor
_MAX_CROSSINGS = 1 << 20  # of edges and columns that are computed at a time


def mask_to_counts(mask: Mask) -> Counts:
    """Return the run lengths of a mask (H, W), column by column, starting with zeros.

    >>> mask_to_counts(np.array([[0, 1], [1, 1]], bool)).tolist()
    [1, 3]
    """
    flat = np.concatenate(([False], mask.ravel(order="F")))
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(np.concatenate(([0], changes, [mask.size])))


def counts_to_mask(counts: Counts, height: int, width: int) -> Mask:
    """Return the mask (H, W) of these run lengths; their sum must be H * W."""
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(width, height).T


def encode_counts(counts: Counts) -> str:
    """Compress run lengths to COCO's string."""
    characters: list[str] = []
    values = counts.tolist()
    for n, value in enumerate(values):
        value -= values[n - 2] if n > 2 else 0
        while True:
            group, value = value & 31, value >> 5
            more = value != (-1 if group & 16 else 0)
            characters.append(chr(48 + (group | 32 if more else group)))
            if not more:
                break
    return "".join(characters)


def decode_counts(text: str) -> Counts:
    """Decompress COCO's string to run lengths; raise ValueError if it is damaged."""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64 or shift > 60:
            raise ValueError("has a damaged mask")
        value |= (group & 31) << shift
        shift += 5
        if not group & 32:
            if group & 16:
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise ValueError("has a damaged mask")
    return np.array(counts, np.int64)


def encode_rle(mask: Mask) -> dict[str, Any]:
    """Return a mask as COCO's compressed RLE: `{"size": [H, W], "counts": "..."}`.

    >>> encode_rle(np.eye(3, dtype=bool))
    {'size': [3, 3], 'counts': '013000'}
    """
    return {"size": list(mask.shape), "counts": encode_counts(mask_to_counts(mask))}


def rle_counts(rle: Any, height: int, width: int) -> Counts:
    """Return the run lengths of COCO's RLE, compressed or not.

    Raises ValueError, with a predicate as message, unless it is valid and of an image of this size.
    """
    counts = rle.get("counts")
    if rle.get("size") != [height, width]:
        raise ValueError(f"has a mask of another size than the image, {width} x {height}")
    wrong_sum = f"has a mask whose run lengths do not add up to {height * width:,} pixels, {width} x {height}"
    try:
        if isinstance(counts, str):
            runs = decode_counts(counts)
        elif isinstance(counts, list) and all(type(count) is int for count in counts):
            runs = np.array(counts, np.int64)
        else:
            raise ValueError("has a mask whose counts are neither integers nor a string")
    except OverflowError:
        raise ValueError(wrong_sum) from None
    if (runs < 0).any():
        raise ValueError("has a mask with a negative run length")
    if (runs > height * width).any() or runs.sum() != height * width:  # the sum alone could overflow
        raise ValueError(wrong_sum)
    return runs


def polygons_to_mask(polygons: Sequence[Sequence[float]], height: int, width: int) -> Mask:
    """Return the union of polygons, each a flat list x, y, x, y, ... in pixels, as a mask (H, W)."""
    mask = np.zeros((height, width), bool)
    for polygon in polygons:
        mask |= _fill(np.asarray(polygon, np.float64).reshape(-1, 2), height, width)
    return mask


def _fill(points: NDArray[np.float64], height: int, width: int) -> Mask:
    """Fill a polygon. points: (N, 2).

    The outline is traced on a grid five times as fine. Where it passes from one column of pixels to the next,
    it toggles that column from the row of the crossing on. Only these crossings are computed, and only of the
    columns of the image, so that time and memory do not depend on how far the polygon reaches outside.
    """
    corners = (points * _POLYGON_SCALE + 0.5).astype(np.int64)
    ends = np.roll(corners, -1, 0)
    edges = max(1, _MAX_CROSSINGS // width)  # at a time; an edge crosses a column at most once
    toggles = np.empty(0, np.int64)
    for first in range(0, len(corners), edges):
        column, top = _crossings(corners[first : first + edges], ends[first : first + edges], width)
        row = np.ceil(np.clip((top + 0.5) / _POLYGON_SCALE - 0.5, 0, height)).astype(np.int64)
        positions, counts = np.unique(np.concatenate((toggles, column * height + row)), return_counts=True)
        toggles = positions[counts % 2 == 1]  # two toggles at the same position have no effect
    return counts_to_mask(np.diff(toggles, prepend=0, append=height * width), height, width)


def _crossings(
    start: NDArray[np.int64], end: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the columns that edges enter, and the smaller fine row of the two grid points there: (M,) each.

    start, end: (N, 2), on the fine grid. An edge has one grid point per step along its longer axis.
    """
    steep = (abs(end - start) @ (-1, 1) > 0).astype(np.int64)[:, None]  # (N, 1), the longer axis
    swap = np.take_along_axis(start, steep, 1) > np.take_along_axis(end, steep, 1)
    first, last = np.where(swap, end, start), np.where(swap, start, end)
    lengths = np.take_along_axis(last - first, steep, 1)[:, 0]  # steps of each edge
    slopes = np.take_along_axis(last - first, 1 - steep, 1)[:, 0] / np.maximum(1, lengths)
    # Column c begins between the fine columns 5c + 2 and 5c + 3.
    low, high = np.minimum(start[:, 0], end[:, 0]), np.maximum(start[:, 0], end[:, 0])
    half = _POLYGON_SCALE // 2
    lowest = np.clip(-((half - low) // _POLYGON_SCALE), 0, width)
    counts = np.maximum(0, np.clip((high - 1 - half) // _POLYGON_SCALE, -1, width - 1) - lowest + 1)
    edge = np.repeat(np.arange(len(start)), counts)  # (M,)
    column = lowest[edge] + positions_in_rows(counts)
    left = column * _POLYGON_SCALE + half
    (x, y), slope, is_steep = first[edge].T, slopes[edge], steep[edge, 0] == 1

    def across(origin: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
        return (origin + slope * step + 0.5).astype(np.int64)

    # the first step on the other side of the line; rounding may misplace a guess
    step = np.maximum(0, ((left + 0.5 - x) / np.where(is_steep, slope, 1.0)).astype(np.int64) - 1)
    for _ in range(3):
        step += (across(x, step) > left) != (slope > 0)
    flat = left - x
    return column, np.where(is_steep, y + step - 1, np.minimum(across(y, flat), across(y, flat + 1)))

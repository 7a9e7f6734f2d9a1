"""Parts of a tensor named in a line of text: `0,3,:,5:9`, one item for each dimension.

An item is a number (that dimension goes), `a:b`, `a:b:step` or `:`; dimensions without an item stay whole.
Strict: a number beyond the tensor or an empty stretch is a sentence, never quietly something else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence as Several

from glassformer.errors import GlassformerError

Item = int | slice
_ITEM = re.compile(r"(\d{1,9})|(\d{0,9}):(\d{0,9})(?::(\d{1,9}))?", re.ASCII)


def parse(text: str, shape: Several[int]) -> tuple[Item, ...]:
    """The items of the text, one for each dimension of the shape.

    >>> parse("0,2:5", (1, 8, 8))
    (0, slice(2, 5, 1), slice(0, 8, 1))
    """
    named = text.split(",") if text.strip() else []
    if len(named) > len(shape):
        raise GlassformerError(
            f"the slice has {len(named)} items and the tensor {len(shape)} dimensions {tuple(shape)}; "
            "give one item for each at most"
        )
    found = [_item(item.strip(), size, n) for n, (item, size) in enumerate(zip(named, shape, strict=False))]
    return (*found, *(slice(0, size, 1) for size in shape[len(found) :]))


def _item(text: str, size: int, dimension: int) -> Item:
    match = _ITEM.fullmatch(text)
    if match is None:
        raise GlassformerError(
            f"'{text[:40]}' is no slice of dimension {dimension}; write a number from 0, a:b, a:b:step or :"
        )
    alone, first, last, step = match.groups()
    if alone is not None:
        if int(alone) >= size:
            raise GlassformerError(
                f"dimension {dimension} has {size} places, 0 to {size - 1}; there is no {int(alone)}"
            )
        return int(alone)
    begin, end, by = int(first or 0), int(last) if last else size, int(step or 1)
    whole = begin == 0 and end == size  # of a dimension without places too
    if by < 1 or not (begin < end <= size or whole):
        raise GlassformerError(
            f"'{text[:40]}' takes nothing from dimension {dimension}, which has {size} places; "
            "begin below the end, end at most there, and step by 1 or more"
        )
    return slice(begin, end, by)


def shape_after(items: Several[Item], shape: Several[int]) -> tuple[int, ...]:
    """The shape of what the items take from a tensor of this shape.

    >>> shape_after((0, slice(2, 5, 2)), (1, 8))
    (2,)
    """
    pairs = zip(items, shape, strict=True)
    return tuple(len(range(*item.indices(size))) for item, size in pairs if isinstance(item, slice))


def count_after(items: Several[Item], shape: Several[int]) -> int:
    """How many numbers the items take."""
    return math.prod(shape_after(items, shape))

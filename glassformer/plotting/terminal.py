"""Print attention weights in a terminal, one row of shaded cells per query, and images in half blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text
from torch import Tensor

from glassformer.errors import ShapeError
from glassformer.plotting.fonts import visible

if TYPE_CHECKING:
    from PIL import Image

SHADES, PLAIN_SHADES = " ░▒▓█", " .:*#"  # from 0 to 1; the second is for ASCII-only terminals
COLOR = "rgb(38,139,210)"  # visible on white and on black
MAX_LABEL = 12


def attention_text(
    weights: Tensor, queries: Sequence[str], keys: Sequence[str], *, width: int = 80, ascii_only: bool = False
) -> Text:
    """Format weights (T, S) as lines of at most `width` columns; a last line says if keys were left out."""
    if tuple(weights.shape) != (len(queries), len(keys)):
        raise ShapeError("weights", weights.shape, f"({len(queries)}, {len(keys)}), queries and keys")
    rows = [_to_ascii(visible(q, MAX_LABEL), ascii_only) for q in queries]
    columns = [_to_ascii(visible(k, MAX_LABEL), ascii_only) for k in keys]
    margin = max((cell_len(row) for row in rows), default=0) + 1
    widest = max((cell_len(column) for column in columns), default=1)
    narrowest = 2 if any(cell_len(c) > 1 for column in columns for c in column) else 1
    available = (width - margin) // max(1, len(columns))
    horizontal = max(2, widest if widest <= 3 else widest + 1)  # longer labels need a gap
    cell = horizontal if horizontal <= min(9, available) else max(narrowest, min(3, available))
    shown = min(len(columns), (width - margin) // cell)
    text = Text(no_wrap=True, end="")
    for line in _heading(columns[:shown], cell):
        text.append(" " * margin + line.rstrip() + "\n", style="bold")
    for row, values in zip(rows, weights.tolist(), strict=True):
        text.append(" " * (margin - 1 - cell_len(row)) + row + " ", style="bold")
        for value in values[:shown]:
            shade = (PLAIN_SHADES if ascii_only else SHADES)[_shade_index(value)]
            text.append(shade * cell, style=COLOR)
        text.append("\n")
    if shown < len(columns):
        text.append(f"(the first {shown} of {len(columns)} keys)\n", style="dim")
    return text


def image_text(image: Image.Image, width: int) -> Text:
    """Format an image as lines of half blocks: a character shows two pixels, one above the other.

    >>> from PIL import Image
    >>> image_text(Image.new("RGB", (4, 4), "red"), width=2).plain
    '▀▀\\n'
    """
    rows = max(1, round(image.height * width / image.width / 2))
    pixels = np.asarray(image.convert("RGB").resize((width, 2 * rows)))
    text = Text(no_wrap=True, end="")
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", style="rgb({},{},{}) on rgb({},{},{})".format(*above, *below))
        text.append("\n")
    return text


def _to_ascii(shown: str, ascii_only: bool) -> str:
    if not ascii_only:
        return shown
    return shown.replace("␣", "_").replace("…", "~").encode("ascii", "backslashreplace").decode()


def _heading(columns: Sequence[str], cell: int) -> list[str]:
    """Return the labels of the keys: horizontal if they fit their cells, else vertical."""
    if all(cell_len(column) <= cell for column in columns):
        pads = [(cell - cell_len(column)) // 2 for column in columns]
        return ["".join(set_cell_size(" " * p + c, cell) for p, c in zip(pads, columns, strict=True))]
    height = max(map(len, columns))
    padded = [column.rjust(height) for column in columns]
    return ["".join(set_cell_size(column[line], cell) for column in padded) for line in range(height)]


def _shade_index(value: float) -> int:
    """Return the index of the shade for a weight; 0 (blank) only below 5 %."""
    return sum(value >= bound for bound in (0.05, 0.2, 0.45, 0.7))

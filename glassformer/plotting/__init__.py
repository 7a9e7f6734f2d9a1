"""Plot positions, masks, attention and search trees, and print attention in a terminal.

Every function returns a matplotlib figure (`save` writes it as PNG or SVG) except `attention_text`, which
returns rich text. matplotlib is imported only when a figure is drawn.
"""

from glassformer.plotting.canvas import save
from glassformer.plotting.figures import (
    attention,
    attention_grid,
    attention_map,
    attention_weights,
    mask_map,
    mask_row,
)
from glassformer.plotting.positions import positional_encoding
from glassformer.plotting.terminal import attention_text
from glassformer.plotting.tree import search_tree

__all__ = [
    "attention",
    "attention_grid",
    "attention_map",
    "attention_text",
    "attention_weights",
    "mask_map",
    "mask_row",
    "positional_encoding",
    "save",
    "search_tree",
]

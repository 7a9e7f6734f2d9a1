"""Pictures drawn from numbers: positions, masks, attention, searches; as figures and as text for a terminal.

Every function returns a matplotlib figure (`save` writes it as PNG or SVG) except `attention_text`, which
returns rich text. matplotlib is imported when a picture is drawn, not before.
"""

from glassformer.plotting.attention import attention_grid, attention_map, attention_weights
from glassformer.plotting.canvas import save
from glassformer.plotting.chances import next_token_bars
from glassformer.plotting.masks import mask_map, mask_row
from glassformer.plotting.positions import position_heatmap, position_waves
from glassformer.plotting.terminal import attention_text
from glassformer.plotting.tree import search_tree
from glassformer.plotting.wirings import wirings

__all__ = [
    "position_heatmap",
    "position_waves",
    "mask_map",
    "mask_row",
    "attention_weights",
    "attention_map",
    "attention_grid",
    "attention_text",
    "search_tree",
    "next_token_bars",
    "wirings",
    "save",
]

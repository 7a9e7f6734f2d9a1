"""A table of numbers, drawn when it is made, so that every part is usable alone."""

from __future__ import annotations

import torch
from torch import nn


def drawn(rows: int, width: int, std: float = 0.02) -> nn.Parameter:
    """A parameter (rows, width) of normal numbers; on the meta device, where there are none, only its shape.

    (Drawing on the meta device works, but makes torch import its whole compiler: two seconds at every load.)
    """
    table = nn.Parameter(torch.empty(rows, width))
    if not table.is_meta:
        nn.init.normal_(table, std=std)
    return table

"""Whether the kernels for GPUs can be had: they are written in Triton, which torch brings along for CUDA."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None

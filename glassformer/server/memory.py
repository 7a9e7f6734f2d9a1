"""Return freed memory to the system."""

from __future__ import annotations

import ctypes
import gc
import sys


def release_memory() -> None:
    """Return freed memory to the system, which the C library otherwise keeps for later requests."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)

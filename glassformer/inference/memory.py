"""How much memory is left, and how much the KV cache of a model takes."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from glassformer.core.attention import MultiHeadAttention

# limit, usage, and statistics of the memory of a container: cgroup v2, then v1
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)

# oneDNN caches half a megabyte for each of the last thousand matrix shapes, which fragments memory. Batches
# by length rarely repeat a shape, and creating an entry is cheap. A step has about ten shapes, with two
# entries each in the first cache.
ONEDNN_CACHE = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "64"}

M_ARENA_MAX = -8  # of malloc.h


def limit_onednn_cache() -> None:
    """Limit oneDNN's caches, unless the environment does; takes effect before the first multiplication."""
    for name, capacity in ONEDNN_CACHE.items():
        os.environ.setdefault(name, capacity)


def limit_malloc_arenas() -> None:
    """Let all threads allocate from two heaps of the C library; takes effect before the first thread.

    By default glibc has up to eight per core, and each keeps what its threads once needed.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
            mallopt(M_ARENA_MAX, 2)


def available_memory(device: torch.device | str = "cpu") -> int | None:
    """Return the bytes that can still be allocated on a device; None if unknown.

    On a CPU, this is the free memory of the machine or of the container, whichever is smaller.
    """
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + reserved)  # torch reuses what it has reserved
    if device.type != "cpu":
        return None
    machine = _table("/proc/meminfo").get("MemAvailable:")
    bounds = [] if machine is None else [machine * 1024]
    bounds += [bound for bound in (_container_memory(*paths) for paths in _CGROUPS) if bound is not None]
    return min(bounds, default=None)


def _container_memory(limit: str, usage: str, stat: str) -> int | None:
    try:
        most, used = int(Path(limit).read_text()), int(Path(usage).read_text())
    except (OSError, ValueError):  # no container, or the limit is "max"
        return None
    statistics = _table(stat)
    cached = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
    return max(0, most - used + cached)  # cached files are dropped when memory is needed


def _table(path: str) -> dict[str, int]:
    try:
        rows = (line.split() for line in Path(path).read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
    except OSError:
        return {}


def cache_bytes_per_token(attentions: Sequence[MultiHeadAttention], dtype: torch.dtype) -> int:
    """Return the bytes of the keys and values of one position in all these layers."""
    widths = (layer.num_kv_heads * (layer.head_dim + layer.value_dim) for layer in attentions)
    return sum(widths) * dtype.itemsize

"""Process-wide settings of a run."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from glassformer.core.backend import _onednn_linear
from glassformer.inference.memory import ONEDNN_CACHE

# Bytes in use before and after products of 200 shapes, as the allocator counts them: no noise, unlike RSS.
IN_USE = """
import ctypes
import torch
from glassformer.core.backend import linear
from glassformer.training.hardware import configure_torch
from glassformer.training.recipe import TrainingOptions

fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Counts = type("Counts", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in fields]})
counted = ctypes.CDLL(None).mallinfo2
counted.restype = Counts
configure_torch(TrainingOptions(), torch.device("cpu"))
x, weight = torch.randn(400, 128), torch.randn(256, 128)
linear(x, weight)
before = counted().uordblks
for rows in range(200, 400):
    linear(x[:rows], weight)
print(counted().uordblks - before)
"""


@pytest.mark.skipif(
    _onednn_linear is None
    or not sys.platform.startswith("linux")
    or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="needs oneDNN, and an allocator that counts",
)
def test_varying_batch_shapes_do_not_fill_memory() -> None:
    env = {name: value for name, value in os.environ.items() if name not in ONEDNN_CACHE}
    done = subprocess.run([sys.executable, "-c", IN_USE], env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 20  # 35 MB; by default 111 MB, and more for more shapes

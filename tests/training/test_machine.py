"""What a run settles for the whole process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from glassformer.core.backend import _onednn_linear
from glassformer.training.hardware import SHAPES_KEPT, settle_machine
from glassformer.training.recipe import Training

# Bytes in use before and after products of 200 shapes, as the allocator counts them: no noise, unlike RSS.
IN_USE = """
import ctypes
import torch
from glassformer.core.backend import linear
from glassformer.training.hardware import settle_machine
from glassformer.training.recipe import Training

fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Counts = type("Counts", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in fields]})
counted = ctypes.CDLL(None).mallinfo2
counted.restype = Counts
settle_machine(Training(), torch.device("cpu"))
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
def test_batches_of_ever_other_shapes_do_not_fill_the_memory() -> None:
    env = {name: value for name, value in os.environ.items() if name not in SHAPES_KEPT}
    done = subprocess.run([sys.executable, "-c", IN_USE], env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 20  # 35 MB; unsettled 111 MB, and more for more shapes


def test_how_many_shapes_the_user_keeps_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SHAPES_KEPT:
        monkeypatch.setenv(name, "7")
    settle_machine(Training(), torch.device("cpu"))
    assert {os.environ[name] for name in SHAPES_KEPT} == {"7"}

"""Low precision on a CPU is tried in a child process first."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from glassformer.core import precision
from glassformer.errors import UnsupportedError


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    precision.cpu_supports.cache_clear()
    yield
    precision.cpu_supports.cache_clear()


def answering(code: int, requested: list[Any]) -> Any:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        requested.append(command)
        return subprocess.CompletedProcess(command, code)

    return run


@pytest.mark.parametrize("code", [-4, 1])  # an illegal instruction, a Python error
def test_dtype_is_rejected_if_the_trial_process_dies(code: int, monkeypatch: Any) -> None:
    requested: list[Any] = []
    monkeypatch.setattr(precision.subprocess, "run", answering(code, requested))
    for _ in range(2):
        with pytest.raises(UnsupportedError) as caught:
            precision.resolve_dtype("bf16", "cpu")
        assert "\n" not in str(caught.value)
    assert len(requested) == 1  # tried once
    assert precision.resolve_dtype("float32", "cpu") == torch.float32  # needs no trial
    assert len(requested) == 1


def test_default_dtype_follows_the_stored_weights() -> None:
    low, high = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1)
    assert precision.resolve_dtype(None, "cpu", [high, low]) == torch.float32
    assert precision.resolve_dtype(None, "cpu", [high]) is None
    assert precision.resolve_dtype(None, "cuda", [low]) is None


def test_dtype_trial_runs_in_a_child_process() -> None:
    assert precision.cpu_supports("float32") is True  # the trial's own code is sound
    assert precision.cpu_supports("bfloat16") in (True, False)

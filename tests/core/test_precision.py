"""Low precision on a CPU is tried in a child process first, so that a trial can fail and we live."""

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


def answering(code: int, asked: list[Any]) -> Any:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        return subprocess.CompletedProcess(command, code)

    return run


@pytest.mark.parametrize("code", [-4, 1])  # an illegal instruction, a Python error
def test_a_trial_that_dies_refuses_the_precision_in_a_sentence(code: int, monkeypatch: Any) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(precision.subprocess, "run", answering(code, asked))
    for _ in range(2):
        with pytest.raises(UnsupportedError) as caught:
            precision.resolve_dtype("bf16", "cpu")
        assert "\n" not in str(caught.value)
    assert len(asked) == 1  # tried once
    assert precision.resolve_dtype("float32", "cpu") == torch.float32  # needs no trial
    assert len(asked) == 1


def test_what_is_stored_decides_where_nothing_is_asked() -> None:
    low, high = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1)
    assert precision.resolve_dtype(None, "cpu", [high, low]) == torch.float32
    assert precision.resolve_dtype(None, "cpu", [high]) is None
    assert precision.resolve_dtype(None, "cuda", [low]) is None


def test_the_real_trial_answers_and_this_process_lives() -> None:
    assert precision.cpu_supports("float32") is True  # the trial's own code is sound
    assert precision.cpu_supports("bfloat16") in (True, False)

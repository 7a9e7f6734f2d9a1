"""A checkpoint is complete or not there, whatever fails and whenever the process dies."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.training import load_checkpoint, save_checkpoint
from glassformer.training.checkpoint import CheckpointWriteError, NoIntactCheckpointError
from tests.forked import Forked


def contents(step: int) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {"a": torch.randn(17, 5, generator=generator), "b": torch.randn(3, generator=generator)},
        "optimizer": {"a.step": torch.tensor(float(step)), "a.m": torch.randn(17, 5, generator=generator)},
        "random": {"cpu": torch.randint(0, 256, (40,), dtype=torch.uint8, generator=generator)},
    }
    return tensors, {"place": [1, step, 0], "loss": 0.1 + step, "best": None}


def save(folder: Path, step: int, keep: int = 2) -> None:
    tensors, state = contents(step)
    save_checkpoint(folder, step, tensors, state, keep=keep)


def assert_is(found: Any, step: int) -> None:
    """The checkpoint found holds exactly what was saved at that step."""
    tensors, state = contents(step)
    assert found is not None and found.step == step and found.state == state
    assert found.tensors.keys() == tensors.keys()
    for group, values in tensors.items():
        assert found.tensors[group].keys() == values.keys()
        assert all(torch.equal(found.tensors[group][name], value) for name, value in values.items())


def test_newest_checkpoint_is_loaded_and_two_are_kept(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "none") is None
    for step in (1, 2, 30):
        save(tmp_path, step)
        assert_is(load_checkpoint(tmp_path), step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000002", "step-00000030"]
    assert (tmp_path / "latest").read_text() == "step-00000030\n"
    save(tmp_path, 30)  # the same step again, as after a resume
    assert_is(load_checkpoint(tmp_path), 30)


def test_a_flipped_bit_anywhere_falls_back_to_the_checkpoint_before(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    chance = random.Random(0)
    files = [p for p in (tmp_path / "step-00000002").rglob("*") if p.is_file()]
    for path in files:
        whole = path.read_bytes()
        for bit in [0, len(whole) * 8 - 1] + [chance.randrange(len(whole) * 8) for _ in range(20)]:
            broken = bytearray(whole)
            broken[bit // 8] ^= 1 << bit % 8
            path.write_bytes(broken)
            found = load_checkpoint(tmp_path)
            assert_is(found, 1)
            assert len(found.damaged) == 1 and "step-00000002" in found.damaged[0]
        path.write_bytes(whole)
    assert_is(load_checkpoint(tmp_path), 2)
    shutil.rmtree(tmp_path / "step-00000001")
    files[0].unlink()
    with pytest.raises(NoIntactCheckpointError):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "rename", "replace", "mkdir", "open"])
def test_any_failing_system_call_leaves_the_earlier_checkpoint(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of a save failed once, as on a full or read-only disk, until a save gets through."""
    save(tmp_path, 1)
    real: Callable[..., Any] = getattr(os, call)
    failures = 0
    for number in range(200):
        seen = [0]

        def failing(*args: Any, seen: list[int] = seen, number: int = number, **more: Any) -> Any:
            seen[0] += 1
            if seen[0] == number + 1:
                raise OSError(28, "No space left on device")
            return real(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                save(tmp_path, 2)
                done = True
            except CheckpointWriteError as error:
                done = False
                failures += 1
                assert "No space left" in error.reason
        found = load_checkpoint(tmp_path)
        assert found is not None
        assert_is(found, 2 if done or found.step == 2 else 1)
        if done and seen[0] <= number:
            break
        shutil.rmtree(tmp_path / "step-00000002", ignore_errors=True)
    assert failures >= 1 and done
    save(tmp_path, 3)
    assert not list(tmp_path.glob(".step-*"))  # what the failures left is gone


def save_for_ever(folder: Path, step: int) -> None:
    while True:
        step += 1
        save(folder, step)
        print(step)


def test_sigkill_at_any_moment_loses_no_saved_checkpoint(tmp_path: Path) -> None:
    """SIGKILL at random moments of a loop that does nothing but save; what it reported saved is there."""
    chance = random.Random(1)
    step = 0
    for n in range(12):
        child = Forked(partial(save_for_ever, tmp_path, step), tmp_path / f"child {n}")
        child.until(lambda child=child: child.out)  # it saves by now
        time.sleep(chance.uniform(0.0, 0.25))
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        promised = max(map(int, child.out.split()), default=step)
        found = load_checkpoint(tmp_path)
        if promised:
            assert found is not None and found.step >= promised
            assert_is(found, found.step)
            assert not found.damaged
            step = found.step
    assert step > 0

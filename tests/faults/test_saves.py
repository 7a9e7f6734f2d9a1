"""A disk that is full, read-only or broken: the earlier checkpoint stays, and the save says what happened."""

from __future__ import annotations

import errno
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.training.checkpoint import CheckpointWriteError, load_checkpoint, save_checkpoint
from glassformer.weights import checksums
from tests.faults.disk import Disk, on_disk
from tests.faults.scale import trials

pytestmark = pytest.mark.slow
Saved = tuple[int, int]  # step, and which save of that step

# What was saved before, and the save that meets the fault.
SAVES: dict[str, tuple[list[Saved], Saved]] = {
    "first": ([], (1, 0)),
    "next": ([(1, 0), (2, 0)], (3, 0)),
    "again": ([(1, 0)], (1, 1)),
}


def contents(saved: Saved, width: int) -> dict[str, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1000 * saved[0] + saved[1])
    return {
        "model": {"a": torch.randn(width, 4, generator=generator), "b": torch.randn(3, generator=generator)},
        "optimizer": {"a.m": torch.randn(width, generator=generator)},
    }


def save(folder: Path, saved: Saved, *, width: int = 4) -> None:
    state = {"attempt": saved[1], "width": width}
    save_checkpoint(folder, saved[0], contents(saved, width), state)


def loaded(folder: Path) -> Saved | None:
    """Which save is loaded; every number must be what was saved."""
    checkpoint = load_checkpoint(folder)
    if checkpoint is None:
        return None
    saved = checkpoint.step, int(checkpoint.state["attempt"])
    for group, values in contents(saved, checkpoint.state["width"]).items():
        assert checkpoint.tensors[group].keys() == values.keys()
        assert all(torch.equal(checkpoint.tensors[group][name], values[name]) for name in values)
    return saved


@pytest.fixture(params=SAVES)
def meet(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes the save on a disk, checks what it left, and returns the error's reason."""
    monkeypatch.setattr(checksums, "THREADS", 1)  # so that the calls come in the same order each time
    earlier, meant = SAVES[request.param]
    source, work = tmp_path / "source", tmp_path / "work"
    source.mkdir()
    for saved in earlier:
        save(source, saved)

    def meet(**faults: Any) -> tuple[Disk, str]:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(source, work)
        disk, reason = Disk(work, **faults), ""
        try:
            with on_disk(disk):
                save(work, meant)
        except CheckpointWriteError as error:
            assert (error.step, error.folder) == (meant[0], work)
            reason = error.reason
        before = earlier[-1] if earlier else None
        assert loaded(work) in ([before, meant] if reason else [meant])
        save(work, meant)  # once the disk is repaired
        assert loaded(work) == meant
        assert not [path for path in work.iterdir() if path.name.startswith(".")]
        return disk, reason

    return meet


def test_a_full_disk_leaves_the_earlier_checkpoint(meet: Any) -> None:
    disk, _ = meet()
    places = random.Random(0).sample(range(1, disk.written - 1), trials(200))
    for failing_call in (0, *places, disk.written - 1):
        assert "No space left on device" in meet(capacity=failing_call)[1], failing_call


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_failure_of_any_call_in_a_save_keeps_earlier_checkpoints(code: int, meet: Any) -> None:
    disk, _ = meet()
    names = disk.calls
    for number in random.Random(code).sample(range(len(names)), trials(len(names))):
        _, reason = meet(fails=lambda count, number=number: count == number, code=code)
        tidying = names[number] in ("unlink", "rmdir")  # the new checkpoint is complete all the same
        assert reason or tidying, f"{names[number]} (call {number})"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 96 KiB, if mounting one is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_real_full_disk_leaves_the_earlier_checkpoint(small_disk: Path) -> None:
    save(small_disk / "checkpoints", (1, 0), width=1000)
    for _ in range(3):
        with pytest.raises(CheckpointWriteError) as caught:
            save(small_disk / "checkpoints", (2, 0), width=3000)
        assert caught.value.reason == "No space left on device"
        assert loaded(small_disk / "checkpoints") == (1, 0)
    save(small_disk / "checkpoints", (2, 0), width=1000)
    assert loaded(small_disk / "checkpoints") == (2, 0)

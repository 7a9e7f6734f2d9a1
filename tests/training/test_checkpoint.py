"""A checkpoint is complete or not there, whatever fails and whenever the process dies."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.errors import FileProblemError
from glassformer.training import load_checkpoint, save_checkpoint


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


def assert_is(checkpoint: Any, step: int) -> None:
    """The checkpoint found holds exactly what was saved at that step."""
    tensors, state = contents(step)
    assert checkpoint is not None and checkpoint.step == step and checkpoint.state == state
    assert checkpoint.tensors.keys() == tensors.keys()
    for group, values in tensors.items():
        assert checkpoint.tensors[group].keys() == values.keys()
        assert all(torch.equal(checkpoint.tensors[group][name], value) for name, value in values.items())


def test_newest_checkpoint_is_loaded_and_two_are_kept(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "none") is None
    for step in (1, 2, 30):
        save(tmp_path, step)
        assert_is(load_checkpoint(tmp_path), step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000002", "step-00000030"]
    assert (tmp_path / "latest").read_text() == "step-00000030\n"
    save(tmp_path, 30)  # the same step again, as after a resume
    assert_is(load_checkpoint(tmp_path), 30)


def test_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    chance = random.Random(0)
    files = [p for p in (tmp_path / "step-00000002").rglob("*") if p.is_file()]
    for path in files:
        content = path.read_bytes()
        for bit in [0, len(content) * 8 - 1] + [chance.randrange(len(content) * 8) for _ in range(20)]:
            broken = bytearray(content)
            broken[bit // 8] ^= 1 << bit % 8
            path.write_bytes(broken)
            checkpoint = load_checkpoint(tmp_path)
            assert_is(checkpoint, 1)
            assert len(checkpoint.damaged) == 1 and "step-00000002" in checkpoint.damaged[0]
        for cut in (b"", content[: len(content) // 2], content[:-1], content * 2, None):
            path.unlink()
            if cut is not None:
                path.write_bytes(cut)
            assert_is(load_checkpoint(tmp_path), 1)
            path.write_bytes(content)
    assert_is(load_checkpoint(tmp_path), 2)
    shutil.rmtree(tmp_path / "step-00000001")
    files[0].unlink()
    with pytest.raises(FileProblemError):
        load_checkpoint(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks up the names of open files in /proc")
def test_everything_is_on_disk_before_the_checkpoint_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure only what was fsynced is certain to be there: each file, then each folder."""
    done: list[tuple[str, Path]] = []
    fsync, rename = os.fsync, os.rename

    def record_fsync(file: int) -> None:
        done.append(("fsync", Path(os.readlink(f"/proc/self/fd/{file}"))))
        fsync(file)

    def record_rename(source: Path, target: Path) -> None:
        done.append(("rename", Path(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    save(tmp_path, 1)
    named = done.index(("rename", tmp_path / "step-00000001"))
    flushed = [path for what, path in done[:named] if what == "fsync"]
    files = [path for path in (tmp_path / "step-00000001").rglob("*") if path.is_file()]
    for path in files:  # written under a temporary name
        assert any(path.name in other.name for other in flushed), path
    for folder in ("model", "optimizer", "random"):
        assert any(path.name == folder for path in flushed)
    assert ("fsync", tmp_path) in done[named:]

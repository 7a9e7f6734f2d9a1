"""Saving over another model is all or nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer import bundle
from glassformer.weights.atomic_write import STAGED
from tests.faults.scale import trials


def test_save_that_cannot_start_keeps_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, folder = glassformer.tiny("gpt2"), tmp_path / "model"
    glassformer.save(old, folder)

    def full(*_: object, **__: object) -> None:
        raise glassformer.GlassformerError("no space left")

    monkeypatch.setattr(bundle, "save_weights", full)
    with pytest.raises(glassformer.GlassformerError, match="no space left"):
        glassformer.save(glassformer.tiny("bert"), folder)
    assert glassformer.load(folder).spec == old.spec


@pytest.mark.parametrize("calls", range(6))
def test_interrupted_save_leaves_the_old_or_the_new_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Stop after each of the steps that change the folder: renames of files, and of the complete folder."""
    old, new = glassformer.tiny("gpt2"), glassformer.load("pocket-lm")
    folder = glassformer.save(old, tmp_path / "model")
    rename, left = os.replace, iter(range(calls))

    def stop_at(self: Path, target: Path) -> Path:
        if self.parent.name == STAGED and next(left, None) is None:
            raise KeyboardInterrupt
        rename(self, target)
        return target

    def stop(self: Path, target: Path) -> Path:
        if calls == 0:
            raise KeyboardInterrupt
        return Path.replace(self, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", stop)
        patch.setattr(Path, "replace", stop_at)
        glassformer.save(new, folder)
    loaded = glassformer.load(folder)
    assert loaded.spec == (old.spec if calls == 0 else new.spec)
    assert (loaded.tokenizer is None) == (calls == 0)
    assert not [path for path in folder.iterdir() if path.name.startswith(STAGED)]


@pytest.mark.slow
def test_killed_saves_leave_the_old_or_the_new_model(tmp_path: Path) -> None:
    script = f"""
import glassformer
first, second = glassformer.load("pocket-lm"), glassformer.load("pocket-digits")
print("ready", flush=True)
while True:
    glassformer.save(first, {str(tmp_path / "model")!r})
    glassformer.save(second, {str(tmp_path / "model")!r})
"""
    glassformer.save(glassformer.load("pocket-lm"), tmp_path / "model")
    rng = random.Random(0)
    for _ in range(trials(60)):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0.01, 0.25))
        process.kill()
        process.wait()
        assert glassformer.load(tmp_path / "model").job.name in ("lm", "images")


def test_copied_weights_survive_changes_of_the_file(tmp_path: Path) -> None:
    folder = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")
    expected = {name: tensor.clone() for name, tensor in glassformer.load(folder).model.state_dict().items()}
    model = glassformer.load(folder, mmap=False).model
    os.truncate(folder / "model.safetensors", 100)  # a memory map would end the process here
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_save_replaces_the_other_layout_and_keeps_other_files(tmp_path: Path) -> None:
    folder = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model", layout="glassformer")
    mine = folder / "model-mine.safetensors"
    mine.write_text("mine")
    model = glassformer.tiny("bert")
    glassformer.save(model, folder)
    assert glassformer.load(folder).spec == model.spec
    assert not (folder / "spec.json").exists() and mine.read_text() == "mine"


def test_interrupted_first_save_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = glassformer.load("pocket-lm")

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(pipeline.tokenizer), "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        glassformer.save(pipeline, tmp_path / "model")
    with pytest.raises(glassformer.GlassformerError):
        glassformer.load(tmp_path / "model")

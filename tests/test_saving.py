"""Saving over another model is all or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import glassformer
from glassformer import bundle


def test_save_that_cannot_start_keeps_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, folder = glassformer.tiny("gpt2"), tmp_path / "model"
    glassformer.save(old, folder)

    def full(*_: object) -> None:
        raise glassformer.GlassformerError("no space left")

    monkeypatch.setattr(bundle, "save_weights", full)
    with pytest.raises(glassformer.GlassformerError, match="no space left"):
        glassformer.save(glassformer.tiny("bert"), folder)
    assert glassformer.load(folder).spec == old.spec


def test_interrupted_save_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bundle, "clear_folder", stopped)
    with pytest.raises(KeyboardInterrupt):
        glassformer.save(glassformer.tiny("gpt2"), folder)  # the same sizes, other numbers
    with pytest.raises(glassformer.GlassformerError, match="checksum"):
        glassformer.load(folder)


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

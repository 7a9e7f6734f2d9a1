"""Saving into a folder that already holds a model: all of the new one, or none of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer import api


def test_a_save_that_cannot_start_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, folder = glassformer.tiny("gpt2"), tmp_path / "model"
    glassformer.save(old, folder)

    def full(*_: object) -> None:
        raise glassformer.GlassformerError("no space left")

    monkeypatch.setattr(api, "save_weights", full)
    with pytest.raises(glassformer.GlassformerError, match="no space left"):
        glassformer.save(glassformer.tiny("bert"), folder)
    assert glassformer.load(folder).spec == old.spec


def test_a_save_that_stops_half_way_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "clear_folder", stopped)
    with pytest.raises(KeyboardInterrupt):
        glassformer.save(glassformer.tiny("gpt2"), folder)  # the same sizes, other numbers
    with pytest.raises(glassformer.GlassformerError, match="damaged"):
        glassformer.load(folder)


def test_a_save_replaces_the_other_layout_and_leaves_other_files_alone(tmp_path: Path) -> None:
    folder = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model", layout="glassformer")
    mine = folder / "model-mine.safetensors"
    mine.write_text("mine")
    model = glassformer.tiny("bert")
    glassformer.save(model, folder)
    assert glassformer.load(folder).spec == model.spec
    assert not (folder / "spec.json").exists() and mine.read_text() == "mine"


def test_what_is_no_model_or_no_folder_is_one_sentence(tmp_path: Path) -> None:
    calls: dict[str, Callable[[], object]] = {
        "not a Linear": lambda: glassformer.save(torch.nn.Linear(2, 2), tmp_path / "x"),  # type: ignore[arg-type]
        "save takes the folder": lambda: glassformer.save(glassformer.tiny("gpt2"), None),  # type: ignore[arg-type]
        "load takes a folder": lambda: glassformer.load(None),  # type: ignore[arg-type]
        "no model can be built from 3": lambda: glassformer.build(3),  # type: ignore[arg-type]
    }
    for said, call in calls.items():
        with pytest.raises(glassformer.GlassformerError, match=said):
            call()
    assert not (tmp_path / "x").exists()

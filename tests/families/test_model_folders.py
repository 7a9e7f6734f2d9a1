"""Folders in our own layout; damaged and mixed folders are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import glassformer
from glassformer.errors import FileProblemError
from glassformer.weights.checksums import ChecksumError
from glassformer.weights.convert import WeightsMismatchError


def test_mismatch_error_names_the_config_file(tmp_path: Path) -> None:
    for layout, name in (("glassformer", "spec.json"), ("hf", "config.json")):
        folder = glassformer.save(glassformer.tiny("gpt2"), tmp_path / layout, layout=layout)
        other = glassformer.save(
            glassformer.tiny("gpt2", d_ff=48), tmp_path / f"{layout}-other", layout=layout
        )
        (folder / name).write_text((other / name).read_text())
        (folder / "checksums.json").unlink()
        with pytest.raises(WeightsMismatchError):
            glassformer.load(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_modified_sinusoidal_tables_are_stored(dtype: torch.dtype, tmp_path: Path) -> None:
    """In our own layout; what is read back is the same to the bit, in the precision it was saved in."""
    model = glassformer.tiny("original").to(dtype)
    folder = glassformer.save(model, tmp_path / "formula", layout="glassformer")
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert not [name for name in file.keys() if name.endswith("position.table")]  # noqa: SIM118
    actual = glassformer.load(folder, dtype="stored").model.state_dict()
    for name, tensor in model.state_dict().items():
        assert actual[name].dtype == dtype and torch.equal(actual[name], tensor), name

    own = {name: t.clone() for name, t in model.named_buffers() if name.endswith("position.table")}
    assert own
    for name, table in own.items():
        model.get_buffer(name).copy_(table * 2)
    actual = glassformer.load(
        glassformer.save(model, tmp_path / "own", layout="glassformer"), dtype="stored"
    ).model.state_dict()
    for name, table in own.items():
        assert torch.equal(actual[name], table * 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return glassformer.save(glassformer.tiny("bert"), tmp_path / "model")


def test_truncated_config_is_rejected(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ChecksumError):
        glassformer.load(folder)
    (folder / "checksums.json").unlink()
    with pytest.raises(FileProblemError) as caught:
        glassformer.load(folder)
    assert Path(caught.value.path) == path


def test_truncated_weights_are_rejected(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    (folder / "checksums.json").unlink()
    with pytest.raises(FileProblemError) as caught:
        glassformer.load(folder)
    assert Path(caught.value.path) == path

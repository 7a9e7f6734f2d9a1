"""Folders that are incomplete or not of one piece are refused with a typed error."""

from __future__ import annotations

from pathlib import Path

import pytest

import glassformer
from glassformer.errors import FileProblemError
from glassformer.weights.checksums import ChecksumError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return glassformer.save(glassformer.tiny("bert"), tmp_path / "model")


def test_truncated_config_is_refused(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ChecksumError):
        glassformer.load(folder)
    (folder / "checksums.json").unlink()
    with pytest.raises(FileProblemError) as caught:
        glassformer.load(folder)
    assert Path(caught.value.path) == path


def test_truncated_weights_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    (folder / "checksums.json").unlink()
    with pytest.raises(FileProblemError) as caught:
        glassformer.load(folder)
    assert Path(caught.value.path) == path

"""Checksums detect every flipped bit, in every file and in themselves."""

import random
from pathlib import Path

import pytest
import torch

from glassformer.errors import FileMissingError, FileProblemError, GlassformerError
from glassformer.weights.checksums import CHECKSUMS_FILE, ChecksumError, verify_checksums, write_checksums
from glassformer.weights.store import save_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = {"a": torch.randn(40, 3), "b": torch.randn(100)}
    names = save_weights(tmp_path, state, max_shard_bytes=480)
    (tmp_path / "config.json").write_text('{"d_model": 8}\n')
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "empty.txt").write_text("")
    write_checksums(tmp_path, (*names, "config.json", "parts/empty.txt"))
    return tmp_path


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_intact_folder_passes_and_missing_checksums_return_false(folder: Path) -> None:
    assert verify_checksums(folder)
    (folder / CHECKSUMS_FILE).unlink()
    assert not verify_checksums(folder)


def test_every_flipped_bit_is_detected(folder: Path) -> None:
    """200 bits of each file, the first and last among them."""
    chance = random.Random(0)
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    assert len(files) == 5  # two shards, index, config, checksums
    for path in files:
        bits = path.stat().st_size * 8
        for bit in {0, bits - 1, *chance.sample(range(bits), min(bits, 200))}:
            flip(path, bit)
            with pytest.raises(GlassformerError) as caught:
                verify_checksums(folder)
            assert str(path) in str(caught.value)
            flip(path, bit)
    assert verify_checksums(folder)


def test_missing_and_truncated_files_are_rejected(folder: Path) -> None:
    path = folder / "config.json"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ChecksumError) as caught:
        verify_checksums(folder)
    assert caught.value.path == path
    path.unlink()
    with pytest.raises(FileMissingError):
        verify_checksums(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"files": []}'])
def test_damaged_checksums_are_rejected(folder: Path, text: str) -> None:
    (folder / CHECKSUMS_FILE).write_text(text)
    with pytest.raises(FileProblemError):
        verify_checksums(folder)


def test_names_outside_the_folder_are_rejected(folder: Path) -> None:
    (folder / "secret").write_text("x")
    inner = folder / "parts"
    write_checksums(inner, ("../secret",))
    with pytest.raises(FileProblemError):
        verify_checksums(inner)

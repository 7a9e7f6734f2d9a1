"""GGUF reader: every type equals the reference package; damaged and hostile files give one error."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from glassformer.errors import FileProblemError, GlassformerError, UnsupportedError
from glassformer.weights.gguf import TYPES, GGUFFile

HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}  # float16 numbers
QUANTIZED = {number: kind for number, kind in TYPES.items() if kind.dequantize is not None}


def write(path: Path, tensors: dict[str, Any], **metadata: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("number", QUANTIZED, ids=lambda number: QUANTIZED[number].name)
def test_dequantization_equals_the_reference_package(number: int, tmp_path: Path) -> None:
    kind, rng = QUANTIZED[number], np.random.default_rng(0)
    blocks = rng.integers(0, 256, (30, kind.size), dtype=np.uint8)
    for at in HALVES[kind.name]:
        blocks[:, at : at + 2] = rng.normal(size=(30, 1)).astype(np.float16).view(np.uint8)
    rows = blocks.reshape(10, -1)  # three blocks per row
    reference = gguf.GGMLQuantizationType(number)
    stored = GGUFFile(write(tmp_path / "a.gguf", {"x": (rows, reference)}))["x"]
    assert stored.shape == (10, 3 * kind.elements)
    expected = torch.from_numpy(gguf.quants.dequantize(rows, reference))
    assert torch.equal(stored.dequantize(), expected)


def test_metadata_and_plain_types_are_read(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    tensors = {"a": (values, None), "b": (values.astype(np.float16), None)}
    metadata = {"s": "바다", "n": -7, "f": 1e-5, "yes": True, "list": ["a", ""], "numbers": [1, 2, 3]}
    file = GGUFFile(write(tmp_path / "a.gguf", tensors, **metadata))
    assert metadata.items() <= file.metadata.items()
    assert torch.equal(file["a"].dequantize(), torch.from_numpy(values))
    assert file["b"].dequantize().dtype == torch.float16


def test_truncated_and_damaged_files_are_rejected(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (np.ones((4, 32), np.float32), None)}
    content = write(tmp_path / "a.gguf", tensors, names=["one", "two"], text="x" * 9).read_bytes()
    path = tmp_path / "b.gguf"
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        with pytest.raises(FileProblemError):
            GGUFFile(path)
    for at in range(len(content) - 512):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            GGUFFile(path)
        except GlassformerError:
            continue


@pytest.mark.parametrize("counts", [(2**63, 0), (0, 2**63), (1, 2**40)])
def test_impossible_counts_are_rejected_without_allocating(counts: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts) + bytes(64))
    with pytest.raises(FileProblemError):
        GGUFFile(path)


def test_unsupported_tensor_type_is_named(tmp_path: Path) -> None:
    data = np.zeros((1, 84), np.uint8)
    path = write(tmp_path / "a.gguf", {"x": (data, gguf.GGMLQuantizationType.Q2_K)})
    with pytest.raises(UnsupportedError):
        GGUFFile(path)

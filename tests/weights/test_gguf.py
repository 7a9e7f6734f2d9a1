"""GGUF files: every type equals the reference package; damaged and hostile files give one error."""

from __future__ import annotations

import os
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import glassformer
import glassformer.weights.gguf as reader
from glassformer.errors import FileProblemError, GlassformerError, MissingDependencyError, UnsupportedError
from glassformer.weights.gguf import GGUFFile
from tests.families import harness
from tests.families.gguf_files import MODELS, write_model

INTEGERS = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K", "Q1_0")  # the package cannot dequantize them
TYPES = [kind for kind in gguf.GGMLQuantizationType if kind.name not in INTEGERS]


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


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_every_type_equals_the_reference_package(
    kind: gguf.GGMLQuantizationType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rows = np.random.default_rng(0).integers(0, 256, (10, 3 * size), dtype=np.uint8)  # three blocks per row
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(gguf.quants.dequantize(rows, kind))
    path = write(tmp_path / "a.gguf", {"x": (rows, kind)})
    monkeypatch.setattr(reader, "CHUNK", 7 * elements)  # several chunks, the last one shorter
    stored = GGUFFile(path)["x"]
    assert stored.shape == (10, 3 * elements)
    values = stored.dequantize().float()
    assert values.shape == expected.shape
    assert torch.equal(values.view(torch.int32), expected.contiguous().view(torch.int32))  # NaN included


def test_metadata_and_plain_types_are_read(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    tensors = {"a": (values, None), "b": (values.astype(np.float16), None)}
    metadata = {"s": "바다", "n": -7, "f": 1e-5, "yes": True, "list": ["a", ""], "numbers": [1, 2, 3]}
    file = GGUFFile(write(tmp_path / "a.gguf", tensors, **metadata))
    assert metadata.items() <= file.metadata.items()
    assert torch.equal(file["a"].dequantize(), torch.from_numpy(values))
    assert file["b"].dequantize().dtype == torch.float16


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_1, gguf.GGMLQuantizationType.I8])
def test_type_without_dequantization_is_named(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    rows = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    stored = GGUFFile(write(tmp_path / "a.gguf", {"x": (rows, kind)}))["x"]
    with pytest.raises(UnsupportedError) as raised:
        stored.dequantize()
    assert kind.name in raised.value.feature


def test_big_endian_file_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("x", np.ones((4, 8), np.float32))
    for write_part in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
    ):
        write_part()
    writer.close()
    with pytest.raises(UnsupportedError):
        GGUFFile(tmp_path / "a.gguf")


# ---- damaged and hostile files --------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(2**63, 0), (0, 2**63), (1, 2**40), (2**40, 1)])
def test_impossible_counts_are_rejected_without_allocating(counts: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts) + bytes(64))
    with pytest.raises(FileProblemError):
        GGUFFile(path)


@pytest.mark.parametrize("kind", [*gguf.GGUFValueType])
def test_endless_array_is_rejected_without_allocating(kind: gguf.GGUFValueType, tmp_path: Path) -> None:
    """Zeros are read as numbers, empty strings or empty arrays, whatever the length says."""
    path = tmp_path / "a.gguf"
    array = struct.pack("<IIQ", gguf.GGUFValueType.ARRAY, kind, 2**60)
    entry = struct.pack("<Q", 1) + b"k" + array
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry + bytes(100_000))
    assert peak_of(lambda: reject(path)) < 50e6


def reject(path: Path) -> None:
    with pytest.raises(FileProblemError):
        GGUFFile(path)


def peak_of(function: Any) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_header_of_too_many_values_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.gguf", {}, names=["x"] * 3000)
    assert len(GGUFFile(path).metadata["names"]) == 3000
    monkeypatch.setattr(reader, "MAX_PARTS", 3000)
    reject(path)


def test_overlapping_tensors_are_rejected(tmp_path: Path) -> None:
    values = np.ones((64, 64), np.float32)
    content = write(tmp_path / "a.gguf", {"aaaa": (values, None), "bbbb": (values, None)}).read_bytes()
    second = content.index(b"bbbb") + 4 + 4 + 16 + 4  # its offset, after name, dimensions and type
    assert content[second : second + 8] == struct.pack("<Q", values.nbytes)
    path = tmp_path / "b.gguf"
    path.write_bytes(content[:second] + bytes(8) + content[second + 8 : -values.nbytes])
    reject(path)


def mutate(content: bytes, header: int, rng: np.random.Generator) -> bytes:
    """Flip a bit, cut the file, overwrite a number, or delete bytes; mostly in the header."""
    damaged = bytearray(content)
    at = int(rng.integers(header if rng.random() < 0.8 else len(content)))
    match rng.integers(4):
        case 0:
            damaged[at] ^= 1 << int(rng.integers(8))
        case 1:
            del damaged[at:]
        case 2:
            value = [0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1][rng.integers(7)]
            damaged[at : at + 8] = struct.pack("<Q", value)
        case 3:
            del damaged[at : at + int(rng.integers(1, 64))]
    return bytes(damaged)


WHOLE = pytest.mark.skipif(
    os.environ.get("GLASSFORMER_FAULTS") != "whole",
    reason="only in make test-slow, which sets GLASSFORMER_FAULTS",
)


@pytest.mark.parametrize("count", [30, pytest.param(240, marks=[pytest.mark.slow, WHOLE])])
def test_mutated_files_load_or_give_one_error(count: int, tmp_path: Path) -> None:
    model: Any = harness.reference(*MODELS["qwen2"])
    tokens = ["a", "b", *(f"<{n}>" for n in range(94))]
    vocabulary = {"model": "gpt2", "tokens": tokens, "token_type": [1] * 96, "merges": ["a b"]}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}
    content = write_model(tmp_path / "a.gguf", "qwen2", model, "Q8_0", metadata).read_bytes()
    path, refused = tmp_path / "b.gguf", 0
    for seed in range(count):
        path.write_bytes(mutate(content, content.index(b"token_embd"), np.random.default_rng(seed)))
        tracemalloc.start()
        try:
            glassformer.load(path)
        except GlassformerError as error:
            assert "\n" not in str(error), seed
            refused += 1
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 200e6, seed
    assert refused > count // 2


@pytest.mark.parametrize("change", ["overwrite", "truncate"])
def test_changes_of_the_file_do_not_reach_a_loaded_model(change: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.gguf", "qwen2", harness.reference(*MODELS["qwen2"]))
    ids = torch.arange(2, 12)[None]
    pipeline = glassformer.load(path)
    expected = pipeline.model(ids)
    size = path.stat().st_size
    with path.open("r+b") as file:
        if change == "overwrite":
            file.write(b"\xff" * size)
        else:
            file.truncate(0)
    assert torch.equal(pipeline.model(ids), expected)
    if sys.platform == "linux":
        assert str(path) not in Path("/proc/self/maps").read_text()


def test_file_that_is_truncated_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {"x": (np.ones((4, 8), np.float32), None)})
    stored = GGUFFile(path)["x"]
    os.truncate(path, path.stat().st_size - 64)
    with pytest.raises(FileProblemError):
        stored.dequantize()


def test_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.gguf", {})
    for name in [name for name in sys.modules if name.partition(".")[0] == "gguf" or name.endswith(".gguf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingDependencyError) as raised:
        glassformer.load(path)
    assert (raised.value.package, raised.value.extra) == ("gguf", "gguf")

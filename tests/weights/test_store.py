"""Weight files are compatible with safetensors, memory-mapped and replaced atomically."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.errors import FileProblemError, UnsupportedError
from glassformer.weights.checksums import write_checksums
from glassformer.weights.store import DTYPES, open_weights, save_weights

# What this version of the library itself cannot write.
BEYOND_THE_LIBRARY = {torch.float8_e8m0fnu}


def random_bits(dtype: torch.dtype, *shape: int) -> Tensor:
    """Any bit pattern at all, NaNs included; booleans are 0 or 1."""
    size = torch.Size(shape).numel() * dtype.itemsize
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8)
    return bits.view(dtype).view(shape)


def every_dtype() -> dict[str, Tensor]:
    state = {}
    for name, dtype in DTYPES.items():
        state[f"{name}.matrix"] = random_bits(dtype, 3, 5)
        state[f"{name}.turned"] = random_bits(dtype, 3, 5).t()
        state[f"{name}.scalar"] = random_bits(dtype)
        state[f"{name}.empty"] = random_bits(dtype, 0, 2)
    return state


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        other = two[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), name
        assert bits(tensor) == bits(other), name


@pytest.mark.parametrize("max_shard_bytes", [10**9, 300])
def test_saved_folder_is_read_back_bit_identical(tmp_path: Path, max_shard_bytes: int) -> None:
    state = every_dtype()
    names = save_weights(tmp_path, state, max_shard_bytes=max_shard_bytes)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    assert (len(names) == 1) == (max_shard_bytes == 10**9)
    with open_weights(tmp_path) as weights:
        assert_same(dict(weights), state)
        assert weights.shapes == {name: tuple(tensor.shape) for name, tensor in state.items()}


def test_files_are_compatible_with_the_safetensors_library(tmp_path: Path) -> None:
    state = {
        name: tensor.contiguous()
        for name, tensor in every_dtype().items()
        if tensor.dtype not in BEYOND_THE_LIBRARY
    }
    save_weights(tmp_path / "ours", state)
    file = tmp_path / "ours" / "model.safetensors"
    assert_same(safetensors.torch.load_file(file), state)
    with safetensors.safe_open(file, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    (tmp_path / "theirs").mkdir()
    safetensors.torch.save_file(state, tmp_path / "theirs" / "model.safetensors")
    assert_same(dict(open_weights(tmp_path / "theirs")), state)


@settings(deadline=None)  # a busy machine is no failure
@given(st.dictionaries(st.text(max_size=5), st.integers(0, 40), max_size=8), st.integers(1, 100))
def test_each_tensor_is_in_one_shard_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, int], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    state = {name: random_bits(torch.uint8, size) for name, size in sizes.items()}
    save_weights(folder, state, max_shard_bytes=limit)
    assert_same(dict(open_weights(folder)), state)
    for path in folder.glob("*.safetensors"):
        shard = safetensors.torch.load_file(path)
        assert len(shard) <= 1 or sum(tensor.nbytes for tensor in shard.values()) <= limit


def test_unaligned_tensors_are_read(tmp_path: Path) -> None:
    """The format allows a float at an odd byte, though good writers avoid it."""
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    text = json.dumps(header).encode()
    numbers = torch.tensor([1.5, -2.0])
    (tmp_path / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + b"\x07" + bits(numbers)
    )
    assert torch.equal(open_weights(tmp_path)["b"], numbers)


def test_saving_over_a_memory_mapped_folder_is_safe(tmp_path: Path) -> None:
    first = {name: random_bits(torch.float32, 300) for name in "abc"}
    save_weights(tmp_path, first)
    for limit in (1000, 2000, 10**9):  # one file -> three shards -> two -> one file
        mapped = dict(open_weights(tmp_path))
        names = save_weights(tmp_path, mapped, max_shard_bytes=limit)
        assert_same(mapped, first)
        assert_same(dict(open_weights(tmp_path)), first)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_failed_save_keeps_the_old_file_and_removes_temporary_ones(tmp_path: Path) -> None:
    first = {"a": random_bits(torch.float32, 8)}
    save_weights(tmp_path, first)
    with pytest.raises(NotImplementedError):  # numbers that are nowhere cannot be written
        save_weights(tmp_path, {"a": torch.empty(8, device="meta")})
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert_same(dict(open_weights(tmp_path)), first)


def test_writing_to_a_mapped_tensor_does_not_change_the_file(tmp_path: Path) -> None:
    save_weights(tmp_path, {"a": torch.ones(5)})
    open_weights(tmp_path)["a"].zero_()
    assert torch.equal(open_weights(tmp_path)["a"], torch.ones(5))


def test_unsupported_tensors_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError):
        save_weights(tmp_path, {"wide": torch.zeros(1, dtype=torch.complex128)})
    (tmp_path / "file").write_text("")
    with pytest.raises(FileProblemError):
        save_weights(tmp_path / "file", {})


MEASURE = """
import re, sys
from pathlib import Path
import torch
from glassformer.weights.checksums import verify_checksums
from glassformer.weights.convert import WeightTable, to_ours
from glassformer.weights.ops import Split, expand
from glassformer.weights.store import open_weights

def peak():  # not ru_maxrss, which a child inherits from the process that started it
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

torch.ones(1000, 1000).sum()
before = peak()
assert verify_checksums(sys.argv[1])
weights = open_weights(sys.argv[1])
rows = (Split("{i}", "{i}.{q,k,v}", sizes=(1000, 1000, 1000), transpose=True),)
shapes = {f"{name}.{part}": (1000, 1000) for name in weights for part in "qkv"}
state = to_ours(weights, WeightTable(expand(rows, i=tuple(weights))), shapes, where="here")
for tensor in state.values():
    tensor.sum()
print((peak() - before) / sum(tensor.nbytes for tensor in weights.values()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_loading_needs_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    tensor = torch.ones(1000, 3000)  # 12 MB
    names = save_weights(tmp_path, {str(i): tensor for i in range(10)}, max_shard_bytes=50_000_000)
    write_checksums(tmp_path, names)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert 0.9 < float(done.stdout) < 1.2

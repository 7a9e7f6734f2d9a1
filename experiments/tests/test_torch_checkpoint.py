"""The reader of PyTorch checkpoints equals torch.load, calls nothing, and rejects everything else."""

import os
import random
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from experiments.torch_checkpoint import main, read_tensors
from glassformer.errors import FileProblemError

STORAGES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool]


def tensors() -> OrderedDict:
    torch.manual_seed(0)
    base = torch.randn(6, 8)
    state = OrderedDict({str(dtype): (base * 9).to(dtype) for dtype in STORAGES})
    state["transposed"], state["part"], state["same"] = base.t(), base[2:4, 1::3], base
    state["parameter"], state["scalar"] = torch.nn.Parameter(base[:2].clone()), torch.tensor(3.0)
    state["empty"] = torch.empty(0, 3)
    state._metadata = {"": {"version": 1}}
    return state


@pytest.fixture(params=[True, False], ids=["zip", "sequence"])
def checkpoint(request, tmp_path) -> Path:
    path = tmp_path / "model.bin"
    torch.save(tensors(), path, _use_new_zipfile_serialization=request.param)
    return path


def test_tensors_equal_those_that_were_saved(checkpoint):
    read, expected = read_tensors(checkpoint), tensors()
    assert list(read) == list(expected)
    for name, tensor in expected.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor), name


def test_command_writes_safetensors(checkpoint, tmp_path, monkeypatch):
    from safetensors.torch import load_file

    out = tmp_path / "model.safetensors"
    monkeypatch.setattr("sys.argv", ["torch_checkpoint", str(checkpoint), str(out)])
    main()
    assert torch.equal(load_file(out)["part"], tensors()["part"])


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        Call(os.mkdir, "called"),
        Call(getattr, "text", "upper"),
        Call(torch.zeros, 3),
        {"a": Call(OrderedDict, [("key", "value")])},
        torch.nn.Linear(2, 2),
        [torch.ones(2)],
        {"a": torch.ones(2), "b": {1, 2}},
    ],
    ids=["mkdir", "getattr", "zeros", "arguments", "module", "list", "set"],
)
def test_anything_but_tensors_is_rejected_without_a_call(value, legacy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(value, "model.bin", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(FileProblemError):
        read_tensors(Path("model.bin"))
    assert os.listdir() == ["model.bin"]


def forge(path: Path, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> Path:
    """Write a checkpoint of one tensor that claims this view of a storage of four numbers."""

    storage = torch.storage.TypedStorage(4, dtype=torch.float32, device="cpu")
    torch.save(
        {"a": Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, stride, False, None)}, path
    )
    return path


def test_view_outside_of_its_storage_is_rejected(tmp_path):
    assert read_tensors(forge(tmp_path / "a", 0, (2, 2), (2, 1)))["a"].shape == (2, 2)
    for view in [
        (1, (4,), (1,)),
        (0, (2, 2), (3, 1)),
        (-1, (2,), (1,)),
        (0, (9, 9), (0, 0)),
        (0, (-1,), (1,)),
    ]:
        with pytest.raises(FileProblemError):
            read_tensors(forge(tmp_path / "b", *view))


def test_damaged_file_is_rejected_or_read(checkpoint, tmp_path):
    """Every cut, and 300 files with changed bytes: an error of one kind, or tensors."""
    content, path = checkpoint.read_bytes(), tmp_path / "damaged.bin"
    draw = random.Random(0)
    cuts = [content[: draw.randrange(len(content))] for _ in range(60)]
    changed = []
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(draw.choice((1, 2, 8))):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        changed.append(bytes(damaged))
    rejected = 0
    for damaged in (*cuts, *changed):
        path.write_bytes(damaged)
        try:
            read_tensors(path)
        except FileProblemError:
            rejected += 1
    assert rejected >= len(cuts)

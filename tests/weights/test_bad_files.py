"""Bad weight files are rejected before a tensor is read."""

import json
from pathlib import Path

import pytest
import torch

from glassformer.errors import FileMissingError, FileProblemError
from glassformer.weights.store import (
    INDEX_FILE,
    WEIGHTS_FILE,
    PickleRefusedError,
    open_weights,
    save_weights,
)


def entry(start: int, stop: int, shape: object = None, dtype: object = "U8") -> dict[str, object]:
    shape = [stop - start] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def packed(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


BAD = {
    "empty": b"",
    "Git LFS pointer": b"version https://git-lfs",
    "zip archive": b"PK\x03\x04" + bytes(100),
    "not JSON": packed(b"{nonsense"),
    "unknown dtype": packed({"a": entry(0, 1, dtype="F7")}, b"x"),
    "shape and bytes": packed({"a": entry(0, 8, [3], "F32")}, bytes(8)),
    "gap": packed({"a": entry(0, 4), "b": entry(5, 6)}, bytes(6)),
    "truncated": packed({"a": entry(0, 4)}, bytes(3)),
    "trailing bytes": packed({"a": entry(0, 4)}, bytes(6)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_rejected(tmp_path: Path, name: str) -> None:
    path = tmp_path / WEIGHTS_FILE
    path.write_bytes(BAD[name])
    with pytest.raises(FileProblemError) as caught:
        open_weights(tmp_path)
    assert caught.value.path == path and len(str(caught.value)) < 500


def write_index(folder: Path, weight_map: object) -> None:
    save_weights(folder, {"a": torch.ones(3), "b": torch.ones(3)}, max_shard_bytes=12)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("weight_map", "error"),
    [
        ({"a": ONE, "b": "model-00009.safetensors"}, FileMissingError),
        ({"a": ONE, "b": f"../{TWO}"}, FileProblemError),
        ({"a": ONE, "b": "/etc/hostname"}, FileProblemError),
        ({"a": ONE, "b": TWO, "c": TWO}, FileProblemError),
        ({"a": TWO, "b": ONE}, FileProblemError),
        (None, FileProblemError),
    ],
)
def test_bad_index_is_rejected(tmp_path: Path, weight_map: object, error: type) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(error):
        open_weights(tmp_path)


def test_shard_with_an_unlisted_tensor_is_rejected(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": ONE, "b": TWO})
    save_weights(tmp_path / "other", {"b": torch.ones(3), "c": torch.ones(1)})
    (tmp_path / "other" / WEIGHTS_FILE).replace(tmp_path / TWO)
    with pytest.raises(FileProblemError):
        open_weights(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "last.ckpt", "tf_model.h5"])
def test_pickle_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02.")
    with pytest.raises(PickleRefusedError) as caught:
        open_weights(tmp_path)
    assert caught.value.path == tmp_path / name


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"architectures": ["BertForSequenceClassification"]}', "BertForSequenceClassification"),
        ('{"_class_name": "DiTTransformer2DModel"}', "DiTTransformer2DModel"),
        ('{"architectures": ["os; exit()"]}', "AutoModel"),
        ('{"_class_name": "os; exit()"}', "AutoModel"),
        ("not JSON", "AutoModel"),
    ],
)
def test_rejected_pickle_names_the_class_that_keeps_the_head(
    config: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(PickleRefusedError) as caught:
        open_weights(tmp_path)
    assert caught.value.model_class == expected
    library = "diffusers" if expected.startswith("DiT") else "transformers"
    assert f"from {library} import" in str(caught.value)
    assert f'{expected}.from_pretrained("{tmp_path}")' in str(caught.value)


def test_folder_without_weights_is_rejected(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileMissingError):
            open_weights(path)

"""Bad files, built byte by byte: each is refused in one sentence before a tensor is touched."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import GlassformerError
from glassformer.weights.store import INDEX_FILE, WEIGHTS_FILE, open_weights, save_weights


def entry(start: int, stop: int, shape: object = None, dtype: object = "U8") -> dict[str, object]:
    shape = [stop - start] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def packed(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


TWICE = b'{"a":' + json.dumps(entry(0, 1)).encode() + b',"a":' + json.dumps(entry(1, 2)).encode()
ABSENT_DTYPE = {"a": {"shape": [1], "data_offsets": [0, 1]}}
LONG = "9" * 4000

BAD = {
    "empty": (b"", "only 0 bytes"),
    "short": (b"\x01\x00\x00", "only 3 bytes"),
    "pointer": (b"version https://git-lfs", "Git LFS"),
    "header beyond file": ((100).to_bytes(8, "little") + b"{}", "more than the file holds"),
    "header too long": ((10**9).to_bytes(8, "little") + b"{}", "over the limit of 100000000"),
    "zip archive": (b"PK\x03\x04" + bytes(100), "over the limit|more than the file holds"),
    "not json": (packed(b"{nonsense"), "not valid JSON"),
    "not text": (packed(b"\xff\xfe{}"), "not valid JSON"),
    "no header": (packed(b""), "not valid JSON"),
    "deep": (packed(b"[" * 200_000), "nested too deeply"),
    "list": (packed([1]), "not a JSON object"),
    "key twice": (packed(TWICE + b"}", b"xx"), "'a' appears twice"),
    "entry is a number": (packed({"a": 1}), "needs exactly dtype, shape and data_offsets"),
    "no dtype": (packed(ABSENT_DTYPE, b"x"), "needs exactly dtype, shape and data_offsets"),
    "bad dtype": (packed({"a": entry(0, 1, dtype="F7")}, b"x"), "unknown dtype 'F7'"),
    "dtype list": (packed({"a": entry(0, 1, dtype=["F32"])}, b"x"), "unknown dtype"),
    "negative shape": (packed({"a": entry(0, 1, [-1, -1])}, b"x"), "impossible shape"),
    "true in shape": (packed({"a": entry(0, 1, [True])}, b"x"), "impossible shape"),
    "float in shape": (packed({"a": entry(0, 1, [1.0])}, b"x"), "impossible shape"),
    "shape is text": (packed({"a": entry(0, 1, "1")}, b"x"), "impossible shape"),
    "huge shape": (packed({"a": entry(0, 0, [2**62, 2**62, 0])}), "impossible shape"),
    "endless shape": (
        packed(b'{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' % (LONG.encode()), b"x"),
        "impossible shape",
    ),
    "many dims": (packed({"a": entry(0, 1, [1] * 65)}, b"x"), "impossible shape"),
    "backwards": (packed({"a": entry(1, 0, [0])}, b"x"), "impossible offsets"),
    "endless offset": (
        packed(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,%s]}}' % (LONG.encode()), b"x"),
        "impossible offsets",
    ),
    "shape and bytes": (
        packed({"a": entry(0, 8, [3], "F32")}, bytes(8)),
        "'a' has 8 bytes where F32 of shape .3. needs 12",
    ),
    "overlap": (packed({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6)), "'b' overlaps"),
    "same place": (packed({"a": entry(0, 4), "b": entry(0, 4)}, bytes(4)), "overlaps"),
    "gap": (packed({"a": entry(0, 4), "b": entry(5, 6)}, bytes(6)), "'b' leaves a gap"),
    "late start": (packed({"a": entry(1, 4)}, bytes(4)), "'a' leaves a gap"),
    "truncated": (packed({"a": entry(0, 4)}, bytes(3)), "it is truncated"),
    "trailing": (packed({"a": entry(0, 4)}, bytes(6)), "2 bytes at its end belong to no tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    content, sentence = BAD[name]
    (tmp_path / WEIGHTS_FILE).write_bytes(content)
    with pytest.raises(GlassformerError, match=sentence) as caught:
        open_weights(tmp_path)
    assert str(tmp_path / WEIGHTS_FILE) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@settings(deadline=None)  # a busy machine is no failure
@given(st.data())
def test_a_damaged_header_is_refused_or_read_never_anything_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    save_weights(folder, {"a": torch.ones(3), "b": torch.zeros(2, 2).bool()})
    content = bytearray((folder / WEIGHTS_FILE).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) - 3, len(content))) :]
    (folder / WEIGHTS_FILE).write_bytes(content)
    try:
        weights = open_weights(folder)
    except GlassformerError:
        return
    assert sum(weights[name].nbytes for name in weights) == weights.nbytes


def write_index(folder: Path, weight_map: object) -> None:
    save_weights(folder, {"a": torch.ones(3), "b": torch.ones(3)}, max_shard_bytes=12)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("weight_map", "sentence"),
    [
        ({"a": ONE, "b": "model-00009.safetensors"}, "model-00009.safetensors, which does not ex"),
        ({"a": ONE, "b": f"../{TWO}"}, "which is not beside it"),
        ({"a": ONE, "b": "/etc/hostname"}, "which is not beside it"),
        ({"a": ONE, "b": ".."}, "which is not beside it|which does not exist"),
        ({"a": ONE, "b": ""}, "which does not exist"),
        ({"a": ONE, "b": "\0"}, "which does not exist"),
        ({"a": ONE, "b": TWO, "c": TWO}, "lists c in model-00002-of-00002.safetensors, which"),
        ({"a": TWO, "b": ONE}, "lists b in model-00001-of-00002.safetensors, which does not have"),
        ({"a": ONE, "b": 2}, "not a sound index"),
        ([], "not a sound index"),
        (None, "not a sound index"),
    ],
)
def test_bad_indexes_are_refused_in_a_sentence(tmp_path: Path, weight_map: object, sentence: str) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(GlassformerError, match=sentence) as caught:
        open_weights(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_an_index_that_is_no_json_is_refused(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"weight_map": {"a": "x", "a": "y"}}', "[" * 200_000):
        (tmp_path / INDEX_FILE).write_text(text)
        with pytest.raises(GlassformerError, match="not a sound index"):
            open_weights(tmp_path)


def test_a_shard_with_an_unlisted_tensor_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": ONE, "b": TWO})
    save_weights(tmp_path / "other", {"b": torch.ones(3), "c": torch.ones(1)})
    (tmp_path / "other" / WEIGHTS_FILE).replace(tmp_path / TWO)
    with pytest.raises(GlassformerError, match=r"holds c, which .* does not list there"):
        open_weights(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "last.ckpt", "tf_model.h5"])
def test_pickles_are_refused_with_the_way_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02.")
    with pytest.raises(GlassformerError, match=f"only as {name}, and pickles") as caught:
        open_weights(tmp_path)
    assert f'AutoModel.from_pretrained("{tmp_path}").save_pretrained("OUT"' in str(caught.value)


def test_folders_without_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GlassformerError, match=r"neither model\.safetensors nor"):
        open_weights(tmp_path)
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        (tmp_path / "file").write_text("")
        with pytest.raises(GlassformerError, match="There is no folder"):
            open_weights(path)

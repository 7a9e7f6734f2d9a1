"""Damaged model folders and unknown models: an error of one line, exit code 2, whatever the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder: Path, change: object) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lengthen_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes((10**9).to_bytes(8, "little") + path.read_bytes()[8:])


def overlap(folder: Path) -> None:
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    header = json.dumps({"a": entry, "b": entry | {"data_offsets": [2, 6]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(6))


def pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")


def misspell_spec(folder: Path) -> None:
    glassformer.save(glassformer.load(folder), folder, layout="glassformer")
    path = folder / "spec.json"
    content = json.loads(path.read_text())
    content["decoder"]["num_layer"] = content["decoder"].pop("num_layers")
    path.write_text(json.dumps(content))
    (folder / "checksums.json").unlink()


# how a folder is damaged, and a name that the error must contain
BAD = {
    "truncated file": (truncate, "model.safetensors"),
    "overlong header": (lengthen_header, "model.safetensors"),
    "overlapping tensors": (overlap, "model.safetensors"),
    "missing tensor": (lambda f: change_tensors(f, lambda t: t.pop("transformer.ln_f.bias")), "ln_f.bias"),
    "extra tensor": (lambda f: change_tensors(f, lambda t: t.update(odd=torch.ones(1))), "odd"),
    "wrong shape": (
        lambda f: change_tensors(f, lambda t: t.update({"transformer.ln_f.bias": torch.ones(7)})),
        "ln_f.bias",
    ),
    "unknown architecture": (lambda f: change_config(f, architectures=["NoSuchModel"]), "NoSuchModel"),
    "no architecture": (lambda f: change_config(f, architectures=[]), "architecture"),
    "another model_type": (lambda f: change_config(f, model_type=None), "gpt2"),
    "unsupported setting": (
        lambda f: change_config(f, scale_attn_by_inverse_layer_idx=True),
        "scale_attn_by_inverse_layer_idx",
    ),
    "unknown activation": (lambda f: change_config(f, activation_function="softplus9"), "softplus9"),
    "d_model not divisible": (lambda f: change_config(f, n_head=5), "num_heads"),
    "wrong type": (lambda f: change_config(f, n_layer="two"), "n_layer"),
    "invalid JSON": (lambda f: (f / "config.json").write_text("{"), "config.json"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "misspelt key in spec.json": (misspell_spec, "num_layers"),
    "pickle": (pickle, "pytorch_model.bin"),
}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    path = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")
    (path / "checksums.json").unlink()  # as in a published folder
    return path


@pytest.mark.parametrize("command", ["inspect", "convert"])
@pytest.mark.parametrize("case", BAD)
def test_damaged_folder(run, folder, tmp_path, command, case):
    damage, named = BAD[case]
    damage(folder)
    out = tmp_path / "out"
    assert named in run(command, folder, *([out] if command == "convert" else [])).error()
    assert not out.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checksums.json"])
def test_flipped_bit_in_a_saved_folder(run, tmp_path, name):
    folder = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(content)
    assert "checksum" in run("verify", folder).error()


@pytest.mark.parametrize("command", ["inspect", "verify"])
@pytest.mark.parametrize("model", ["no/such/folder", "gpt22", "tiny:gpt22", ""])
def test_unknown_model(run, command, model):
    error = run(command, model).error()
    if model == "tiny:gpt22" or (command, model) == ("inspect", "gpt22"):
        assert "did you mean 'gpt2'?" in error


def test_preset_has_no_weights(run, tmp_path):
    assert "tiny:gpt2" in run("verify", "gpt2").error()
    assert "tiny:gpt2" in run("convert", "gpt2", tmp_path / "out").error()


def test_file_instead_of_a_folder(run, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    run("inspect", path).error()
    run("convert", "tiny:gpt2", path).error()


def test_unknown_layout_device_or_dtype(run, tmp_path):
    run("convert", "tiny:original", tmp_path / "out", "--to", "hf").error()
    for args in (["--device", "cuda:99"], ["--device", "meta"], ["--dtype", "float99"]):
        assert args[1] in run("verify", "tiny:gpt2", *args).error()
    assert "64" in run("inspect", "tiny:gpt2", "--length", "65").error()


def test_as_a_program(folder):
    truncate(folder)
    args = [sys.executable, "-m", "glassformer", "inspect", str(folder)]
    done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1

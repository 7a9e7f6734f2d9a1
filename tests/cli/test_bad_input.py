"""Damaged model folders and unknown models: an error of one line, exit code 2, whatever the command."""

import json
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


def pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")


# how a folder is damaged, and a name that the error must contain
BAD = {
    "truncated file": (truncate, "model.safetensors"),
    "missing tensor": (lambda f: change_tensors(f, lambda t: t.pop("transformer.ln_f.bias")), "ln_f.bias"),
    "wrong shape": (
        lambda f: change_tensors(f, lambda t: t.update({"transformer.ln_f.bias": torch.ones(7)})),
        "ln_f.bias",
    ),
    "unknown architecture": (lambda f: change_config(f, architectures=["NoSuchModel"]), "NoSuchModel"),
    "unsupported setting": (
        lambda f: change_config(f, scale_attn_by_inverse_layer_idx=True),
        "scale_attn_by_inverse_layer_idx",
    ),
    "invalid JSON": (lambda f: (f / "config.json").write_text("{"), "config.json"),
    "pickle": (pickle, "pytorch_model.bin"),
}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    path = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")
    (path / "checksums.json").unlink()  # as in a published folder
    return path


@pytest.mark.parametrize("case", BAD)
def test_damaged_folder(run, folder, tmp_path, case):
    damage, named = BAD[case]
    damage(folder)
    assert named in run("convert", folder, tmp_path / "out").error()
    assert not (tmp_path / "out").exists()


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


def test_unknown_layout_device_or_dtype(run, tmp_path):
    run("convert", "tiny:original", tmp_path / "out", "--to", "hf").error()
    for args in (["--device", "cuda:99"], ["--device", "meta"], ["--dtype", "float99"]):
        assert args[1] in run("verify", "tiny:gpt2", *args).error()
    assert "64" in run("inspect", "tiny:gpt2", "--length", "65").error()

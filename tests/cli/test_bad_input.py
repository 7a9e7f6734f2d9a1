"""Bad input: exactly one sentence on stderr, exit 2, no traceback, whichever verb meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer
from glassformer import GlassformerError


def config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def tensors(folder: Path, change: object) -> None:
    path = folder / "model.safetensors"
    held = load_file(path)
    change(held)
    save_file(held, path)


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def overlong_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes((10**9).to_bytes(8, "little") + path.read_bytes()[8:])


def overlapping(folder: Path) -> None:
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    header = json.dumps({"a": entry, "b": entry | {"data_offsets": [2, 6]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(6))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")


def own_layout(folder: Path) -> None:
    """The folder in our own layout, with a misspelt key in its spec."""
    glassformer.save(glassformer.load(folder), folder, layout="glassformer")
    path = folder / "spec.json"
    content = json.loads(path.read_text())
    content["decoder"]["num_layer"] = content["decoder"].pop("num_layers")
    path.write_text(json.dumps(content))
    (folder / "checksums.json").unlink()


# what is done to a sound folder, and a piece of the sentence it must lead to
BAD = {
    "truncated file": (truncated, "model.safetensors"),
    "overlong header": (overlong_header, "over the limit"),
    "overlapping tensors": (overlapping, "overlap"),
    "missing tensor": (lambda f: tensors(f, lambda t: t.pop("transformer.ln_f.bias")), "ln_f.bias"),
    "extra tensor": (lambda f: tensors(f, lambda t: t.update(odd=torch.ones(1))), "odd"),
    "wrong shape": (
        lambda f: tensors(f, lambda t: t.update({"transformer.ln_f.bias": torch.ones(7)})),
        "ln_f.bias",
    ),
    "unknown architecture": (lambda f: config(f, architectures=["NoSuchModel"]), "NoSuchModel"),
    "no architecture": (lambda f: config(f, architectures=[]), "architecture"),
    "another model_type": (lambda f: config(f, model_type=None), "it must be 'gpt2'"),
    "unsupported setting": (
        lambda f: config(f, scale_attn_by_inverse_layer_idx=True),
        "scale_attn_by_inverse_layer_idx",
    ),
    "unknown activation": (lambda f: config(f, activation_function="softplus9"), "softplus9"),
    "d_model not divisible": (lambda f: config(f, n_head=5), "not divisible by num_heads 5"),
    "ill-typed setting": (lambda f: config(f, n_layer="two"), "n_layer"),
    "broken json": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    "no config": (lambda f: (f / "config.json").unlink(), "neither config.json nor spec.json"),
    "misspelt key of our own": (own_layout, "did you mean 'num_layers'?"),
    "pickle": (pickled, "pytorch_model.bin"),
}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    made = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")
    (made / "checksums.json").unlink()  # as in a published folder, so that each check speaks for itself
    return made


def is_one_sentence(done):
    assert done.code == 2, (done.code, done.err)
    assert done.out == "" and "Traceback" not in done.err
    lines = done.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.err
    return lines[0]


@pytest.mark.parametrize("verb", ["inspect", "verify", "convert"])
@pytest.mark.parametrize("case", BAD)
def test_bad_folder(run, folder, tmp_path, verb, case):
    spoil, said = BAD[case]
    spoil(folder)
    out = tmp_path / "out"
    assert said in is_one_sentence(run(verb, folder, *([out] if verb == "convert" else [])))
    assert not out.exists()


@pytest.mark.parametrize("verb", ["inspect", "verify"])
@pytest.mark.parametrize("model", ["no/such/folder", "gpt22", "tiny:gpt22", ""])
def test_no_such_model(run, verb, model):
    said = is_one_sentence(run(verb, model))
    bare = (verb, model) == ("verify", "gpt22")  # a preset has no numbers to verify
    meant = "comes along" if bare else "did you mean 'gpt2'"
    assert "gpt22" not in model or meant in said


def test_a_file_is_no_folder(run, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    is_one_sentence(run("inspect", path))
    is_one_sentence(run("convert", "tiny:gpt2", path))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checksums.json"])
def test_a_flipped_bit_in_a_folder_we_saved(run, tmp_path, name):
    folder = glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")
    held = bytearray((folder / name).read_bytes())
    held[-2] ^= 1
    (folder / name).write_bytes(held)
    assert "checksum" in is_one_sentence(run("verify", folder))


def test_a_preset_cannot_be_verified_or_converted(run, tmp_path):
    assert "try tiny:gpt2" in is_one_sentence(run("verify", "gpt2"))
    for model in ("gpt2", "no-such-model"):  # a fresh one has nothing to say
        assert "tiny:" not in is_one_sentence(run("translate", model, "red"))
    assert "try tiny:gpt2" in is_one_sentence(run("convert", "gpt2", tmp_path / "out"))


def test_a_layout_or_device_that_is_not_there(run, tmp_path):
    is_one_sentence(run("convert", "tiny:original", tmp_path / "out", "--to", "hf"))
    is_one_sentence(run("verify", "tiny:gpt2", "--device", "cuda:99"))
    is_one_sentence(run("verify", "tiny:gpt2", "--device", "meta"))
    is_one_sentence(run("verify", "tiny:gpt2", "--dtype", "float99"))
    assert "64" in is_one_sentence(run("inspect", "tiny:gpt2", "--length", "65"))


def test_calls_are_refused_in_a_sentence():
    model = glassformer.tiny("gpt2").eval()
    calls = {
        "out of range": lambda: model(torch.tensor([[5, 101]])),
        "not divisible": lambda: glassformer.build("original", d_model=30, num_heads=4),
        "64": lambda: model(torch.zeros(1, 65, dtype=torch.long)),
        "did you mean": lambda: glassformer.build("gpt2", d_modle=32),
    }
    for said, call in calls.items():
        with pytest.raises(GlassformerError, match=said) as error:
            call()
        assert "\n" not in str(error.value)


def test_as_a_program(folder):
    """The same through a real process: nothing but the sentence, and exit 2."""
    truncated(folder)
    args = [sys.executable, "-m", "glassformer", "inspect", str(folder)]
    done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1

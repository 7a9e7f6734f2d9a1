"""verify --exported: an export of the model passes, one of another model does not."""

import json
import shutil
import sys

import pytest
import torch

import glassformer
from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.export.ctranslate2 import export_ctranslate2
from glassformer.export.onnx import export_onnx
from glassformer.verify import all_checks, open_exported
from tests.cli.conftest import run  # noqa: F401 (a fixture)
from tests.export.randomized import randomize_parameters

pytest.importorskip("ctranslate2")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

NAME = "exported = native"


def tiny_bundle(family, **overrides):
    model = randomize_parameters(glassformer.tiny(family, num_layers=1, **overrides))
    generation = {"eos_token_id": 2, "suppress_tokens": [7]}
    if isinstance(model.spec, spec.EncoderDecoderSpec):
        generation["decoder_start_token_id"] = 1
    return Bundle(model=model, generation=generation)


def check_export(bundle, folder):
    return all_checks("skipped", open_exported(folder))[NAME](bundle, NAME)


def perturbed(bundle):
    """Change one row of one matrix of the model."""
    with torch.no_grad():
        stack = getattr(bundle.model, "decoder", None) or bundle.model.encoder
        stack.blocks[-1].ffn.down.weight[0].add_(0.05)
    return bundle


@pytest.fixture(scope="module")
def gpt2_onnx(tmp_path_factory):
    """An ONNX export of a language model, which takes seconds."""
    return export_onnx(tiny_bundle("gpt2"), tmp_path_factory.mktemp("onnx") / "out").folder


@pytest.mark.parametrize("family", ["original", "gpt2", "patchtst"])
def test_onnx_export_passes_until_the_model_changes(tmp_path, family, gpt2_onnx):
    bundle = tiny_bundle(family)
    out = gpt2_onnx if family == "gpt2" else export_onnx(bundle, tmp_path / "out").folder
    result = check_export(bundle, out)
    assert result.status == "passed" and result.tolerance == 1e-4, result
    if family in ("original", "gpt2"):
        agreement = result.note.split(",")[0].removeprefix("same choice at ")
        same, total = map(int, agreement.split(" of "))
        assert same == total > 50
    assert check_export(perturbed(bundle), out).status == "failed"


@pytest.mark.parametrize("family", ["original", "t5", "gpt2", "bert"])
def test_ctranslate2_export_passes_until_the_model_changes(tmp_path, family):
    """Each dtype has its own tolerance, and the note reports how many choices changed."""
    bundle = tiny_bundle(family)
    for dtype, allowed in (("float32", 1e-4), ("float16", 1e-2), ("int8", 2e-1)):
        export_ctranslate2(bundle, tmp_path / dtype, dtype)
        result = check_export(bundle, tmp_path / dtype)
        assert result.status == "passed" and result.tolerance == allowed and dtype in result.note, result
        assert dtype == "float32" or result.worst > 1e-5
        assert family == "bert" or " of " in result.note
    assert check_export(perturbed(bundle), tmp_path / "float32").status == "failed"


def test_command_exits_1_if_the_export_differs(tmp_path, run):  # noqa: F811
    bundle = tiny_bundle("gpt2")
    folder = glassformer.save(bundle, tmp_path / "model")
    export_ctranslate2(bundle, tmp_path / "out")
    done = run("verify", folder, "--exported", tmp_path / "out", "--no-reference", "--json")
    first = json.loads(done.out)["checks"][0]
    assert done.code == 0 and first["name"] == NAME and first["status"] == "passed"
    glassformer.save(perturbed(bundle), folder)
    wrong = run("verify", folder, "--exported", tmp_path / "out", "--no-reference")
    assert wrong.code == 1 and "✗" in wrong.out and NAME in wrong.out and "1 failed" in wrong.out


def test_folder_that_is_not_an_export_of_the_model_is_rejected(tmp_path, run, monkeypatch, gpt2_onnx):  # noqa: F811
    bundle = tiny_bundle("gpt2")
    shutil.copytree(gpt2_onnx, tmp_path / "onnx")
    export_ctranslate2(bundle, tmp_path / "ct2")
    metadata = tmp_path / "ct2" / "export.json"

    def error(folder, model="tiny:gpt2"):
        done = run("verify", model, "--exported", tmp_path / folder, "--no-reference")
        assert done.code == 2 and done.err.count("\n") == 1 and "Traceback" not in done.err, done
        return done.err

    assert "export.json" in error("absent")
    for folder, model in (("onnx", "tiny:llama"), ("onnx", "tiny:original"), ("ct2", "tiny:bert")):
        assert "another model" in error(folder, model)
    (tmp_path / "ct2" / "model.bin").write_bytes(b"short")
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"short")
    assert "export the model again" in error("ct2") and "export the model again" in error("onnx")
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "format": "other"}))
    assert "'other'" in error("ct2")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "[export]" in error("onnx")

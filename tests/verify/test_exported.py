"""verify --exported: an export holds in its runtime, another model's does not; what is missing is told."""

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
from glassformer.verify import open_exported, proofs
from tests.cli.conftest import run  # noqa: F401 (a fixture)
from tests.export.shaken import shaken

pytest.importorskip("ctranslate2")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

NAME = "exported = native"


def bundled(family, **words):
    model = shaken(glassformer.tiny(family, num_layers=1, **words))
    generation = {"eos_token_id": 2, "suppress_tokens": [7]}
    if isinstance(model.spec, spec.EncoderDecoderSpec):
        generation["decoder_start_token_id"] = 1
    return Bundle(model=model, generation=generation)


def claim_of(bundle, folder):
    return proofs("skipped", open_exported(folder))[NAME](bundle, NAME)


def moved(bundle):
    """The same model with one row of one matrix a little elsewhere."""
    with torch.no_grad():
        stack = getattr(bundle.model, "decoder", None) or bundle.model.encoder
        stack.blocks[-1].ffn.down.weight[0].add_(0.05)
    return bundle


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of an ONNX export of a model that writes, which takes seconds to make."""
    return export_onnx(bundled("gpt2"), tmp_path_factory.mktemp("onnx") / "out").folder


@pytest.mark.parametrize("family", ["original", "gpt2", "patchtst"])
def test_an_onnx_export_holds_until_the_model_moves(tmp_path, family, written):
    bundle = bundled(family)
    out = written if family == "gpt2" else export_onnx(bundle, tmp_path / "out").folder
    claim = claim_of(bundle, out)
    assert claim.status == "holds" and claim.tolerance == 1e-4, claim
    if family in ("original", "gpt2"):
        told, of = (
            int(word) for word in claim.note.split(",")[0].removeprefix("same choice at ").split(" of ")
        )
        assert told == of > 50
    assert claim_of(moved(bundle), out).status == "fails"


@pytest.mark.parametrize("family", ["original", "t5", "gpt2", "bert"])
def test_a_ctranslate2_export_holds_until_the_model_moves(tmp_path, family):
    """In float32 closely, in int8 by the looser tolerance that is told, with what it cost in the note."""
    bundle = bundled(family)
    for dtype, allowed in (("float32", 1e-4), ("float16", 1e-2), ("int8", 2e-1)):
        export_ctranslate2(bundle, tmp_path / dtype, dtype)
        claim = claim_of(bundle, tmp_path / dtype)
        assert claim.status == "holds" and claim.tolerance == allowed and dtype in claim.note, claim
        assert dtype == "float32" or claim.worst > 1e-5
        assert family == "bert" or " of " in claim.note
    assert claim_of(moved(bundle), tmp_path / "float32").status == "fails"


def test_the_table_shows_it_and_a_difference_is_exit_1(tmp_path, run):  # noqa: F811
    bundle = bundled("gpt2")
    folder = glassformer.save(bundle, tmp_path / "model")
    export_ctranslate2(bundle, tmp_path / "out")
    done = run("verify", folder, "--exported", tmp_path / "out", "--no-reference", "--json")
    first = json.loads(done.out)["claims"][0]
    assert done.code == 0 and first["name"] == NAME and first["status"] == "holds"
    glassformer.save(moved(bundle), folder)
    wrong = run("verify", folder, "--exported", tmp_path / "out", "--no-reference")
    assert wrong.code == 1 and "✗" in wrong.out and NAME in wrong.out and "1 fail" in wrong.out


def test_folder_that_is_not_an_export_of_the_model_is_refused(tmp_path, run, monkeypatch, written):  # noqa: F811
    bundle = bundled("gpt2")
    shutil.copytree(written, tmp_path / "onnx")
    export_ctranslate2(bundle, tmp_path / "ct2")
    metadata = tmp_path / "ct2" / "export.json"

    def refused(folder, model="tiny:gpt2"):
        done = run("verify", model, "--exported", tmp_path / folder, "--no-reference")
        assert done.code == 2 and done.err.count("\n") == 1 and "Traceback" not in done.err, done
        return done.err

    assert "export.json" in refused("absent")
    for folder, model in (("onnx", "tiny:llama"), ("onnx", "tiny:original"), ("ct2", "tiny:bert")):
        assert "not this model's" in refused(folder, model)
    (tmp_path / "ct2" / "model.bin").write_bytes(b"short")
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"short")
    assert "export the model again" in refused("ct2") and "export the model again" in refused("onnx")
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "format": "other"}))
    assert "'other'" in refused("ct2")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "[export]" in refused("onnx")

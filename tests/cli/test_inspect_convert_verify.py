"""inspect, convert and verify with valid input."""

import json

import pytest
import torch

import glassformer
from glassformer.core.build import canonical
from glassformer.families.registry import families


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    return glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")


def document(done):
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize("family", families())
def test_inspect_counts_and_shapes(run, family):
    """Every parameter is in one part, and the shapes are those of a forward."""
    found = document(run("inspect", f"tiny:{family}", "--batch", "3", "--json"))
    model = glassformer.tiny(family)
    parts = dict(found["parameters"])
    assert parts.pop("total") == sum(p.numel() for p in model.parameters()) == sum(parts.values())
    assert all(shape[0] == 3 for shape in (*found["inputs"], *found["outputs"].values()))
    assert set(found["kernels"]) == {
        name for name, m in model.named_modules() if isinstance(m, glassformer.MultiHeadAttention)
    }
    drawn = run("inspect", f"tiny:{family}")
    assert drawn.code == 0 and "self_attn" in drawn.out and "norm_self" in drawn.out


def test_inspect_uses_batch_and_length(run, folder):
    shapes = document(run("inspect", folder, "--batch", "5", "--length", "11", "--json"))["activations"]
    assert shapes["embed.token"] == [5, 11, 32]
    assert shapes["decoder.blocks.0.self_attn.q"] == [5, 4, 11, 8]
    assert shapes["decoder.blocks.0.self_attn.weights"] == [5, 4, 11, 11]
    assert shapes["decoder.blocks.0.ffn.up"] == [5, 11, 128]
    assert shapes["head.logits"] == [5, 11, 101]


@pytest.mark.parametrize(
    ("preset", "count"),
    [("gpt2", 124_439_808), ("llama-2-7b", 6_738_415_616), ("mistral-7b", 7_241_732_096)],
)
def test_inspect_allocates_no_weights_for_a_preset(run, preset, count):
    """The published counts; 27 GB of weights would not fit a test, so nothing may be allocated."""
    found = document(run("inspect", preset, "--json"))
    assert found["parameters"]["total"] == count
    assert found["memory"]["weights"] == 4 * count


def test_inspect_computes_the_size_of_the_kv_cache(run):
    """Two for keys and values, two layers, both attentions of an encoder-decoder."""
    found = document(run("inspect", "tiny:original", "--batch", "2", "--length", "8", "--json"))
    own = across = 2 * 2 * (2 * 8 * 32) * 4
    assert found["memory"]["cache"] == own + across


@pytest.mark.parametrize("layout", ["hf", "glassformer"])
def test_convert_is_lossless(run, folder, tmp_path, layout):
    done = document(run("convert", folder, tmp_path / "out", "--to", layout, "--json"))
    assert done["layout"] == layout and set(done["files"]) == {p.name for p in (tmp_path / "out").iterdir()}
    before, after = (canonical(glassformer.load(f).model) for f in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_convert_casts_without_computing(run, folder, tmp_path, dtype, monkeypatch):
    """Even where this CPU cannot multiply in it; and a second conversion keeps it as stored."""
    monkeypatch.setattr("glassformer.core.precision.cpu_can", lambda _: False)
    name = str(dtype).removeprefix("torch.")
    assert run("convert", folder, tmp_path / "half", "--dtype", name).code == 0
    assert run("convert", tmp_path / "half", tmp_path / "again", "--to", "glassformer").code == 0
    before = canonical(glassformer.load(folder).model)
    after = canonical(glassformer.load(tmp_path / "again", dtype="stored").model)
    assert all(after[key].dtype == dtype for key in before)
    assert all(torch.equal(after[key], before[key].to(dtype)) for key in before)


def test_convert_overwrites_nothing_by_default(run, folder, tmp_path):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    link = tmp_path / "link"
    link.symlink_to(folder)
    for target in (folder, link):
        run("convert", folder, target, "--overwrite").error()
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("kept")
    assert "--overwrite" in run("convert", folder, full).error() and not (full / "config.json").exists()
    assert run("convert", folder, full, "--overwrite").code == 0
    assert (full / "mine.txt").read_text() == "kept"
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_verify_prints_every_claim_with_its_tolerance(run, folder):
    done = run("verify", folder)
    found = document(run("verify", folder, "--json"))
    assert done.code == 0 and f"{len(found['claims'])} hold" in done.out and len(found["claims"]) > 10
    assert found["holds"] and found["dtype"] == "float32"
    for claim in found["claims"]:
        assert claim["worst"] <= claim["tolerance"], claim
        assert claim["name"] in done.out


def test_verify_exits_1_when_a_claim_fails(run, folder, monkeypatch):
    from glassformer.core import kernels

    right = kernels.sdpa
    monkeypatch.setattr(kernels, "sdpa", lambda *a, **k: right(*a, **k) * 1.01)
    done = run("verify", folder, "--no-reference")
    assert done.code == 1 and not done.err
    assert "✗  kernels agree" in done.out
    found = run("verify", folder, "--no-reference", "--json")
    assert found.code == 1 and not json.loads(found.out)["holds"]


def test_verify_requires_the_reference_only_on_request(run, folder, monkeypatch):
    monkeypatch.setattr("glassformer.verify.reference.LIBRARY", "no_such_library")
    done = run("verify", folder, "--reference")
    assert done.code == 2 and "no_such_library" in done.err
    claims = {c["name"]: c for c in document(run("verify", folder, "--json"))["claims"]}
    assert claims["reference = ours"]["status"] == "skipped"
    done = run("verify", "tiny:original", "--reference")
    assert done.code == 2 and done.err.startswith("error: ")


def test_env_reports_supported_dtypes(run, monkeypatch):
    import glassformer.core.precision as precision

    monkeypatch.setattr(precision, "cpu_can", lambda name: name == "float16")
    found = document(run("env", "--json"))
    assert found["CPU dtypes"] == {"float32": True, "bfloat16": False, "float16": True}
    assert found["versions"]["torch"] == torch.__version__
    assert set(found["attention kernels"]) == {"explicit", "sdpa", "flex"}
    assert "not supported here" in run("env").out

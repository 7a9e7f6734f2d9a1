"""inspect, verify and env with valid input."""

import importlib.util
import json
import time

import pytest
import torch

import glassformer
from glassformer.families.registry import families
from glassformer.verify.comparison import Tolerance, check_result


def document(done):
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize("family", families())
def test_inspect_counts_and_shapes(run, family):
    """Every parameter is in one part, and the shapes are those of a forward."""
    found = document(run("inspect", f"tiny:{family}", "--batch-size", "3", "--json"))
    model = glassformer.tiny(family)
    parts = dict(found["parameters"])
    assert parts.pop("total") == sum(p.numel() for p in model.parameters()) == sum(parts.values())
    assert all(shape[0] == 3 for shape in (*found["inputs"], *found["outputs"].values()))
    assert set(found["kernels"]) == {
        name
        for name, m in model.named_modules(remove_duplicate=False)  # layers may share their parameters
        if isinstance(m, glassformer.MultiHeadAttention)
    }


def test_inspect_uses_batch_and_length(run, tiny_folder):
    drawn = run("inspect", tiny_folder)
    assert drawn.code == 0 and "self_attn" in drawn.out and "norm_" in drawn.out
    shapes = document(run("inspect", tiny_folder, "--batch-size", "5", "--length", "11", "--json"))[
        "activations"
    ]
    assert shapes["embed.token"] == [5, 11, 32]
    assert shapes["decoder.blocks.0.self_attn.q"] == [5, 4, 11, 8]
    assert shapes["decoder.blocks.0.self_attn.weights"] == [5, 4, 11, 11]
    assert shapes["decoder.blocks.0.ffn.up"] == [5, 11, 128]
    assert shapes["head.logits"] == [5, 11, 101]


@pytest.mark.parametrize(
    ("preset", "count"), [("gpt2", 124_439_808), ("llama-2-7b", 6_738_415_616), ("mistral-7b", 7_241_732_096)]
)
def test_inspect_allocates_no_weights_for_a_preset(run, preset, count):
    """The published counts; 27 GB of weights would not fit a test, so nothing may be allocated."""
    found = document(run("inspect", preset, "--json"))
    assert found["parameters"]["total"] == count
    assert found["memory"]["weights"] == 4 * count


def test_inspect_computes_the_size_of_the_kv_cache(run):
    """Two for keys and values, two layers, both attentions of an encoder-decoder."""
    found = document(run("inspect", "tiny:original", "--batch-size", "2", "--length", "8", "--json"))
    own = across = 2 * 2 * (2 * 8 * 32) * 4
    assert found["memory"]["cache"] == own + across


def test_verify_prints_every_check_with_its_tolerance(run, tiny_folder):
    done = run("verify", tiny_folder)
    report = document(run("verify", tiny_folder, "--json"))
    assert done.code == 0 and f"{len(report['checks'])} passed" in done.out and len(report["checks"]) > 10
    assert report["passed"] and report["dtype"] == "float32"
    for check in report["checks"]:
        assert check["worst"] <= check["tolerance"], check
        assert check["name"] in done.out


def test_verify_shows_the_running_check_without_a_terminal(run, tiny_folder, monkeypatch):
    def slow(bundle, name):
        time.sleep(0.5)
        return check_result(name, [2e-5], Tolerance(1e-5, lambda: 1e-5))

    monkeypatch.setattr("glassformer.verify.all_checks", lambda *_: {"left = right": slow, "up = down": slow})
    monkeypatch.setattr("glassformer.cli.console.PROGRESS_DELAY", 0.05)
    done = run("verify", tiny_folder)
    assert done.err.index("left = right") < done.err.index("up = down")
    assert "2.0e-05  ≤ 8.0e-05" in done.out and "1.0e-05" in done.out
    done = run("verify", tiny_folder, "--json")
    assert "left = right" in done.err
    assert [check["rounding_error"] for check in document(done)["checks"]] == [1e-5, 1e-5]


def test_verify_exits_1_when_a_check_fails(run, tiny_folder, monkeypatch):
    from glassformer.core import kernels

    right = kernels.sdpa
    monkeypatch.setattr(kernels, "sdpa", lambda *a, **k: right(*a, **k) * 1.01)
    done = run("verify", tiny_folder, "--no-reference")
    assert done.code == 1 and not done.err
    assert "✗  kernels agree" in done.out
    done = run("verify", tiny_folder, "--no-reference", "--json")
    assert done.code == 1 and not json.loads(done.out)["passed"]


def test_verify_requires_the_reference_only_on_request(run, tiny_folder, monkeypatch):
    find_spec = importlib.util.find_spec
    missing = {"transformers": None}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: missing.get(name, name) and find_spec(name, *more)
    )
    done = run("verify", tiny_folder, "--reference")
    assert done.code == 2 and "transformers" in done.err
    checks = {c["name"]: c for c in document(run("verify", tiny_folder, "--json"))["checks"]}
    assert checks["reference = ours"]["status"] == "skipped"
    done = run("verify", "tiny:original", "--reference")
    assert done.code == 2 and done.err.startswith("error: ")


def test_env_reports_supported_dtypes(run, monkeypatch):
    monkeypatch.setattr("glassformer.core.precision.cpu_supports", lambda name: name == "float16")
    report = document(run("env", "--json"))
    assert report["CPU dtypes"] == {"float32": True, "bfloat16": False, "float16": True}
    assert report["versions"]["torch"] == torch.__version__
    assert set(report["attention kernels"]) == {"explicit", "sdpa", "flex"}
    assert "not supported" in run("env").out

"""Every family passes every check, and each check fails when what it guarantees is broken."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

import glassformer
from glassformer.bundle import Bundle
from glassformer.core import kernels
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.build import build_model
from glassformer.core.kv_cache import LayerCache
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, Record
from glassformer.families.registry import families, tiny_spec
from glassformer.generation.continuous.slot_batch import SlotBatch
from glassformer.generation.prompt import Prompt
from glassformer.inference.int4 import Int4Linear
from glassformer.inference.kv_cache import BeamKVCache, CrossKVCache
from glassformer.inference.linear import Int8Linear, PackedLinear
from glassformer.inference.slot_cache import SlotKVCache
from glassformer.verify import all_checks, perturb_parameters, reference, verify
from glassformer.verify.comparison import (
    MAX_FLOAT32_TOLERANCE,
    MAX_ROUNDING_ERRORS,
    Tolerance,
    bitwise_difference,
    check_result,
    relative_error,
)
from glassformer.verify.inputs import random_inputs
from tests.families import harness
from tests.families.cases import CASES
from tests.faults.scale import sample


def perturbed_bundle(family: str = "gpt2", **options: int) -> Bundle:
    torch.manual_seed(0)
    model = glassformer.tiny(family, **options).eval()
    perturb_parameters(model)
    return Bundle(model=model)


@pytest.mark.parametrize("family", families())
def test_every_family_passes(family):
    results = list(verify(perturbed_bundle(family)))
    assert [c for c in results if c.status == "failed"] == []
    assert sum(c.status == "passed" for c in results) >= 7
    installed = find_spec(families()[family].library) is not None
    has_reference = installed and family not in ("original", "mobile_sam")  # which no library has
    assert (results[0].status == "passed") == has_reference, results[0]


@pytest.mark.parametrize("broken", ["image of another row", "span moved", "key of all images"])
def test_images_in_the_wrong_place_fail(monkeypatch, broken):
    """Rows with and without images are compared in a batch and under continuous batching."""
    bundle = perturbed_bundle("smolvlm")
    check = all_checks()["cached = uncached"]
    assert check(bundle, "cached = uncached").status == "passed"
    with_images = Prompt.with_images.__func__

    def changed(cls, ids, images, image_id, keys=()):
        if broken == "image of another row" and len(images) == 1:
            images = images + 1.0
        if broken == "key of all images":
            keys = ["same" for _ in images]
        prompt = with_images(cls, ids, images, image_id, keys)
        if broken == "span moved" and prompt.spans:
            spans = tuple(replace(span, offset=span.offset - 1) for span in prompt.spans)
            return replace(prompt, spans=spans)
        return prompt

    monkeypatch.setattr(Prompt, "with_images", classmethod(changed))
    assert check(bundle, "cached = uncached").status == "failed"


def test_a_reference_that_returns_no_logits_is_skipped():
    """The answer of BLIP: the other checks of a question with an image pass."""
    model = build_model(tiny_spec("blip", question=True))
    perturb_parameters(model)
    first, *others = verify(Bundle(model=model))
    assert (first.status, "logits" in first.note) == ("skipped", True)
    assert [c for c in others if c.status == "failed"] == []
    assert sum(c.status == "passed" for c in others) >= 7


HEADS = """Dinov2Backbone SwinBackbone SwinModel DetrModel CLIPTextModel CLIPTextModelWithProjection
    CLIPVisionModelWithProjection SiglipTextModel SiglipVisionModel""".split()


@pytest.mark.parametrize("architecture", HEADS)
def test_every_kind_of_vision_head_passes(architecture, tmp_path):
    """Heads that the tiny models of the families do not have."""
    settings = next(settings for _, _, name, settings in CASES if name == architecture)
    model = harness.reference(architecture, settings)
    results = list(verify(glassformer.load(harness.save_reference(model, tmp_path))))
    assert [c for c in results if c.status == "failed"] == []
    assert {"reference = ours", "prepared = loaded"} <= {c.name for c in results if c.status == "passed"}


def wrap(monkeypatch, owner, name, change):
    """Replace a function by `change(original, *args)`."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: change(original, *args, **kwargs))


def load_with_one_bit_changed(original, *args, **kwargs):
    bundle = original(*args, **kwargs)
    with torch.no_grad():
        parameter = next(bundle.model.parameters())
        parameter.view(-1)[0] = torch.nextafter(parameter.view(-1)[0], torch.tensor(9.0))
    return bundle


# a small error for each check to detect
ERRORS = {
    "cached = uncached": lambda m: wrap(
        m, LayerCache, "append", lambda f, s, k, v, at: f(s, k * 1.01, v, at)
    ),
    "padded right = unpadded": lambda m: wrap(
        m, MultiHeadAttention, "forward", lambda f, s, x, *a, **k: f(s, x, *a, **k) + 1e-3 * x.mean(1, True)
    ),
    "padded left = unpadded": lambda m: wrap(
        m, Mask, "dense", lambda f, s, *a, **k: f(replace(s, padding=None), *a, **k)
    ),
    "batched = single": lambda m: wrap(
        m, MultiHeadAttention, "forward", lambda f, s, x, *a, **k: f(s, x, *a, **k) + 1e-3 * x.mean(0)
    ),
    "kernels agree": lambda m: wrap(m, kernels, "sdpa", lambda f, *a, **k: f(*a, **k) * 1.001),
    "kernels' gradients agree": lambda m: wrap(
        m, kernels, "sdpa", lambda f, *a, **k: (lambda x: x + 0.001 * (x - x.detach()))(f(*a, **k))
    ),
    "observed = unobserved": lambda m: wrap(
        m, Observer, "__call__", lambda f, s, name, x: f(s, name, x) * (1 + 1e-6)
    ),
    "weights' rows sum to 1": lambda m: wrap(m, Record, "weights", lambda f, *a: f(*a) * 0.999),
    "weights @ v = heads": lambda m: wrap(m, Record, "weights", lambda f, *a: f(*a).flip(-1)),
    "saved = loaded": lambda m: wrap(m, reference, "load", load_with_one_bit_changed),
    "prepared = loaded": lambda m: wrap(m, PackedLinear, "__call__", lambda f, *a, **k: f(*a, **k) * 1.001),
    "int8 near loaded": lambda m: wrap(m, Int8Linear, "product", lambda f, *a: -f(*a)),
    "int4 near loaded": lambda m: wrap(m, Int4Linear, "product", lambda f, *a: -f(*a)),
}


@pytest.mark.parametrize(
    "family", ["vit", "swin", "clip", "detr", "sam", "mobile_sam", "mask2former", "eomt"]
)
def test_check_covers_the_prepared_copy_of_every_vision_model(family, monkeypatch):
    name, bundle = "prepared = loaded", perturbed_bundle(family)
    assert all_checks()[name](bundle, name).status == "passed"
    ERRORS[name](monkeypatch)
    assert all_checks()[name](bundle, name).status == "failed"


CACHE_ERRORS = {
    "the beam cache": lambda m: wrap(m, BeamKVCache, "append", lambda f, s, n, k, v: f(s, n, k * 1.01, v)),
    "the order of beams": lambda m: m.setattr(BeamKVCache, "reorder", lambda self, rows: None),
    "dropped slots": lambda m: wrap(m, BeamKVCache, "_compact", lambda f, s: (f(s), s.layers[0].v.mul_(1.1))),
    "slots": lambda m: wrap(m, SlotKVCache, "attend", lambda f, *a, **k: f(*a, **k) * 1.001),
    "the order of beams in slots": lambda m: m.setattr(SlotKVCache, "reorder", lambda self, rows: None),
}


# errors in the sources of an encoder-decoder, and in the memories of images
SOURCE_ERRORS = {
    "the order of sources": lambda m: wrap(m, SlotBatch, "read_sources", lambda f, *a: f(*a)[::-1]),
    "the memory of a batch": lambda m: wrap(
        m, CrossKVCache, "__init__", lambda f, s, d, memory, *a: f(s, d, memory.flip(0), *a)
    ),
}


@pytest.mark.parametrize(
    ("family", "broken"),
    [("llama", name) for name in CACHE_ERRORS]
    + [("vision_encoder_decoder", name) for name in CACHE_ERRORS | SOURCE_ERRORS],
)
def test_cache_check_covers_every_cache(family, broken, monkeypatch):
    name, bundle = "cached = uncached", perturbed_bundle(family)
    assert all_checks()[name](bundle, name).status == "passed"
    (CACHE_ERRORS | SOURCE_ERRORS)[broken](monkeypatch)
    assert all_checks()[name](bundle, name).status == "failed"


def bundle_with_large_activations(**options: int) -> Bundle:
    """A mean of 100 in every feature, which the norms subtract, leaves rounding errors above 1e-5."""
    bundle = perturbed_bundle("gpt2", **options)
    with torch.no_grad():
        bundle.model.embed.position.weight.add_(100.0)
    return bundle


@pytest.mark.parametrize("name", ["cached = uncached", "kernels agree", "prepared = loaded"])
def test_rounding_errors_of_large_activations_pass(name):
    result = all_checks()[name](bundle_with_large_activations(), name)
    assert result.status == "passed" and result.worst > 1e-5
    assert result.tolerance == pytest.approx(MAX_ROUNDING_ERRORS * result.rounding_error)


@pytest.mark.parametrize("make", [perturbed_bundle, bundle_with_large_activations])
@pytest.mark.parametrize("name", ERRORS)
def test_check_detects_a_small_error(name, make, monkeypatch):
    """Also among large rounding errors."""
    sizes = {"d_model": 128} if name.startswith("int4") else {}  # int4 kernels need wide layers
    bundle, check = make(**sizes), all_checks()[name]
    assert check(bundle, name).status == "passed"
    ERRORS[name](monkeypatch)
    result = check(bundle, name)
    assert result.status == "failed" and result.worst > result.tolerance


@pytest.mark.parametrize("name", ["kernels agree", "kernels' gradients agree", "prepared = loaded"])
@pytest.mark.parametrize("make", [perturbed_bundle, bundle_with_large_activations])
def test_imprecise_kernel_does_not_raise_its_own_tolerance(make, name, monkeypatch):
    """Its error is far above the rounding of float32, but below the maximum of a raised tolerance."""
    bundle, check = make(), all_checks()[name]
    assert check(bundle, name).status == "passed"
    wrap(monkeypatch, kernels, "sdpa", lambda f, *a, **k: imprecise(f(*a, **k)))
    result = check(bundle, name)
    assert result.status == "failed" and result.worst < MAX_FLOAT32_TOLERANCE


def imprecise(x):
    return x * (1 + 1e-3) if x.dtype == torch.float32 else x


@pytest.mark.parametrize("seed", sample(range(6), 2))
def test_detectors_with_large_activations_pass(seed):
    """Most of them differ by more than 1e-5 in attention heads, or 1e-4 in gradients."""
    torch.manual_seed(seed)
    model = glassformer.tiny("detr").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    assert [c for c in verify(Bundle(model=model), "skipped") if c.status == "failed"] == []


@pytest.mark.parametrize("family", families())
def test_kernels_agree_to_float64_in_a_float64_model(family):
    """Nothing in the model rounds to float32, so float64 measures its rounding errors."""
    model = perturbed_bundle(family).model.double()
    sample = random_inputs(model)
    with torch.no_grad():
        fast, explicit = (replace(sample, kernel=kernel).run(model) for kernel in ("auto", "explicit"))
    assert all(t.dtype == torch.float64 for t in fast.values())
    assert max(relative_error(fast[key], explicit[key]) for key in fast) < 1e-12


def test_tolerance_follows_the_rounding_error_up_to_a_maximum():
    def result(difference: float, error: float, dtype: torch.dtype = torch.float32):
        return check_result("x", [difference], Tolerance.of_dtype(dtype, lambda: error))

    assert result(9e-6, 1.0).rounding_error is None, "not measured if it is not needed"
    assert [result(d, 1e-5).status for d in (7e-5, 9e-5)] == ["passed", "failed"]
    assert [result(d, 1.0).status for d in (9e-4, 1.1e-3)] == ["passed", "failed"]
    assert result(2e-5, 1e-7).tolerance == 1e-5 and result(2e-5, 1e-7).rounding_error == 1e-7
    half = result(2e-2, 1.0, torch.float16)
    assert half.status == "failed" and half.rounding_error is None, "only float32 is measured"


def test_every_check_has_an_error_to_detect():
    assert set(ERRORS) == set(all_checks("skipped"))


@pytest.mark.parametrize("family", ["gpt2", "t5", "sentence", "vit", "patchtst"])
def test_check_detects_a_difference_from_the_reference(family, tmp_path):
    """The reference loads the saved folder; one row of our loaded model is changed."""
    name = "reference = ours"
    glassformer.save(perturbed_bundle(family), tmp_path / "model", layout="hf")
    bundle = glassformer.load(tmp_path / "model")
    assert all_checks()[name](bundle, name).status == "passed"
    with torch.no_grad():
        stack = getattr(bundle.model, "decoder", None) or bundle.model.encoder
        stack.blocks[-1].ffn.down.weight[0].add_(0.1)
    assert all_checks()[name](bundle, name).status == "failed"


def test_check_without_comparisons_fails():
    assert check_result("x", [], Tolerance(1e-5)).status == "failed"


def test_differences_of_nan_and_of_other_shapes_are_infinite():
    ones = torch.ones(3)
    assert relative_error(ones, ones) == 0 and relative_error(ones, ones * 1.5) == pytest.approx(1 / 3)
    assert relative_error(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
    assert relative_error(ones, torch.ones(4)) == float("inf")
    assert bitwise_difference(ones, ones.clone()) == 0
    assert bitwise_difference(torch.tensor([0.0]), torch.tensor([-0.0])) > 0
    assert bitwise_difference(ones, ones.double()) == float("inf")

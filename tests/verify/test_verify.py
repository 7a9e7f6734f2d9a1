"""verify holds for every family, and each of its claims fails when what it promises is broken."""

from dataclasses import replace

import pytest
import torch

import glassformer
from glassformer.bundle import Bundle
from glassformer.core import kernels
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.kv_cache import LayerCache
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, Record
from glassformer.families.registry import families
from glassformer.inference.kv_cache import BeamKVCache
from glassformer.inference.linear import Int8Linear, PackedLinear
from glassformer.inference.slot_cache import SlotKVCache
from glassformer.verify import proofs, reference, stir, verify
from glassformer.verify.claims import gap, measured, same_bits


def fresh(family: str) -> Bundle:
    torch.manual_seed(0)
    model = glassformer.tiny(family).eval()
    stir(model)
    return Bundle(model=model)


@pytest.mark.parametrize("family", families())
def test_every_family_holds(family):
    claims = list(verify(fresh(family)))
    assert [c for c in claims if c.status == "fails"] == []
    assert sum(c.status == "holds" for c in claims) >= 7
    published = family != "original"
    assert (claims[0].status == "holds") == published, claims[0]


def wrap(monkeypatch, owner, name, change):
    """Replace a function by `change(right, *args)`."""
    right = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **words: change(right, *args, **words))


def nudged_load(right, *args, **words):
    bundle = right(*args, **words)
    with torch.no_grad():
        parameter = next(bundle.model.parameters())
        parameter.view(-1)[0] = torch.nextafter(parameter.view(-1)[0], torch.tensor(9.0))
    return bundle


# the smallest break of each promise: it must not go unnoticed
BREAKS = {
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
        m, kernels, "sdpa", lambda f, *a, **k: (lambda x: x + 0.01 * (x - x.detach()))(f(*a, **k))
    ),
    "observed = unobserved": lambda m: wrap(
        m, Observer, "__call__", lambda f, s, name, x: f(s, name, x) * (1 + 1e-6)
    ),
    "weights' rows sum to 1": lambda m: wrap(m, Record, "weights", lambda f, *a: f(*a) * 0.999),
    "weights @ v = heads": lambda m: wrap(m, Record, "weights", lambda f, *a: f(*a).flip(-1)),
    "saved = loaded": lambda m: wrap(m, reference, "load", nudged_load),
    "prepared = loaded": lambda m: wrap(m, PackedLinear, "__call__", lambda f, *a, **k: f(*a, **k) * 1.001),
    "int8 near loaded": lambda m: wrap(m, Int8Linear, "product", lambda f, *a: -f(*a)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_promise_is_noticed(name, monkeypatch):
    bundle, prove = fresh("gpt2"), proofs()[name]
    assert prove(bundle, name).status == "holds"
    BREAKS[name](monkeypatch)
    claim = prove(bundle, name)
    assert claim.status == "fails" and claim.worst > claim.tolerance


CACHES = {
    "the beam cache": lambda m: wrap(m, BeamKVCache, "append", lambda f, s, n, k, v: f(s, n, k * 1.01, v)),
    "the order of beams": lambda m: m.setattr(BeamKVCache, "reorder", lambda self, rows: None),
    "dropped slots": lambda m: wrap(m, BeamKVCache, "_compact", lambda f, s: (f(s), s.layers[0].v.mul_(1.1))),
    "slots": lambda m: wrap(m, SlotKVCache, "attend", lambda f, *a, **k: f(*a, **k) * 1.001),
    "the order of beams in slots": lambda m: m.setattr(SlotKVCache, "reorder", lambda self, rows: None),
}


@pytest.mark.parametrize("broken", CACHES)
def test_a_break_of_any_cache_that_users_run_is_noticed(broken, monkeypatch):
    name, bundle = "cached = uncached", fresh("llama")
    assert proofs()[name](bundle, name).status == "holds"
    CACHES[broken](monkeypatch)
    assert proofs()[name](bundle, name).status == "fails"


def test_every_promise_is_broken_once():
    assert set(BREAKS) == set(proofs("skipped"))


@pytest.mark.parametrize("family", ["gpt2", "t5", "sentence", "vit", "patchtst"])
def test_a_difference_from_the_reference_is_noticed(family, tmp_path):
    """The reference reads the folder; our loaded model is moved by a little."""
    name = "reference = ours"
    glassformer.save(fresh(family), tmp_path / "model", layout="hf")
    bundle = glassformer.load(tmp_path / "model")
    assert proofs()[name](bundle, name).status == "holds"
    with torch.no_grad():
        stack = getattr(bundle.model, "decoder", None) or bundle.model.encoder
        stack.blocks[-1].ffn.down.weight[0].add_(0.1)
    assert proofs()[name](bundle, name).status == "fails"


def test_nothing_compared_proves_nothing():
    assert measured("x", [], 1e-5).status == "fails"


def test_gaps_notice_what_is_not_a_number_and_other_shapes():
    ones = torch.ones(3)
    assert gap(ones, ones) == 0 and gap(ones, ones * 1.5) == pytest.approx(1 / 3)
    assert gap(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
    assert gap(ones, torch.ones(4)) == float("inf")
    assert same_bits(ones, ones.clone()) == 0
    assert same_bits(torch.tensor([0.0]), torch.tensor([-0.0])) > 0
    assert same_bits(ones, ones.double()) == float("inf")

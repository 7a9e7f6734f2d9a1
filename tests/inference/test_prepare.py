"""A model prepared for inference matches the original, also after it changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer
from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.errors import GlassformerError
from glassformer.families.registry import families
from glassformer.generation import GenerationConfig, GenerationOutput, prefill
from glassformer.generation.inference_model import InferenceModel, prepare_for_inference
from glassformer.inference import kv_cache
from glassformer.inference.encoder import InferenceEncoder, supports
from glassformer.inference.kv_cache import BeamKVCache
from glassformer.inference.linear import Int8Linear, PackedLinear, _onednn, _reduce_range
from glassformer.inference.prepare import HookedModuleError, LinearFactory
from glassformer.verify import perturb_parameters
from glassformer.verify.inputs import drop_padding, has_tokens, random_inputs
from tests.core.models import model_of as core_model
from tests.core.models import spec_of
from tests.generation.test_greedy import PAD, START, examples, generate_with, padded
from tests.generation.test_greedy import model_of as writer

LAYOUTS = [None]
INT8_TOLERANCE = 0.1 if _reduce_range() else 0.06  # seven bits, or eight
LAYOUTS += [PackedLinear] if _onednn() is not None else []
LAYOUTS += [Int8Linear] if "fbgemm" in torch.backends.quantized.supported_engines else []


def far(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


def fresh(family: str) -> Any:
    torch.manual_seed(0)
    model = glassformer.tiny(family).eval()
    perturb_parameters(model)
    return model


@torch.inference_mode()
def gaps(factory: LinearFactory | None, model: Any, rows: int) -> list[float]:
    """How far the scores that steps give lie from those of the model's own forward, at every step."""
    lengths, steps = torch.tensor([5, 2, 4][:rows]), 6
    args = torch.randint(3, 20, (rows, 5), generator=torch.Generator().manual_seed(1))
    real = torch.arange(5) < lengths[:, None]
    more = torch.randint(3, 20, (rows, steps), generator=torch.Generator().manual_seed(2))
    sourced = isinstance(model, EncoderDecoder)
    prefilled = prefill(
        InferenceModel(model, factory), args, real, start_ids=[START] if sourced else None, capacity=steps
    )
    actual = [prefilled.logits, *(prefilled.decoder.step(more[:, n]).clone() for n in range(steps - 1))]
    output = []
    for n, logits in enumerate(actual):
        for row, length in enumerate(lengths.tolist()):
            text, after = args[row : row + 1, :length], more[row : row + 1, :n]
            if sourced:
                after = torch.cat((torch.tensor([[START]]), after), 1)
                own = model(text, after, torch.ones_like(text).bool(), torch.ones_like(after).bool())
            else:
                complete = torch.cat((text, after), 1)
                own = model(complete, torch.ones_like(complete).bool())
            output.append(far(logits[row], own[0, -1]))
    return output


@pytest.mark.parametrize("factory", LAYOUTS, ids=str)
@pytest.mark.parametrize("family", families())
def test_every_linear_layer_type_matches_the_model(family: str, factory: type) -> None:
    near = INT8_TOLERANCE if factory is Int8Linear else 1e-4
    model = fresh(family)
    if isinstance(model, EncoderDecoder | DecoderOnly):
        worst = max(gaps(factory, model, rows=3) + gaps(factory, model, rows=1))
    elif supports(model):
        sample = random_inputs(model, "right" if has_tokens(model) else "none")
        with torch.inference_mode():
            own, laid = (
                drop_padding(model, sample, sample.run(one))
                for one in (model, InferenceEncoder(model, factory))
            )  # type: ignore[arg-type]
        worst = max(far(laid[name], own[name]) for name in own)
    else:
        pytest.skip("run as it is")
    assert worst < near and (factory is not Int8Linear or worst > 0)


def texts(model: nn.Module, ids: Tensor, **kwargs: Any) -> list[list[GenerationOutput]]:
    requested = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 8, **kwargs}
    return generate_with(
        model, ids, config=GenerationConfig(**requested), eos_token_id=[3, 40], pad_token_id=PAD
    )


def same(actual: list[list[GenerationOutput]], expected: list[list[GenerationOutput]]) -> None:
    for some, others in zip(actual, expected, strict=True):
        assert [(text.ids, text.finish_reason) for text in some] == [
            (text.ids, text.finish_reason) for text in others
        ]
        assert [text.score for text in some] == pytest.approx([text.score for text in others], abs=1e-4)


def changed(model: nn.Module) -> None:
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(1.5)


CHANGES: dict[str, Callable[[Any], object]] = {
    "written": changed,
    "loaded": lambda model: model.load_state_dict(writer("gpt2", seed=1).state_dict()),
    "replaced": lambda model: setattr(model.head, "weight", nn.Parameter(-model.head.weight.detach())),
    "rounded there and back": lambda model: model.to(torch.float8_e5m2).float(),
    "double": lambda model: model.double(),
    "bfloat16": lambda model: model.bfloat16(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_weights_are_detected(name: str) -> None:
    model, ids = writer("gpt2"), padded(examples(3), "right")
    bundle = Bundle(model=model)
    before = texts(bundle.inference_model(), ids)
    CHANGES[name](model)
    after = texts(bundle.inference_model(), ids)
    same(after, texts(model, ids))
    if name not in ("double", "bfloat16"):  # which change little
        assert [t[0].ids for t in after] != [t[0].ids for t in before]


def test_inference_encoder_uses_changed_weights() -> None:
    model = fresh("bert")
    bundle, ids = Bundle(model=model), torch.tensor([[2, 9, 14, 5], [7, 6, 11, 3]])
    with torch.inference_mode():
        bundle.inference_model()(ids)
        for change in (changed, nn.Module.double, nn.Module.float):
            with torch.inference_mode(False):
                change(model)
            assert far(bundle.inference_model()(ids), model(ids)) < 1e-4
    model.train()
    model.embed.dropout.p = model.encoder.blocks[0].dropout.p = 0.5
    with torch.inference_mode():
        actual = bundle.inference_model()(ids)
        assert model.training and model.embed.dropout.training
        assert far(actual, model.eval()(ids)) < 1e-4


def test_autocast_is_respected() -> None:
    model, ids = writer("gpt2"), padded(examples(3), "right")
    bundle = Bundle(model=model)
    before = texts(bundle.inference_model(), ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(texts(bundle.inference_model(), ids), texts(model, ids))
        with pytest.raises(GlassformerError, match="int8"):
            prepare_for_inference(model, "int8")
    same(texts(bundle.inference_model(), ids), before)


@pytest.mark.parametrize("weights", ["own", "int8"])
def test_copied_model_is_independent(weights: Any) -> None:
    if weights == "int8" and Int8Linear not in LAYOUTS:
        pytest.skip("this build of torch has no int8 products")
    ids = padded(examples(3), "right")
    bundle = Bundle(model=writer("gpt2"), weights=weights)
    before = texts(bundle.inference_model(), ids)
    other = copy.deepcopy(bundle)
    same(texts(other.inference_model(), ids), before)
    changed(other.model)
    assert [t[0].ids for t in texts(other.inference_model(), ids)] != [t[0].ids for t in before]
    same(texts(bundle.inference_model(), ids), before)
    encoder, kwargs = InferenceEncoder(fresh("bert"), weights), torch.tensor([[2, 9, 14, 5]])
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(encoder)(kwargs), encoder(kwargs))


def test_causal_encoder_stays_causal() -> None:
    ids = torch.randint(1, 20, (2, 6), generator=torch.Generator().manual_seed(0))
    for shape in ("encoder_only", "encoder_decoder"):
        requested: Any = spec_of(shape)
        torch.manual_seed(0)
        model: Any = build_model(replace(requested, encoder=replace(requested.encoder, causal=True))).eval()
        with torch.inference_mode():
            if isinstance(model.spec, spec.EncoderOnlySpec):
                assert far(InferenceEncoder(model)(ids), model(ids)) < 1e-5
            else:
                prefilled = prefill(prepare_for_inference(model), ids, ids > 0, start_ids=START, capacity=2)
                assert far(prefilled.logits, model(ids, torch.full((2, 1), START))[:, -1]) < 1e-5


def test_empty_sources() -> None:
    model = writer("t5")
    options: dict[str, Any] = {
        "config": GenerationConfig(max_new_tokens=5, num_beams=2),
        "eos_token_id": 3,
        "pad_token_id": PAD,
    }
    full, empty = torch.tensor([[5, 6, 7], [PAD] * 3]), torch.zeros(1, 0, dtype=torch.long)
    expected = generate_with(prepare_for_inference(model), full, start_ids=START, **options)
    same(
        generate_with(prepare_for_inference(model), empty, start_ids=START, **options),
        expected[1:],
    )
    same(generate_with(model, full, start_ids=START, **options), expected)


FORGETFUL: list[dict[str, Any]] = [
    {"window": 3},
    {"position": "alibi"},
    {"position": "relative"},
    {"position": "rotary", "num_kv_heads": 2, "window": 4},
]


@pytest.mark.parametrize("shape", ["decoder_only", "encoder_decoder"])
@pytest.mark.parametrize("kwargs", FORGETFUL, ids=str)
def test_compacting_the_beam_cache_does_not_change_the_output(
    shape: str, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of unequal lengths and limits, some of which leave early, with and without forgetting."""
    model: Any = core_model(shape, **kwargs)
    ids = padded([[1 + token % 22 for token in row] for row in examples(5)], "right")
    moved: list[bool] = []
    forget = BeamKVCache._compact

    def counted(self: BeamKVCache) -> None:
        forget(self)
        moved.append(self.recent_steps == 0)

    monkeypatch.setattr(BeamKVCache, "_compact", counted)
    for requested in ({"num_return_sequences": 4}, {"do_sample": True, "seed": 1, "temperature": 1.3}):
        settings = GenerationConfig(num_beams=4, max_new_tokens=18, **requested)
        options: dict[str, Any] = {
            "config": settings,
            "eos_token_id": [2, 7, 99],
            "pad_token_id": PAD,
            "start_ids": START if shape == "encoder_decoder" else None,
            "max_new_tokens": {7: 3, 1: 18, 4: 0, 6: 9, 2: 14}.__getitem__,
        }
        monkeypatch.setattr(kv_cache, "COMPACT_INTERVAL", 10**6)
        before, expected = len(moved), generate_with(model, ids, **options)
        assert len(moved) == before
        monkeypatch.setattr(kv_cache, "COMPACT_INTERVAL", 2)
        for one in (model, prepare_for_inference(model)):
            same(generate_with(one, ids, **options), expected)
    assert any(moved)


class Halved(nn.Module):
    """A projection that someone wrapped: its matrix is not all it does."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias

    def forward(self, x: Tensor) -> Tensor:
        return -0.5 * self.base(x)


def test_wrapped_projections_are_called_and_hooks_elsewhere_rejected() -> None:
    model = fresh("original")
    bundle, ids = Bundle(model=model), padded(examples(), "right")
    options: dict[str, Any] = {
        "config": GenerationConfig(max_new_tokens=3),
        "eos_token_id": None,
        "pad_token_id": PAD,
    }

    def first() -> GenerationOutput:
        return generate_with(bundle.inference_model(), ids, start_ids=[START], **options)[0][0]

    before, block = first().score, model.decoder.blocks[0]
    block.ffn.up = Halved(block.ffn.up)
    with torch.inference_mode():
        logits = model(ids[:1], torch.tensor([[START]]), ids[:1] != PAD)[0, -1]
    assert first().score != before
    assert first().logprobs[0] == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-4)
    block.ffn.up = block.ffn.up.base
    assert first().score == before
    calls: list[int] = []
    hook = block.ffn.up.register_forward_hook(lambda *_: calls.append(1))
    assert first().score == pytest.approx(before) and calls
    hook.remove()
    block.register_forward_hook(lambda *_: None)
    with pytest.raises(HookedModuleError) as refused:
        first()
    assert refused.value.module == "decoder.blocks.0"


@pytest.mark.skipif(Int8Linear not in LAYOUTS, reason="this build of torch has no int8 products")
def test_int8_row_does_not_depend_on_other_rows() -> None:
    torch.manual_seed(0)
    product, x = Int8Linear([(torch.randn(24, 16), torch.randn(24))]), torch.randn(5, 16)
    x[3] *= 100  # nor on a large one among them
    assert torch.equal(product(x), torch.cat([product(row[None]) for row in x]))

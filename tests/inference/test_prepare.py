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
from glassformer.core.block import Block
from glassformer.core.build import build_model
from glassformer.core.inputs import Masks
from glassformer.core.masks import Mask
from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.errors import GlassformerError, UnsupportedError
from glassformer.families.registry import families
from glassformer.generation import GenerationConfig, GenerationOutput, prefill
from glassformer.generation.inference_model import InferenceModel, prepare_for_inference
from glassformer.inference import kv_cache
from glassformer.inference.encoder import InferenceEncoder, supports
from glassformer.inference.kv_cache import BeamKVCache
from glassformer.inference.linear import Int8Linear, PackedLinear, _onednn, _reduce_range
from glassformer.inference.prepare import HookedModuleError, LinearFactory, packed_copy
from glassformer.training.learner import enable_gradient_checkpointing
from glassformer.verify import perturb_parameters
from glassformer.verify.inputs import drop_padding, has_tokens, named_outputs, random_inputs
from tests.core.models import model_of as core_model
from tests.core.models import spec_of
from tests.faults.scale import WHOLE
from tests.generation.test_greedy import PAD, START, examples, generate_with, model_of, padded

LAYOUTS = [None]
INT8_TOLERANCE = 0.1 if _reduce_range() else 0.06  # seven bits, or eight
LAYOUTS += [PackedLinear] if _onednn() is not None else []
LAYOUTS += [Int8Linear] if "fbgemm" in torch.backends.quantized.supported_engines else []


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


def perturbed_model(family: str) -> Any:
    torch.manual_seed(0)
    model = glassformer.tiny(family).eval()
    perturb_parameters(model)
    return model


@torch.inference_mode()
def step_errors(factory: LinearFactory | None, model: Any, rows: int) -> list[float]:
    """The relative error of the logits of every decode step, compared with the model's forward."""
    lengths, steps = torch.tensor([5, 2, 4][:rows]), 6
    inputs = torch.randint(3, 20, (rows, 5), generator=torch.Generator().manual_seed(1))
    real = torch.arange(5) < lengths[:, None]
    continuation = torch.randint(3, 20, (rows, steps), generator=torch.Generator().manual_seed(2))
    has_source = isinstance(model, EncoderDecoder)
    prefilled = prefill(
        InferenceModel(model, factory),
        inputs,
        real,
        start_ids=[START] if has_source else None,
        capacity=steps,
    )
    actual = [
        prefilled.logits,
        *(prefilled.decoder.step(continuation[:, n]).clone() for n in range(steps - 1)),
    ]
    errors = []
    for n, logits in enumerate(actual):
        for row, length in enumerate(lengths.tolist()):
            text, after = inputs[row : row + 1, :length], continuation[row : row + 1, :n]
            if has_source:
                after = torch.cat((torch.tensor([[START]]), after), 1)
                masks = Masks(torch.ones_like(text).bool(), torch.ones_like(after).bool())
                expected = model(text, after, masks)
            else:
                complete = torch.cat((text, after), 1)
                expected = model(complete, torch.ones_like(complete).bool())
            errors.append(relative_error(logits[row], expected[0, -1]))
    return errors


SHAPES = ("original", "t5", "gpt2", "gemma2", "bert", "swin", "detr", "sam", "patchtst")  # of the model
CASES = [(family, LAYOUTS[-1]) for family in families()]
CASES += [(family, factory) for factory in LAYOUTS[:-1] for family in (families() if WHOLE else SHAPES)]


@pytest.mark.parametrize(("family", "factory"), CASES)
def test_every_linear_layer_type_matches_the_model(family: str, factory: type) -> None:
    tolerance = INT8_TOLERANCE if factory is Int8Linear else 1e-4
    model = perturbed_model(family)
    if isinstance(model, EncoderDecoder | DecoderOnly) and model.spec.modalities == ("text",):
        worst = max(step_errors(factory, model, rows=3) + step_errors(factory, model, rows=1))
    else:
        prepared = InferenceEncoder(model, factory) if supports(model) else packed_copy(model, factory)
        sample = random_inputs(model, "right" if has_tokens(model) else "none")
        with torch.inference_mode():
            expected, actual = (
                drop_padding(model, sample, named_outputs(module(*sample.arguments())))
                for module in (model, prepared)
            )
        worst = max(relative_error(actual[name], expected[name]) for name in expected)
    rounds = factory is Int8Linear and any(isinstance(module, Block) for module in model.modules())
    assert worst < tolerance and (not rounds or worst > 0)


def texts(model: nn.Module, ids: Tensor, **kwargs: Any) -> list[list[GenerationOutput]]:
    requested = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 8, **kwargs}
    return generate_with(
        model, ids, config=GenerationConfig(**requested), eos_token_id=[3, 40], pad_token_id=PAD
    )


def assert_same_outputs(actual: list[list[GenerationOutput]], expected: list[list[GenerationOutput]]) -> None:
    for outputs, references in zip(actual, expected, strict=True):
        assert [(text.ids, text.finish_reason) for text in outputs] == [
            (text.ids, text.finish_reason) for text in references
        ]
        assert [text.score for text in outputs] == pytest.approx(
            [text.score for text in references], abs=1e-4
        )


def scale_parameters(model: nn.Module) -> None:
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(1.5)


CHANGES: dict[str, Callable[[Any], object]] = {
    "written": scale_parameters,
    "loaded": lambda model: model.load_state_dict(model_of("gpt2", seed=1).state_dict()),
    "replaced": lambda model: setattr(model.head, "weight", nn.Parameter(-model.head.weight.detach())),
    "rounded there and back": lambda model: model.to(torch.float8_e5m2).float(),
    "double": lambda model: model.double(),
    "bfloat16": lambda model: model.bfloat16(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_weights_are_detected(name: str) -> None:
    model, ids = model_of("gpt2"), padded(examples(3), "right")
    bundle = Bundle(model=model)
    before = texts(bundle.inference_model(), ids)
    CHANGES[name](model)
    after = texts(bundle.inference_model(), ids)
    assert_same_outputs(after, texts(model, ids))
    if name not in ("double", "bfloat16"):  # which change little
        assert [t[0].ids for t in after] != [t[0].ids for t in before]


def test_inference_encoder_uses_changed_weights() -> None:
    model = perturbed_model("bert")
    bundle, ids = Bundle(model=model), torch.tensor([[2, 9, 14, 5], [7, 6, 11, 3]])
    with torch.inference_mode():
        bundle.inference_model()(ids)
        for change in (scale_parameters, nn.Module.double, nn.Module.float):
            with torch.inference_mode(False):
                change(model)
            assert relative_error(bundle.inference_model()(ids), model(ids)) < 1e-4
    model.train()
    model.embed.dropout.p = model.encoder.blocks[0].dropout.p = 0.5
    with torch.inference_mode():
        actual = bundle.inference_model()(ids)
        assert model.training and model.embed.dropout.training
        assert relative_error(actual, model.eval()(ids)) < 1e-4


def test_autocast_is_respected() -> None:
    model, ids = model_of("gpt2"), padded(examples(3), "right")
    bundle = Bundle(model=model)
    before = texts(bundle.inference_model(), ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same_outputs(texts(bundle.inference_model(), ids), texts(model, ids))
        with pytest.raises(GlassformerError, match="int8"):
            prepare_for_inference(model, "int8")
    assert_same_outputs(texts(bundle.inference_model(), ids), before)


@pytest.mark.parametrize("weights", ["own", "int8"])
def test_copied_model_is_independent(weights: Any) -> None:
    if weights == "int8" and Int8Linear not in LAYOUTS:
        pytest.skip("this build of torch has no int8 products")
    ids = padded(examples(3), "right")
    bundle = Bundle(model=model_of("gpt2"), weights=weights)
    before = texts(bundle.inference_model(), ids)
    copied = copy.deepcopy(bundle)
    assert_same_outputs(texts(copied.inference_model(), ids), before)
    scale_parameters(copied.model)
    assert [t[0].ids for t in texts(copied.inference_model(), ids)] != [t[0].ids for t in before]
    assert_same_outputs(texts(bundle.inference_model(), ids), before)
    encoder, kwargs = InferenceEncoder(perturbed_model("bert"), weights), torch.tensor([[2, 9, 14, 5]])
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(encoder)(kwargs), encoder(kwargs))


def test_inference_encoder_refuses_masks_other_than_padding() -> None:
    encoder, ids = InferenceEncoder(perturbed_model("bert")), torch.tensor([[2, 9, 14, 5]])
    by_query = torch.ones(4, 4).tril()[None]
    for mask in (by_query.bool(), torch.randn(1, 4), torch.randn(1, 1, 1, 4), Mask(window=2)):
        with pytest.raises(UnsupportedError):
            encoder(ids, mask)


def test_causal_encoder_stays_causal() -> None:
    ids = torch.randint(1, 20, (2, 6), generator=torch.Generator().manual_seed(0))
    for shape in ("encoder_only", "encoder_decoder"):
        requested: Any = spec_of(shape)
        torch.manual_seed(0)
        model: Any = build_model(replace(requested, encoder=replace(requested.encoder, causal=True))).eval()
        with torch.inference_mode():
            if isinstance(model.spec, spec.EncoderOnlySpec):
                assert relative_error(InferenceEncoder(model)(ids), model(ids)) < 1e-5
            else:
                prefilled = prefill(prepare_for_inference(model), ids, ids > 0, start_ids=START, capacity=2)
                assert relative_error(prefilled.logits, model(ids, torch.full((2, 1), START))[:, -1]) < 1e-5


def test_empty_sources() -> None:
    model = model_of("t5")
    options: dict[str, Any] = {
        "config": GenerationConfig(max_new_tokens=5, num_beams=2),
        "eos_token_id": 3,
        "pad_token_id": PAD,
    }
    full, empty = torch.tensor([[5, 6, 7], [PAD] * 3]), torch.zeros(1, 0, dtype=torch.long)
    expected = generate_with(prepare_for_inference(model), full, start_ids=START, **options)
    assert_same_outputs(
        generate_with(prepare_for_inference(model), empty, start_ids=START, **options),
        expected[1:],
    )
    assert_same_outputs(generate_with(model, full, start_ids=START, **options), expected)


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
    """Rows have different lengths and limits, and some finish early."""
    model: Any = core_model(shape, **kwargs)
    ids = padded([[1 + token % 22 for token in row] for row in examples(5)], "right")
    compacted: list[bool] = []
    compact = BeamKVCache._compact

    def counted(self: BeamKVCache) -> None:
        compact(self)
        compacted.append(self.recent_steps == 0)

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
        before, expected = len(compacted), generate_with(model, ids, **options)
        assert len(compacted) == before
        monkeypatch.setattr(kv_cache, "COMPACT_INTERVAL", 2)
        for module in (model, prepare_for_inference(model)):
            assert_same_outputs(generate_with(module, ids, **options), expected)
    assert any(compacted)


class Halved(nn.Module):
    """A wrapped projection that does more than multiply by its weight."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias

    def forward(self, x: Tensor) -> Tensor:
        return -0.5 * self.base(x)


def test_wrapped_projections_are_called_and_hooks_elsewhere_rejected() -> None:
    model = perturbed_model("original")
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
    with pytest.raises(HookedModuleError) as raised:
        first()
    assert raised.value.module == "decoder.blocks.0"


@pytest.mark.skipif(Int8Linear not in LAYOUTS, reason="this build of torch has no int8 products")
def test_int8_row_does_not_depend_on_other_rows() -> None:
    torch.manual_seed(0)
    product, x = Int8Linear([(torch.randn(24, 16), torch.randn(24))]), torch.randn(5, 16)
    x[3] *= 100  # nor on a large one among them
    assert torch.equal(product(x), torch.cat([product(row[None]) for row in x]))


def test_copies_of_checkpointed_blocks_run_their_fused_layers() -> None:
    model, ids, calls = perturbed_model("bert").eval(), torch.ones(2, 5).long(), list[Any]()
    expected = InferenceEncoder(model, PackedLinear).hidden_states(ids)[0]
    enable_gradient_checkpointing(model)

    class Counted(PackedLinear):
        def __call__(self, *args: Any, **options: Any) -> Any:
            calls.append(self)
            return super().__call__(*args, **options)

    with torch.no_grad():
        torch.testing.assert_close(InferenceEncoder(model, Counted).hidden_states(ids)[0], expected)
    assert len(set(calls)) == 4 * len(model.encoder.blocks)

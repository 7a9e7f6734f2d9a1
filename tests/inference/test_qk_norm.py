"""QK-norm matches transformers in every way a model is run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3 import modeling_qwen3 as reference

from glassformer.core import spec
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.masks import Mask
from glassformer.core.model import EncoderDecoder
from glassformer.core.positions import PositionTerms, RotaryPositions
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.verify import perturb_parameters
from tests.core.models import VOCAB, model_of
from tests.generation.continuous.requests import requests
from tests.generation.continuous.test_concurrent_requests import check_concurrent_requests
from tests.inference.test_prepare import LAYOUTS, step_errors

EPS = 1e-3  # large, so that it shows


class NormAfterRotary(PositionTerms):
    """The wrong order."""

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k)
        return self.q_norm(q), self.k_norm(k)


def test_qk_norm_matches_transformers_and_precedes_the_rotation() -> None:
    torch.manual_seed(0)
    config = reference.Qwen3Config(
        hidden_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=10, rms_norm_eps=EPS
    )
    config._attn_implementation = "eager"
    theirs = reference.Qwen3Attention(config, 0).eval()
    perturb_parameters(theirs)
    ours = MultiHeadAttention(
        24, num_heads=4, num_kv_heads=2, head_dim=10, biases=(), qk_norm=spec.RMSNormSpec(eps=EPS)
    )
    state = {name.replace("o_proj", "out_proj"): x for name, x in theirs.state_dict().items()}
    ours.load_state_dict(state)
    x = torch.randn(2, 7, 24)
    terms = RotaryPositions(10)(torch.arange(7)[None])
    assert terms.rotary is not None
    cos, sin = (table[0] for table in terms.rotary)  # (1, T, K)
    hidden = torch.full((7, 7), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        expected, _ = theirs(x, (cos, sin), hidden)
        actual = ours(x, ours.prepare(x, Mask(causal=True), terms=terms))
        wrong = NormAfterRotary(terms.rotary)
        wrong.q_norm, wrong.k_norm = ours.q_norm, ours.k_norm
        ours.q_norm = ours.k_norm = None
        unnormalized = ours(x, ours.prepare(x, Mask(causal=True), terms=wrong))
    torch.testing.assert_close(actual, expected)
    assert float((unnormalized - expected).abs().max()) > 0.01


@pytest.fixture(scope="module", params=["decoder_only", "encoder_decoder"])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    built = model_of(
        request.param, position="rotary", num_kv_heads=2, qk_norm=spec.RMSNormSpec(eps=EPS)
    ).eval()
    perturb_parameters(built)
    return built


@pytest.mark.parametrize("factory", LAYOUTS, ids=str)
def test_decode_steps_match_the_model_for_every_linear_layer_type(factory: Any, model: Any) -> None:
    allowed = 0.1 if factory is not None and "Int8" in factory.__name__ else 1e-5
    assert max(step_errors(factory, model, 3)) < allowed


def test_missing_qk_norm_is_detected(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.generation import inference_model

    right = inference_model.fused_copy

    def without(stack: Any, make: Any) -> Any:
        built = right(stack, make)
        for attention in built.attentions:
            attention.q_norm = None
        return built

    monkeypatch.setattr(inference_model, "fused_copy", without)
    assert max(step_errors(None, model, 3)) > 1e-2


def test_batched_requests_match_single_requests(model: Any) -> None:
    starts = {"start_ids": [1]} if isinstance(model, EncoderDecoder) else {}
    check_concurrent_requests(prepare_for_inference(model), requests(8, starts, vocab=VOCAB, most=12))

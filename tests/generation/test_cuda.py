"""Generation on a GPU matches the CPU and synchronizes only when it checks for finished rows."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from glassformer.baselines import build_baseline
from glassformer.baselines import spec as baseline_specs
from glassformer.generation import GenerationConfig
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.generation.stopping_criteria import CHECK_EVERY
from tests.generation.test_greedy import PAD, START, examples, generate_with, model_of, padded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("form", ["loaded", "prepared"])
@pytest.mark.parametrize("family", ["original", "marian", "t5", "gpt2", "llama", "mistral", "falcon", "lstm"])
def test_gpu_matches_cpu_and_rarely_synchronizes(family: str, form: str, beams: int) -> None:
    if family == "lstm":
        torch.manual_seed(0)
        pairs = baseline_specs.LSTMEncoderDecoderSpec(src_vocab_size=89, tgt_vocab_size=89, d_model=32)
        model = build_baseline(pairs).eval()
    else:
        model = model_of(family)
    kwargs = {"start_ids": START} if family in ("original", "marian", "t5", "lstm") else {}
    ids = padded(examples(), "right")

    def generated(inputs: Tensor, most: int) -> list[list[int]]:
        settings = GenerationConfig(num_beams=beams, max_new_tokens=most)
        outputs = generate_with(model, inputs, config=settings, eos_token_id=-5, pad_token_id=PAD, **kwargs)
        return [texts[0].ids for texts in outputs]

    expected = generated(ids, 12)
    model.cuda()
    if form == "prepared":
        model = prepare_for_inference(model)
    assert generated(ids.cuda(), 12) == expected
    with torch.autocast("cuda", torch.bfloat16):
        rounded = generated(ids.cuda(), 12)
    assert [len(row) for row in rounded] == [12] * len(ids)

    def synchronizations(most: int) -> int:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as received:
                warnings.simplefilter("always")
                generated(ids.cuda(), most)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(warning.message) for warning in received)

    short, long = synchronizations(2 * CHECK_EVERY), synchronizations(6 * CHECK_EVERY)
    assert short > 0, "synchronizations are not detected here"
    assert long - short <= 4, f"{long - short} more synchronizations in 4 more checks"

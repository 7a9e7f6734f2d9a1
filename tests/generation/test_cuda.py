"""On a GPU: what the CPU writes, and no waiting for the device between two looks."""

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
from tests.generation.test_greedy import PAD, START, ask, examples, model_of, padded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("form", ["plain", "ready"])
@pytest.mark.parametrize("family", ["original", "marian", "t5", "gpt2", "llama", "mistral", "falcon", "lstm"])
def test_a_gpu_writes_what_the_cpu_writes_and_seldom_waits(family: str, form: str, beams: int) -> None:
    if family == "lstm":
        torch.manual_seed(0)
        pairs = baseline_specs.LSTMEncoderDecoderSpec(src_vocab_size=89, tgt_vocab_size=89, d_model=32)
        model = build_baseline(pairs).eval()
    else:
        model = model_of(family)
    words = {"start_ids": START} if family in ("original", "marian", "t5", "lstm") else {}
    ids = padded(examples(), "right")

    def written(inputs: Tensor, most: int) -> list[list[int]]:
        settings = GenerationConfig(num_beams=beams, max_new_tokens=most)
        found = ask(model, inputs, config=settings, eos_token_id=-5, pad_token_id=PAD, **words)
        return [texts[0].ids for texts in found]

    expected = written(ids, 12)
    model.cuda()
    if form == "ready":
        model = prepare_for_inference(model)
    assert written(ids.cuda(), 12) == expected
    with torch.autocast("cuda", torch.bfloat16):
        rounded = written(ids.cuda(), 12)
    assert [len(row) for row in rounded] == [12] * len(ids)

    def waits(most: int) -> int:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                written(ids.cuda(), most)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(warning.message) for warning in heard)

    few, many = waits(2 * CHECK_EVERY), waits(6 * CHECK_EVERY)
    assert few > 0, "waiting is not heard here, so nothing is shown"
    assert many - few <= 4, f"{many - few} more waits in 4 more looks"

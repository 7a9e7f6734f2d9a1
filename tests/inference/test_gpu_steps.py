"""Generation with Triton kernels matches the model, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is first imported
pytest.importorskip("triton", reason="not installed: triton")

from glassformer.core import spec  # noqa: E402
from glassformer.core.build import build_model  # noqa: E402
from glassformer.generation import GenerationConfig, GenerationParams, generate, prefill  # noqa: E402
from glassformer.generation.continuous import Scheduler  # noqa: E402
from glassformer.generation.continuous.runner import SlotRunner  # noqa: E402
from glassformer.generation.cuda_graph_decoder import CUDAGraphDecoder  # noqa: E402
from glassformer.generation.inference_model import CachedDecoder, InferenceModel  # noqa: E402
from glassformer.inference.gpu.linear import TritonInt8Linear, TritonLinear  # noqa: E402
from tests.faults.scale import sample  # noqa: E402
from tests.generation.test_greedy import PAD, START, generate_with, model_of  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
LOW = torch.bfloat16 if HAS_GPU else torch.float16  # the interpreter has no bfloat16
FAMILIES = ["original", "marian", "bart", "t5", "gpt2", "llama", "mistral", "qwen2", "qwen3", "falcon"]
FAMILIES += ["gpt_neox", "gemma2", "gemma3"]
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "forbidden": {"min_new_tokens": 3, "suppress_tokens": (7, 11)},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "beams, forbidden": {"num_beams": 2, "min_new_tokens": 4, "suppress_tokens": (7,)},
    "beams, penalised": {"num_beams": 2, "repetition_penalty": 1.3, "length_penalty": 2.0},
    "samples": {"do_sample": True, "num_return_sequences": 2, "seed": 3, "top_k": 5},
}
STEPS = 6
if not HAS_GPU:  # the interpreter takes a minute for what a GPU does in a second
    FAMILIES = list(sample(["t5", "qwen3", "gemma2", "original", "llama", "falcon"], 3))
    SETTINGS = {name: SETTINGS[name] for name in ("greedy", "beams")}
    STEPS = 3


def inputs(family: str) -> tuple[nn.Module, Tensor, Tensor, dict[str, Any]]:
    model = model_of(family).to(DEVICE)
    ids = torch.tensor([[5, 9, 14, 33], [21, 6, PAD, PAD], [8, 30, 17, PAD]], device=DEVICE)
    starts = {"start_ids": [START]} if family in ("original", "marian", "bart", "t5") else {}
    return model, ids, ids != PAD, starts


@pytest.mark.parametrize("family", FAMILIES)
def test_triton_generation_matches_the_model(family: str) -> None:
    model, ids, real, starts = inputs(family)
    for name, options in SETTINGS.items():
        settings = GenerationConfig(max_new_tokens=STEPS, **options)
        plain, fast = (
            generate_with(
                module, ids, real, config=settings, eos_token_id=[3, 40], pad_token_id=PAD, **starts
            )
            for module in (model, InferenceModel(model, TritonLinear))
        )
        for expected, actual in zip(plain, fast, strict=True):
            assert [reference.ids for reference in expected] == [reference.ids for reference in actual], name
            for reference, output in zip(expected, actual, strict=True):
                assert reference.score == pytest.approx(output.score, abs=1e-3), name


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"] if HAS_GPU else ["llama"])
def test_scheduler_steps_match_generation(family: str) -> None:
    """Rows that join and leave at different times, also beams, which need another cache."""
    model = model_of(family).to(DEVICE)
    prompts = [[5, 9, 14, 33], [21, 6], [8, 30, 17], [7] * 9, [12, 5]]
    options: list[dict[str, Any]] = [{}, {}, {"do_sample": True, "seed": 1}, {}, {"num_beams": 2}]
    lengths = [STEPS + 3, 2, STEPS, STEPS, STEPS]
    params = [
        GenerationParams(config=GenerationConfig(max_new_tokens=length, **own), eos_token_id=[3, 40])
        for length, own in zip(lengths, options, strict=True)
    ]
    scheduler = Scheduler(InferenceModel(model, TritonLinear), slots=5, tokens=5 * 40)
    try:
        requests = [scheduler.submit(ids, own) for ids, own in zip(prompts, params, strict=True)]
        found = [request.result(300)[0] for request in requests]
        assert isinstance(scheduler._runner, SlotRunner) and scheduler._runner.graph_batch is not None
    finally:
        scheduler.close()
    for ids, own, output in zip(prompts, params, found, strict=True):
        ((expected, *_),) = generate(model, torch.tensor([ids], device=DEVICE), own)
        assert output.ids == expected.ids
        assert output.score == pytest.approx(expected.score, abs=1e-3)


@pytest.mark.parametrize("family", ["original", "llama"])
def test_low_precision_and_int8_generation_stays_close(family: str) -> None:
    model, ids, real, starts = inputs(family)
    options: dict[str, Any] = {"start_ids": starts.get("start_ids"), "capacity": 4}

    def scores(module: nn.Module) -> Tensor:
        with torch.inference_mode():
            prefilled = prefill(module, ids, real, **options)
            return torch.stack(
                [prefilled.logits, *(prefilled.decoder.step(ids[:, n]).clone() for n in (0, 0))]
            ).float()

    exact = scores(model)
    rounded = scores(InferenceModel(model, TritonInt8Linear))
    low = scores(InferenceModel(model.to(LOW), TritonLinear))
    for actual, tolerance in ((rounded, 0.05), (low, 0.03)):
        assert 0 < float((actual - exact).norm() / exact.norm()) < tolerance


def test_unsupported_model_generates_without_triton() -> None:
    block = spec.BlockSpec(
        attention=spec.AttentionSpec(num_heads=4, value_dim=6), feed_forward=spec.FeedForwardSpec(d_ff=48)
    )
    wide = spec.DecoderOnlySpec(
        input=spec.TokensSpec(vocab_size=50),
        decoder=spec.StackSpec(d_model=32, num_layers=1, block=block, causal=True),
        head=spec.LanguageModelSpec(vocab_size=50),
    )
    ids = torch.tensor([[5, 9, 14, 33]], device=DEVICE)
    for model, kind in ((model_of("llama"), CUDAGraphDecoder), (build_model(wide).eval(), CachedDecoder)):
        with torch.inference_mode():
            prefilled = prefill(
                InferenceModel(model.to(DEVICE), TritonLinear), ids, ids > 0, start_ids=None, capacity=4
            )
        assert isinstance(prefilled.decoder, kind)

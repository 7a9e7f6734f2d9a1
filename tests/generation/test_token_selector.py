"""Choosing tokens inside the decode step, as on a GPU, gives the same outputs."""

from __future__ import annotations

import os
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.generation import GenerationConfig, prefill
from glassformer.generation.inference_model import CachedDecoder, InferenceModel
from glassformer.generation.loop import Sequences, greedy_selector
from glassformer.generation.step_decoder import TokenSelector
from tests.generation.test_greedy import MAX_NEW_TOKENS, PAD, examples, generate_with, model_of, padded

CONFIGS: dict[str, dict[str, Any]] = {
    "greedy": {"min_new_tokens": 3, "forced_eos_token_id": 40},
    "beams": {"num_beams": 3, "num_return_sequences": 3, "suppress_tokens": (7,), "min_length": 6},
    "forced": {"num_beams": 2, "forced_eos_token_id": 40, "repetition_penalty": 1.2},
    "stop": {"stop_strings": ("<3",)},
    "beams, stop": {"num_beams": 3, "num_return_sequences": 2, "stop_strings": ("<3",)},
}


def decode(ids: list[int]) -> str:
    return "".join(f"<{token}>" for token in ids)


@pytest.mark.parametrize("name", CONFIGS)
def test_selector_inside_the_step_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = model_of("gpt2"), padded(examples(4), "right")
    settings = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS, **CONFIGS[name])
    options: dict[str, Any] = {
        "config": settings,
        "eos_token_id": [3, 40],
        "pad_token_id": PAD,
        "decode": decode,
    }
    expected = generate_with(model, ids, **options)

    def step_and_select(self: CachedDecoder, ids: Tensor, selector: TokenSelector) -> tuple[Tensor, ...]:
        return selector.choose(self.step(ids))

    monkeypatch.setattr(CachedDecoder, "step_and_select", step_and_select, raising=False)
    assert generate_with(model, ids, **options) == expected
    if settings.stop_strings:
        assert any(text.finish_reason == "stop" for texts in expected for text in texts)


def test_reused_graph_keeps_the_tensors_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is first imported
    pytest.importorskip("triton", reason="not installed: triton")
    from glassformer.generation import cuda_graph_decoder
    from glassformer.inference.gpu.linear import TritonLinear

    graphs: list[object] = []

    class Graph:
        def __init__(self, step: object, warmups: int) -> None:
            graphs.append(self)

    monkeypatch.setattr(cuda_graph_decoder, "CudaGraph", Graph)
    model = InferenceModel(model_of("gpt2").to(device), TritonLinear)
    ids = torch.tensor([[5, 9, 14, 33], [21, 6, 8, 30]], device=device)

    def make_selector() -> tuple[TokenSelector, Any]:
        limits, ends, never = (torch.tensor(x, device=device) for x in ([4, 4], [3], [7]))
        return greedy_selector(Sequences(limits, ends), never), weakref.ref(never)

    def make_decoder() -> Any:
        with torch.inference_mode():
            return prefill(model, ids, ids > 0, start_ids=None, capacity=4).decoder

    with torch.inference_mode():
        (selector, suppressed), decoder = make_selector(), make_decoder()
        decoder._capture(selector)
        for order in ([1, 0], [0, 1]):
            del decoder
            (selector, _), decoder = make_selector(), make_decoder()
            decoder.reorder(torch.tensor(order, device=device))
            decoder._capture(selector)
            assert decoder.graph is graphs[0] and len(graphs) == 1
            assert decoder.rows.tolist() == order
            assert suppressed() is not None

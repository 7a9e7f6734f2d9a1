"""Presence and frequency penalties and logit biases follow OpenAI's definition, as vLLM implements it.

    logit[j] + bias[j] - count[j] * frequency_penalty - (count[j] > 0) * presence_penalty

where count[j] is how often token j was generated; tokens of the prompt do not count.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from glassformer.core.inputs import Masks
from glassformer.generation import GenerationConfig, GenerationParams
from glassformer.generation.continuous import Scheduler
from tests.generation.test_engine import model_for
from tests.generation.test_greedy import PAD, START, generate_with, padded

FEW, VOCAB = 12, 101  # models of up to VOCAB tokens generate those below FEW, so that they repeat them
OPTIONS: dict[str, Any] = {"max_new_tokens": 20, "suppress_tokens": tuple(range(FEW, VOCAB))}
PENALTIES: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 1.9},
    "frequency": {"frequency_penalty": 1.1},
    "mixed": {"presence_penalty": 2.0, "frequency_penalty": -0.3},
    "bias": {"logit_bias": ((9, 7.5), (4, 7.0), (3, -100.0))},
    "all": {
        "presence_penalty": 0.7,
        "frequency_penalty": 1.3,
        "repetition_penalty": 1.2,
        "logit_bias": ((9, 2.5), (4, -2.0)),
    },
}
ROWS = [[4, 9, 9, 5], [3, 4, 5, 6, 7, 8, 9, 10, 11, 50, 60], [7]]


@torch.no_grad()
def textbook(model: nn.Module, row: list[int], config: GenerationConfig, source: bool) -> list[int]:
    """Greedy decoding, one token at a time without a cache, with the penalties written out for each token."""
    out: list[int] = []
    for _ in range(OPTIONS["max_new_tokens"]):
        read = [START, *out] if source else [*row, *out]
        inputs = [torch.tensor([row]), torch.tensor([read])] if source else [torch.tensor([read])]
        masks = [torch.ones_like(ids, dtype=torch.bool) for ids in inputs]
        logits = model(*inputs, Masks(*masks) if len(masks) > 1 else masks[0])[0, -1].tolist()
        bias, counts = dict(config.logit_bias), Counter(out)
        scores = []
        for token in range(FEW):
            score = logits[token] + bias.get(token, 0)
            if token in read:
                score *= config.repetition_penalty if score < 0 else 1 / config.repetition_penalty
            score -= config.frequency_penalty * counts[token]
            score -= config.presence_penalty * (counts[token] > 0)
            scores.append(score)
        out.append(max(range(FEW), key=scores.__getitem__))
    return out


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("family", ["gpt2", "original"])
def test_penalties_match_the_definition_in_a_batch_and_in_continuous_batching(family: str, name: str) -> None:
    model, starts = model_for(family)
    config = GenerationConfig(**OPTIONS, **PENALTIES[name])
    expected = [textbook(model, row, config, bool(starts)) for row in ROWS]
    assert expected != [textbook(model, row, GenerationConfig(**OPTIONS), bool(starts)) for row in ROWS]
    options: dict[str, Any] = {"config": config, "eos_token_id": None, **starts}
    batch = generate_with(model, padded(ROWS, "right"), pad_token_id=PAD, **options)
    assert [output.ids for (output,) in batch] == expected
    scheduler = Scheduler(model, slots=8, tokens=2000)
    params = GenerationParams(**options)
    other = replace(params, config=GenerationConfig(max_new_tokens=9, frequency_penalty=2.0))
    jobs = [scheduler.submit(row, one) for row in ROWS for one in (params, other)]
    assert [job.result(60)[0].ids for job in jobs[::2]] == expected
    scheduler.close()

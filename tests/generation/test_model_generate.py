"""`model.generate` of the core models against transformers' `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.errors import MissingValueError
from glassformer.generation import GenerationConfig
from glassformer.generation.continuous import Scheduler
from glassformer.generation.inference_model import InferenceModel
from tests.generation.continuous.requests import send
from tests.generation.references import padded, pair, reference_generate, rows, varied_eos_ids
from tests.generation.test_greedy import generate_with, model_of


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3, "num_return_sequences": 2}], ids=["greedy", "beams"]
)
@pytest.mark.parametrize("family", ["marian", "gpt2"])
def test_model_generate_matches_transformers(family: str, options: dict[str, Any]) -> None:
    theirs, ours = pair(family)
    side = "right" if theirs.config.is_encoder_decoder else "left"
    ids, mask = padded(rows(), side, theirs.config.pad_token_id)
    ends = varied_eos_ids(family)
    expected, _ = reference_generate(theirs, ids, mask, ends, max_new_tokens=9, **options)
    outputs = ours.generate(ids, attention_mask=mask.long(), eos_token_id=ends, max_new_tokens=9, **options)
    assert outputs == expected


def test_model_generate_needs_a_bound() -> None:
    with pytest.raises(MissingValueError):
        pair("gpt2")[1].generate(torch.tensor([[5, 6]]))


class ScoresHead(nn.Module):
    """A head of its own kind: all that generation needs is that it yields scores over a vocabulary."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, context: Any, *, obs: Any = None) -> Tensor:
        return self.inner(x, context, obs=obs) / 2


@pytest.mark.parametrize("weights", [None, "own"])
def test_any_head_with_scores_over_a_vocabulary_generates(weights: Any) -> None:
    model, ids = model_of("gpt2"), torch.tensor([[5, 9, 14]])
    options: dict[str, Any] = {"config": GenerationConfig(max_new_tokens=6, num_beams=2), "eos_token_id": 3}
    (expected,) = generate_with(model, ids, **options)
    model.head = ScoresHead(model.head)
    ((output,),) = generate_with(InferenceModel(model, weights), ids, **options)
    assert output.ids and output.score != pytest.approx(expected[0].score)
    with torch.no_grad():
        logits = model(torch.tensor([[*ids[0].tolist(), *output.ids]]))[0, 2:].log_softmax(-1)
    chosen = logits[torch.arange(len(output.ids)), torch.tensor(output.ids)]
    assert output.logprobs[: len(output.ids)] == pytest.approx(chosen.tolist(), abs=1e-4)
    scheduler = Scheduler(InferenceModel(model, weights))
    assert send(scheduler, [5, 9, 14], **options).result(20)[0].ids == output.ids
    scheduler.close()

"""The lens: the last layer is what the model says, the others what a model cut short would say."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from glassformer.core.observe import observe
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret import logit_lens as lens
from glassformer.interpret.logit_lens import lens_table, logit_lens, next_tokens
from glassformer.interpret.schema import ItemNotFoundError
from glassformer.interpret.tensors import read_tensor
from tests.interpret.small import drawn, inputs_for, traced

WRITERS = ["gpt2", "llama", "original", "marian", "bart", "t5", "palm", "falcon"]
FILLERS = ["bert", "roberta", "distilbert"]


def cut_short(model: Any, stack: str, layers: int) -> Any:
    """The model with its first layers alone."""
    other = copy.deepcopy(model)
    kept: Any = other.get_submodule(stack)
    kept.blocks = nn.ModuleList(kept.blocks[:layers])
    return other


@pytest.mark.parametrize("family", [*WRITERS, *FILLERS])
def test_each_layer_says_what_the_model_without_the_later_ones_says(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lens, "MAX_LOGITS", 300)  # a few places at a time
    model = drawn(family)
    inputs = inputs_for(model)
    trace = traced(model, inputs)
    stack = "encoder" if family in FILLERS else "decoder"
    top, prob = lens_table(trace, stack)
    blocks = len(model.get_submodule(stack).blocks)
    assert top.shape[0] == blocks + 1 and top.dtype == torch.int32
    for layers in range(blocks + 1):
        logits = observe(cut_short(model, stack, layers), inputs).output[0]  # (T, V)
        chances = logits.softmax(-1)
        assert top[layers].tolist() == logits.argmax(-1).tolist()
        torch.testing.assert_close(prob[layers], chances.max(-1).values)
        told = logit_lens(trace, position=2, top=4).layers[layers]
        best = logits[2].topk(4)
        assert [word.id for word in told.words] == best.indices.tolist()
        assert [word.logit for word in told.words] == pytest.approx(best.values.tolist(), abs=1e-4)
        entropy = -(chances[2] * chances[2].log()).sum()
        assert told.entropy == pytest.approx(float(entropy), abs=1e-4)
        final = int(trace.record.output[0, 2].argmax())
        assert told.rank_of_final == 1 + int((logits[2] > logits[2, final]).sum())
    assert lens_table(trace, stack)[0] is top  # worked out once


def test_only_the_places_that_are_asked_for_are_read() -> None:
    model = drawn("gpt2")
    inputs = inputs_for(model)
    whole, trace = lens_table(traced(model, inputs), "decoder"), traced(model, inputs)
    part = read_tensor(trace, "decoder.lens.top", ":,1:3").values
    assert part.tolist() == whole[0][:, 1:3].tolist()
    assert (trace.derived["decoder.lens.top"] >= 0).any(0).nonzero()[:, 0].tolist() == [1, 2]
    assert read_tensor(trace, "decoder.lens.prob", "1,3").values.item() == pytest.approx(
        whole[1][1, 3].item()
    )


@pytest.mark.parametrize("family", ["vit", "deit"])
def test_a_classifier_has_labels_after_each_layer(family: str) -> None:
    model = drawn(family)
    trace = traced(model, inputs_for(model), kind="image")
    told = logit_lens(trace)
    answer = trace.record.output
    logits = (answer if isinstance(answer, torch.Tensor) else answer.logits)[0]
    last = told.layers[-1]
    assert last.rank_of_final == 1
    assert {word.id: word.logit for word in last.words} == pytest.approx(
        dict(enumerate(logits.tolist())), abs=1e-4
    )
    assert next_tokens(trace).vocabulary == len(logits)
    with pytest.raises(ItemNotFoundError):
        lens_table(trace, "encoder")


@pytest.mark.parametrize("family", ["gpt2", "original"])
def test_the_next_words_are_those_of_the_models_own_scores(family: str) -> None:
    model = drawn(family)
    trace = traced(model, inputs_for(model))
    logits = trace.record.output[0]
    for place in (None, 3):
        told, row = next_tokens(trace, position=place, count=5), logits[-1 if place is None else place]
        assert told.position == (len(logits) - 1 if place is None else place)
        assert told.vocabulary == len(row)
        assert told.logsumexp == pytest.approx(float(row.logsumexp(-1)), abs=1e-5)
        assert [word.id for word in told.words] == row.topk(5).indices.tolist()
        chances = row.softmax(-1).topk(5).values.tolist()
        assert [word.probability for word in told.words] == pytest.approx(chances, abs=1e-6)
        assert torch.equal(trace.record[told.logits][0], logits)


def test_what_has_no_lens_is_a_sentence() -> None:
    forecaster = drawn("patchtst")
    with pytest.raises(UnsupportedError):
        logit_lens(traced(forecaster, inputs_for(forecaster), kind="forecast"))
    model = drawn("original")
    trace = traced(model, inputs_for(model))
    with pytest.raises(InvalidValueError):
        next_tokens(trace, position=7)
    with pytest.raises(InvalidValueError):
        next_tokens(trace, count=0)
    with pytest.raises(ItemNotFoundError):
        lens_table(trace, "encoder")

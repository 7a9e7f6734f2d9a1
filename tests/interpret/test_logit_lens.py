"""The lens: the last layer is what the model says, the others what a model cut short would say."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.observe import observe
from glassformer.errors import ConflictError, InvalidValueError, UnsupportedError
from glassformer.interpret import logit_lens as lens
from glassformer.interpret.comparison import compare_traces, residual_change
from glassformer.interpret.logit_lens import lens_table, logit_lens, next_tokens, unit_tokens
from glassformer.interpret.schema import FeedForwardUnitInfo, ItemNotFoundError
from glassformer.interpret.tensors import read_tensor
from tests.interpret.models import inputs_for, random_model, trace_forward

WRITERS = ["gpt2", "llama", "original", "t5", "gemma2"]
FILLERS = ["bert", "albert", "modernbert"]


def cut_short(model: Any, stack: str, layers: int) -> Any:
    """The model with its first layers alone."""
    other = copy.deepcopy(model)
    blocks: Any = other.get_submodule(stack)
    blocks.blocks = nn.ModuleList(blocks.blocks[:layers])
    return other


@pytest.mark.parametrize("family", [*WRITERS, *FILLERS])
def test_logit_lens_equals_a_model_cut_after_the_layer(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lens, "MAX_LOGITS", 300)  # a few places at a time
    model = random_model(family)
    inputs = inputs_for(model)
    trace = trace_forward(model, inputs)
    stack = "encoder" if family in FILLERS else "decoder"
    top, prob = lens_table(trace, stack)
    blocks = len(model.get_submodule(stack).blocks)
    assert top.shape[0] == blocks + 1 and top.dtype == torch.int32
    for layers in range(blocks + 1):
        logits = observe(cut_short(model, stack, layers), inputs).output[0]  # (T, V)
        chances = logits.softmax(-1)
        assert top[layers].tolist() == logits.argmax(-1).tolist()
        torch.testing.assert_close(prob[layers], chances.max(-1).values)
        info = logit_lens(trace, position=2, top=4).layers[layers]
        best = logits[2].topk(4)
        assert [word.id for word in info.predictions] == best.indices.tolist()
        assert [word.logit for word in info.predictions] == pytest.approx(best.values.tolist(), abs=1e-4)
        entropy = -(chances[2] * chances[2].log()).sum()
        assert info.entropy == pytest.approx(float(entropy), abs=1e-4)
        final = int(trace.record.output[0, 2].argmax())
        assert info.rank_of_final == 1 + int((logits[2] > logits[2, final]).sum())
    assert lens_table(trace, stack)[0] is top  # worked out once


def test_lens_table_computes_only_the_requested_positions() -> None:
    model = random_model("gpt2")
    inputs = inputs_for(model)
    whole, trace = lens_table(trace_forward(model, inputs), "decoder"), trace_forward(model, inputs)
    part = read_tensor(trace, "decoder.lens.top", ":,1:3").values
    assert part.tolist() == whole[0][:, 1:3].tolist()
    assert (trace.derived["decoder.lens.top"] >= 0).any(0).nonzero()[:, 0].tolist() == [1, 2]
    assert read_tensor(trace, "decoder.lens.prob", "1,3").values.item() == pytest.approx(
        whole[1][1, 3].item()
    )


@pytest.mark.parametrize("family", ["vit", "deit"])
def test_logit_lens_of_a_classifier_predicts_labels(family: str) -> None:
    model = random_model(family)
    trace = trace_forward(model, inputs_for(model), kind="image")
    info = logit_lens(trace)
    answer = trace.record.output
    logits = (answer if isinstance(answer, torch.Tensor) else answer.logits)[0]
    last = info.layers[-1]
    assert last.rank_of_final == 1
    assert {word.id: word.logit for word in last.predictions} == pytest.approx(
        dict(enumerate(logits.tolist())), abs=1e-4
    )
    assert next_tokens(trace).vocab_size == len(logits)
    with pytest.raises(ItemNotFoundError):
        lens_table(trace, "encoder")


@pytest.mark.parametrize("family", ["gpt2", "original"])
def test_next_tokens_are_the_top_of_the_logits(family: str) -> None:
    model = random_model(family)
    trace = trace_forward(model, inputs_for(model))
    logits = trace.record.output[0]
    for place in (None, 3):
        info, row = next_tokens(trace, position=place, top=5), logits[-1 if place is None else place]
        assert info.position == (len(logits) - 1 if place is None else place)
        assert info.vocab_size == len(row)
        assert info.logsumexp == pytest.approx(float(row.logsumexp(-1)), abs=1e-5)
        assert [word.id for word in info.predictions] == row.topk(5).indices.tolist()
        chances = row.softmax(-1).topk(5).values.tolist()
        assert [word.probability for word in info.predictions] == pytest.approx(chances, abs=1e-6)
        assert torch.equal(trace.record[info.logits][0], logits)


def test_models_without_predictions_have_no_logit_lens() -> None:
    forecaster = random_model("patchtst")
    with pytest.raises(UnsupportedError):
        logit_lens(trace_forward(forecaster, inputs_for(forecaster), kind="forecast"))
    model = random_model("original")
    trace = trace_forward(model, inputs_for(model))
    with pytest.raises(InvalidValueError):
        next_tokens(trace, position=7)
    with pytest.raises(ItemNotFoundError):
        lens_table(trace, "encoder")


def pressed(norm: Any, vector: Tensor) -> Tensor:
    """What a norm makes of a vector so long that nothing else counts, its own division taken back."""
    centred = vector - vector.mean() if isinstance(norm, nn.LayerNorm) else vector
    difference: Tensor = norm(vector * 1e5) - norm(torch.zeros_like(vector))
    return difference * centred.square().mean().sqrt()


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "original", "bart", "bert", "gemma2"])
@torch.no_grad()
def test_unit_tokens_equal_the_output_vector_through_norms_and_head(family: str) -> None:
    model = random_model(family)
    trace = trace_forward(model, inputs_for(model))
    stack: Any = model.get_submodule(name := "encoder" if family == "bert" else "decoder")
    ffn = f"{name}.blocks.1.ffn"
    vector = stack.blocks[1].ffn.down.weight[:, 3]
    if stack.blocks[1].wiring == "post":
        vector = pressed(stack.blocks[1].norm_ffn, vector)
    elif stack.blocks[1].wiring == "sandwich":
        vector = pressed(stack.blocks[1].norm_ffn_out, vector)
    if stack.final_norm is not None:
        vector = pressed(stack.final_norm, vector)
    head: Any = model.head
    if family == "bert":
        vector = pressed(head.norm, head.dense.weight @ vector)
    scores = head.weight @ vector * getattr(head, "scale", 1.0)
    info = unit_tokens(trace, ffn, 3, top=5)
    for side, best in (("promotes", scores.topk(5)), ("suppresses", scores.topk(5, largest=False))):
        assert [word.id for word in getattr(info, side)] == best.indices.tolist()
        assert [word.logit for word in getattr(info, side)] == pytest.approx(best.values.tolist(), rel=1e-3)


def test_units_that_reach_no_token_head_promote_nothing() -> None:
    model = random_model("original")
    trace = trace_forward(model, inputs_for(model))
    nothing = FeedForwardUnitInfo()
    assert unit_tokens(trace, "encoder.blocks.0.ffn", 0) == nothing
    picture = random_model("vit")
    assert unit_tokens(trace_forward(picture, inputs_for(picture)), "encoder.blocks.0.ffn", 0) == nothing
    with pytest.raises(ItemNotFoundError):
        unit_tokens(trace, "decoder.blocks.0.self_attn", 0)
    with pytest.raises(InvalidValueError):
        unit_tokens(trace, "decoder.blocks.0.ffn", 99999)


OFF = {"kind": "skip_layer", "block": "decoder.blocks.1"}


@pytest.mark.parametrize("family", ["gpt2", "original"])
def test_comparison_equals_the_difference_of_both_records(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.interpret.comparison.MAX_LOGITS", 300)
    model = random_model(family)
    before = trace_forward(model, inputs_for(model))
    after = replace(trace_forward(model, inputs_for(model), changes=[OFF], id="b"), bundle=before.bundle)
    info = compare_traces(before, after)
    p, q = (trace.record.output[0].log_softmax(-1) for trace in (before, after))
    each = F.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    assert info.positions == pytest.approx(each.tolist(), abs=1e-5)
    assert info.kl == pytest.approx(float(each[-1]), abs=1e-5)
    moved = (q[-1].exp() - p[-1].exp()).abs()
    assert [row.prediction.id for row in info.predictions] == moved.topk(20).indices.tolist()
    for row in info.predictions:
        index = row.prediction.id
        assert (row.before, row.after) == pytest.approx(
            (float(p[-1, index].exp()), float(q[-1, index].exp())), abs=1e-6
        )
    for residual in info.residual:
        table = residual_change(after, before, residual.stack)
        assert residual.name == f"{residual.stack}.change"
        assert table.shape == (len(residual.sites), before.record[residual.sites[0]].shape[1])
        for site, row in zip(residual.sites, table, strict=True):
            ours, theirs = after.record[site][0], before.record[site][0]
            mean = (ours.norm(dim=-1) + theirs.norm(dim=-1)) / 2
            torch.testing.assert_close(row, (ours - theirs).norm(dim=-1) / mean)
    changed = {r.stack: bool(residual_change(after, before, r.stack).any()) for r in info.residual}
    assert changed.pop("decoder") and not any(changed.values())  # the encoder came before


def test_equal_traces_do_not_differ_and_other_lengths_have_no_positions() -> None:
    model = random_model("gpt2")
    before = trace_forward(model, inputs_for(model))
    same = compare_traces(before, before)
    assert same.kl == 0 and not any(same.positions)
    longer = replace(trace_forward(model, inputs_for(model, length=12)), bundle=before.bundle)
    info = compare_traces(before, longer)
    assert info.positions is None and info.residual == () and info.kl > 0 and info.predictions
    with pytest.raises(ConflictError):
        residual_change(before, longer, "decoder")
    with pytest.raises(ItemNotFoundError):
        residual_change(before, before, "encoder")
    with pytest.raises(ConflictError):
        compare_traces(before, trace_forward(model, inputs_for(model)))


@pytest.mark.parametrize("family", ["vit", "patchtst"])
def test_classifiers_are_compared_by_labels_and_forecasts_by_residuals(family: str) -> None:
    model = random_model(family)
    before = trace_forward(model, inputs_for(model), kind="image")
    off = {"kind": "ablate_head", "attention": "encoder.blocks.0.self_attn", "head": 0}
    after = replace(
        trace_forward(model, inputs_for(model), kind="image", changes=[off]), bundle=before.bundle
    )
    info = compare_traces(before, after)
    assert [one.stack for one in info.residual] == ["encoder"] and info.positions is None
    assert residual_change(after, before, "encoder").any()
    if family == "vit":
        p, q = (trace.record.output[0].softmax(-1) for trace in (before, after))
        assert {row.prediction.id: row.after for row in info.predictions} == pytest.approx(
            dict(enumerate(q.tolist())), abs=1e-6
        )
        assert info.kl == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-5)
    else:
        assert info.predictions == () and info.kl is None


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_multi_label_outputs_are_compared_independently(kind: str) -> None:
    model = random_model("vit")
    before = trace_forward(model, inputs_for(model), kind="image")
    before.bundle.config["problem_type"] = kind
    off = {"kind": "ablate_head", "attention": "encoder.blocks.0.self_attn", "head": 0}
    after = replace(
        trace_forward(model, inputs_for(model), kind="image", changes=[off]), bundle=before.bundle
    )
    info, entropy = compare_traces(before, after).kl, logit_lens(before).layers[-1].entropy
    if kind == "regression":
        assert info is None and entropy is None
        return
    p, q = (torch.distributions.Bernoulli(logits=trace.record.output[0]) for trace in (before, after))
    assert info == pytest.approx(float(torch.distributions.kl_divergence(p, q).sum()), abs=1e-5)
    assert entropy == pytest.approx(float(p.entropy().sum()), abs=1e-4)


def test_impossible_tokens_do_not_add_to_the_divergence() -> None:
    model = random_model("marian")
    with torch.no_grad():
        model.head.bias[3] = -torch.inf
    before = trace_forward(model, inputs_for(model))
    after = replace(trace_forward(model, inputs_for(model), changes=[OFF]), bundle=before.bundle)
    kl = compare_traces(before, after).kl
    assert kl is not None and 0 < kl < float("inf")

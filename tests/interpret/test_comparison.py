"""What a change did, against the two records themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from glassformer.errors import ConflictError, ShapeError
from glassformer.interpret.comparison import compare_traces, residual_change
from glassformer.interpret.logit_lens import logit_lens
from glassformer.interpret.schema import ItemNotFoundError
from tests.interpret.small import drawn, inputs_for, traced

OFF = {"kind": "layer_off", "block": "decoder.blocks.1"}


@pytest.mark.parametrize("family", ["gpt2", "original"])
def test_words_divergence_and_residuals_are_those_of_the_two_records(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.interpret.comparison.MAX_LOGITS", 300)
    model = drawn(family)
    before = traced(model, inputs_for(model))
    after = replace(traced(model, inputs_for(model), changes=[OFF], id="b"), bundle=before.bundle)
    told = compare_traces(before, after)
    p, q = (trace.record.output[0].log_softmax(-1) for trace in (before, after))
    each = F.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    assert told.positions == pytest.approx(each.tolist(), abs=1e-5)
    assert told.kl == pytest.approx(float(each[-1]), abs=1e-5)
    moved = (q[-1].exp() - p[-1].exp()).abs()
    assert [row.word.id for row in told.words] == moved.topk(20).indices.tolist()
    for row in told.words:
        index = row.word.id
        assert (row.before, row.after) == pytest.approx(
            (float(p[-1, index].exp()), float(q[-1, index].exp())), abs=1e-6
        )
    for residual in told.residual:
        table = residual_change(after, before, residual.stack)
        assert residual.name == f"{residual.stack}.change"
        assert table.shape == (len(residual.sites), before.record[residual.sites[0]].shape[1])
        for site, row in zip(residual.sites, table, strict=True):
            ours, theirs = after.record[site][0], before.record[site][0]
            mean = (ours.norm(dim=-1) + theirs.norm(dim=-1)) / 2
            torch.testing.assert_close(row, (ours - theirs).norm(dim=-1) / mean)
    changed = {r.stack: bool(residual_change(after, before, r.stack).any()) for r in told.residual}
    assert changed.pop("decoder") and not any(changed.values())  # the encoder came before


def test_nothing_changed_is_nothing_and_other_lengths_have_no_places_in_common() -> None:
    model = drawn("gpt2")
    before = traced(model, inputs_for(model))
    same = compare_traces(before, before)
    assert same.kl == 0 and not any(same.positions)
    longer = replace(traced(model, inputs_for(model, length=12)), bundle=before.bundle)
    told = compare_traces(before, longer)
    assert told.positions is None and told.residual == () and told.kl > 0 and told.words
    with pytest.raises(ShapeError):
        residual_change(before, longer, "decoder")
    with pytest.raises(ItemNotFoundError):
        residual_change(before, before, "encoder")
    with pytest.raises(ConflictError):
        compare_traces(before, traced(model, inputs_for(model)))


@pytest.mark.parametrize("family", ["vit", "patchtst"])
def test_labels_have_a_difference_and_a_forecast_has_residuals_alone(family: str) -> None:
    model = drawn(family)
    before = traced(model, inputs_for(model), kind="image")
    off = {"kind": "head_off", "attention": "encoder.blocks.0.self_attn", "head": 0}
    after = replace(traced(model, inputs_for(model), kind="image", changes=[off]), bundle=before.bundle)
    told = compare_traces(before, after)
    assert [one.stack for one in told.residual] == ["encoder"] and told.positions is None
    assert residual_change(after, before, "encoder").any()
    if family == "vit":
        p, q = (trace.record.output[0].softmax(-1) for trace in (before, after))
        assert {row.word.id: row.after for row in told.words} == pytest.approx(
            dict(enumerate(q.tolist())), abs=1e-6
        )
        assert told.kl == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-5)
    else:
        assert told.words == () and told.kl is None


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_labels_that_hold_each_by_itself_differ_each_by_itself_and_numbers_have_no_chances(kind: str) -> None:
    model = drawn("vit")
    before = traced(model, inputs_for(model), kind="image")
    before.bundle.config["problem_type"] = kind
    off = {"kind": "head_off", "attention": "encoder.blocks.0.self_attn", "head": 0}
    after = replace(traced(model, inputs_for(model), kind="image", changes=[off]), bundle=before.bundle)
    told, entropy = compare_traces(before, after).kl, logit_lens(before).layers[-1].entropy
    if kind == "regression":
        assert told is None and entropy is None
        return
    p, q = (torch.distributions.Bernoulli(logits=trace.record.output[0]) for trace in (before, after))
    assert told == pytest.approx(float(torch.distributions.kl_divergence(p, q).sum()), abs=1e-5)
    assert entropy == pytest.approx(float(p.entropy().sum()), abs=1e-4)


def test_words_that_stay_impossible_are_no_difference() -> None:
    model = drawn("marian")
    with torch.no_grad():
        model.head.bias[3] = -torch.inf
    before = traced(model, inputs_for(model))
    after = replace(traced(model, inputs_for(model), changes=[OFF]), bundle=before.bundle)
    kl = compare_traces(before, after).kl
    assert kl is not None and 0 < kl < float("inf")

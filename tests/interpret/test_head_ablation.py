"""Head ablation: the effect of each head equals that of an intervention that switches it off."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import glassformer
from glassformer.core.observe import observe
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret import head_ablation, prepared_input
from glassformer.interpret.comparison import compare_traces
from glassformer.interpret.head_ablation import ablate_heads
from glassformer.interpret.schema import ItemNotFoundError, TraceInput
from glassformer.interpret.trace import Trace, trace_model
from tests.interpret.models import example_values, tiny_bundle, trace_of


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("family", ["original", "gpt2", "bert", "vit", "patchtst", "sentence"])
def test_effects_equal_those_of_interventions(
    family: str, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not batched:
        monkeypatch.setattr(prepared_input, "MAX_NUMBERS", 1)
    model = tiny_bundle(family)
    inputs: dict[str, Any] = example_values(model)
    before = trace_of(model, inputs)
    if family == "original":  # the same target for all heads
        inputs["target"] = [token.id for token in before.sequences[1].tokens[before.prepared.start :]]
        before = trace_of(model, inputs)
    name = before.attentions()[-1].name
    ablation = ablate_heads(before, name)
    assert len(ablation.effects) == before.attentions()[-1].heads
    for head, effect in enumerate(ablation.effects):
        after = trace_of(model, inputs, [{"kind": "ablate_head", "attention": name, "head": head}])
        difference = compare_traces(before, after)
        if ablation.measure == "kl":
            positions = difference.positions if family == "original" else None
            expected = sum(positions) / len(positions) if positions else difference.kl
        else:
            outputs = [head_ablation._output(trace.record.output) for trace in (before, after)]
            expected = float((outputs[0] - outputs[1]).abs().mean())
        assert effect == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert max(ablation.effects) > 0


def test_ablation_needs_a_known_attention_and_a_trace_without_interventions() -> None:
    model = tiny_bundle("gpt2")
    trace = trace_of(model, {"text": "the sea"})
    with pytest.raises(ItemNotFoundError):
        ablate_heads(trace, "decoder.blocks.9.self_attn")
    changed = trace_of(model, {"text": "the sea"}, [{"kind": "skip_layer", "block": "decoder.blocks.0"}])
    with pytest.raises(UnsupportedError):
        ablate_heads(changed, "decoder.blocks.0.self_attn")


def test_ablation_at_one_query_needs_attention_without_windows() -> None:
    bundle = tiny_bundle("swin")
    trace = trace_of(bundle, example_values(bundle))
    name = trace.attentions()[0].name
    assert max(ablate_heads(trace, name).effects) > 0
    with pytest.raises(UnsupportedError, match="window attention"):
        ablate_heads(trace, name, at=0)


@pytest.fixture(scope="module")
def french() -> Trace:
    text = "The animal did not cross the street because it was too tired."
    return trace_model(glassformer.load("pocket"), TraceInput(text=text, to="fr"))


def test_one_head_writes_pas(french: Trace) -> None:
    """The numbers were computed from the weights in plain tensor code."""
    result = ablate_heads(french, "decoder.blocks.1.self_attn")
    assert result.effects[5] == pytest.approx(0.3155, abs=1e-4) and max(result.effects[:5]) < 0.01
    peak = result.peaks[5]
    assert peak is not None and peak.position is not None
    assert french.sequence("target").tokens[peak.position].piece == "a" and peak.prediction.text == " pas"
    assert peak.effect == pytest.approx(6.583, abs=1e-3)
    assert (peak.before, peak.after) == (pytest.approx(0.9495, abs=1e-4), pytest.approx(0.0009, abs=1e-4))
    alone = ablate_heads(french, "decoder.blocks.1.self_attn", position=peak.position)
    assert alone.effects[5] == pytest.approx(peak.effect, abs=1e-5)
    drop = ablate_heads(french, "decoder.blocks.1.self_attn", metric="log_prob").peaks[5]
    assert drop is not None and drop.effect == pytest.approx(math.log(peak.before / peak.after), abs=1e-4)


@pytest.mark.parametrize("mode", ["mean", "resample"])
@pytest.mark.parametrize("at", [None, 2])
def test_replaced_outputs_equal_edits_by_hand(mode: Any, at: int | None) -> None:
    bundle = tiny_bundle("gpt2")
    trace, other = (trace_of(bundle, {"text": text}) for text in ("the sea was red", "a cat and a dog sat"))
    name, head = "decoder.blocks.0.self_attn", 1
    theirs = other.record[f"{name}.heads"][:, head]  # (1, T, K)

    def edit(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        length, where = x.shape[2], slice(None) if at is None else slice(at, at + 1)
        if mode == "mean":
            values = theirs.mean(1, keepdim=True).expand(-1, length, -1)
        else:
            generator = torch.Generator().manual_seed(0)
            rows = torch.randperm(max(length, theirs.shape[1]), generator=generator)[:length]
            values = theirs[:, rows % theirs.shape[1]]
        x[:, head, where] = values[:, where]
        return x

    logits = observe(bundle.model, dict(trace.prepared.inputs), edit={f"{name}.heads": edit}).output
    p, q = (one[0, -1].double().log_softmax(-1) for one in (trace.record["head.logits"], logits))
    result = ablate_heads(trace, name, mode=mode, at=at, reference=other)
    assert result.effects[head] == pytest.approx(float((p.exp() * (p - q)).sum()), rel=1e-2, abs=1e-6)
    with pytest.raises(InvalidValueError):
        ablate_heads(trace, name, at=99)
    with pytest.raises(UnsupportedError):
        ablate_heads(trace, name, mode=mode, reference=trace_of(tiny_bundle("gpt2"), {"text": "a"}))

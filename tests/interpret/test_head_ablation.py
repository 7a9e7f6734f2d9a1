"""Head ablation: the effect of each head equals that of an intervention that switches it off."""

from __future__ import annotations

from typing import Any

import pytest

from glassformer.errors import UnsupportedError
from glassformer.interpret import head_ablation
from glassformer.interpret.comparison import compare_traces
from glassformer.interpret.head_ablation import ablate_heads
from glassformer.interpret.schema import ItemNotFoundError
from tests.interpret.models import example_values, tiny_bundle, trace_of


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("family", ["original", "gpt2", "bert", "vit", "patchtst", "sentence"])
def test_effects_equal_those_of_interventions(
    family: str, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not batched:
        monkeypatch.setattr(head_ablation, "MAX_NUMBERS", 1)
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

"""Traces record the model's own forward, bit for bit, with the target that the library generates."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from glassformer.bundle import Bundle
from glassformer.core.build import build_model
from glassformer.errors import InvalidValueError
from glassformer.interpret.outline import describe_stacks, residual_sites
from glassformer.interpret.schema import TextOutcome
from glassformer.tasks.translation import Translator
from glassformer.verify.inputs import named_outputs
from tests.interpret.models import (
    CONTINUERS,
    ENCODERS,
    TEXT,
    WRITERS,
    byte_tokenizer,
    example_values,
    tiny_bundle,
    trace_of,
    wordwise,
)

CAPTIONERS = ("vision_encoder_decoder", "blip")
FAMILIES = (*WRITERS, *CONTINUERS, *ENCODERS, *CAPTIONERS, "llava", "sentence", "vit", "deit", "patchtst")


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_output_is_the_models_own_and_has_every_stage(family: str) -> None:
    bundle = tiny_bundle(family)
    trace = trace_of(bundle, example_values(bundle))
    with torch.no_grad():
        wanted = named_outputs(bundle.model(**trace.prepared.inputs))
    for name, result in named_outputs(trace.record.output).items():
        assert torch.equal(result, wanted[name])
    info = trace.info()
    named = {name for stage in info.stages for name in stage.tensors.values()}
    assert set(trace.record) <= named
    ids = [stage.id for stage in info.stages]
    assert len(set(ids)) == len(ids) and ids[-1] == "head"
    assert {a.name for a in info.attentions} == set(trace.record.attentions())
    for stack in describe_stacks(bundle):
        layers = [s.layer for s in info.stages if s.stack == stack.name and s.layer is not None]
        assert layers == sorted(layers) and set(layers) == set(range(stack.layers))
        assert len(trace.sequence(stack.sequence)) == trace.record[f"{stack.embed}.out"].shape[1]
        assert residual_sites(stack, trace.record)[-1] == f"{stack.name}.blocks.{stack.layers - 1}.resid_out"


@pytest.mark.parametrize("family", ["bert", "t5", "falcon", "palm", "original"])
def test_add_and_norm_stages_add_and_normalize(family: str) -> None:
    bundle = tiny_bundle(family)
    trace = trace_of(bundle, example_values(bundle))
    trace_stages = trace.info().stages
    ids = [stage.id for stage in trace_stages]
    stages = [s for s in trace_stages if s.kind == "add_norm"]
    assert stages
    for stage in stages:
        x = {role: trace.record[name] for role, name in stage.tensors.items()}
        added = x["before"] + x["sublayer"] + x.get("sublayer_ffn", 0)
        assert torch.allclose(x["sum"], added, atol=1e-5)
        block = bundle.model.get_submodule(f"{stage.stack}.blocks.{stage.layer}")
        norm = getattr(block, stage.id.rpartition(".")[2])
        before = x["sum"] if torch.equal(x["after"], x["normed"]) else x["before"]
        with torch.no_grad():
            assert torch.allclose(norm(before), x["normed"], atol=1e-5)
        # a pre-norm comes right before the sublayer that gets its output
        place = ids.index(stage.id)
        normed = stage.tensors["normed"] in trace_stages[place + 1].tensors.values()
        assert normed == (block.wiring in ("pre", "parallel"))


@pytest.mark.parametrize("family", WRITERS)
def test_target_equals_translate(family: str) -> None:
    bundle = tiny_bundle(family)
    plain = bundle.translate(TEXT, num_beams=1)
    trace = trace_of(bundle, {"text": TEXT})
    expected = Translator(bundle)(TEXT)
    assert trace.outcome.text == trace.sequence("target").text == expected.text != plain
    written = trace.prepared.inputs["tgt"].ids[0, trace.prepared.start :].tolist()
    assert (
        trace.outcome.num_tokens == len(written) > 0 and trace.outcome.finish_reason == expected.finish_reason
    )
    # its score is what the search gave it: the mean of its tokens' log-probabilities, with that of the end
    ids = [*written, wordwise().eos_id] if expected.finish_reason == "end" else written
    chances = trace.record.output[0, trace.prepared.start - 1 :].log_softmax(-1)
    total = sum(float(chances[n, index]) for n, index in enumerate(ids))
    assert expected.score == pytest.approx(total / len(ids), abs=1e-4)
    again = trace_of(bundle, {"text": TEXT, "target": written})
    assert torch.equal(again.record.output, trace.record.output) and again.outcome.finish_reason is None
    assert again.id != trace.id


def test_target_text_is_encoded_without_special_tokens() -> None:
    bundle = tiny_bundle("original")
    trace = trace_of(bundle, {"text": "the cat", "target": "a dog ran"})
    assert [t.piece.strip() for t in trace.sequence("target").tokens][1:] == ["a", "dog", "ran"]
    assert trace.outcome == TextOutcome(kind="translate", text="a dog ran", num_tokens=3, finish_reason=None)
    with pytest.raises(InvalidValueError):
        trace_of(bundle, {"text": "the cat", "target": [10**6]})


@pytest.mark.parametrize("family", CONTINUERS)
def test_generated_tokens_follow_the_prompt(family: str) -> None:
    bundle = tiny_bundle(family)
    prompt, written = bundle.tokenizer.encode("the sea").ids, bundle.tokenizer.encode(" sang 늙").ids
    trace = trace_of(bundle, {"text": "the sea", "target": written})
    assert trace.prepared.inputs["inputs"].ids.tolist() == [[*prompt, *written]]
    assert trace.outcome.text == " sang 늙" and trace.sequences[0].text == "the sea sang 늙"
    assert trace.outcome.num_tokens == len(written) and trace.prepared.start == len(prompt)


@pytest.mark.parametrize("changes", [(), [{"kind": "skip_layer", "block": "decoder.blocks.0"}]])
def test_endless_outputs_stop_at_the_position_limit(changes: Any) -> None:
    bundle = tiny_bundle("original", max_len=9)
    bundle.generation |= {"suppress_tokens": [wordwise().eos_id]}
    trace = trace_of(bundle, {"text": "the cat"}, changes)
    assert len(trace.sequence("target")) == 9 and trace.outcome.finish_reason == "length"


def test_prompts_may_contain_the_pad_token() -> None:
    bundle = tiny_bundle("llama")
    ids = byte_tokenizer().encode("sos").ids
    read = dataclasses.replace(bundle.spec.input, pad_id=ids[0])
    padded = build_model(dataclasses.replace(bundle.spec, input=read)).eval()
    padded.load_state_dict(bundle.model.state_dict())
    trace = trace_of(Bundle(model=padded, tokenizer=byte_tokenizer(), family="llama"), {"text": "sos"})
    assert torch.equal(trace.record.output, trace_of(bundle, {"text": "sos"}).record.output)

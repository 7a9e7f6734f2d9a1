"""Traces of detectors: boxes after every layer equal those of the model, and queries have their places."""

from __future__ import annotations

import pytest
import torch

from glassformer.core.heads import HeadContext
from glassformer.data.image_files import decode_base64
from glassformer.errors import UnsupportedError
from glassformer.interpret.catalog import describe_model
from glassformer.interpret.head_patterns import describe_heads, self_patterns
from glassformer.interpret.schema import DetectOutcome
from glassformer.interpret.tensors import read_tensor
from tests.interpret.models import picture, tiny_bundle, trace_of, url


@pytest.mark.parametrize("family", ["yolos", "detr"])
@pytest.mark.parametrize("size", [(50, 70), (80, 61)])
def test_boxes_of_every_layer_equal_those_of_the_model(family: str, size: tuple[int, int]) -> None:
    bundle = tiny_bundle(family)
    image = url(picture(size))
    trace = trace_of(bundle, {"image": image})
    outcome, info = trace.outcome, trace.info()
    assert isinstance(outcome, DetectOutcome)
    boxes = read_tensor(trace, outcome.boxes).values
    probabilities = read_tensor(trace, outcome.probabilities).values
    model = bundle.model
    stack = model.decoder if family == "detr" else model.encoder
    with torch.inference_mode():
        for n in range(len(stack.blocks)):
            site = f"{info.attentions[-1].stack}.blocks.{n}.resid_out"
            expected = model.head(stack.final_norm(trace.record[site]), HeadContext())
            torch.testing.assert_close(probabilities[n], expected.logits[0].softmax(-1))
            center, extent = expected.boxes[0].split(2, -1)
            torch.testing.assert_close(boxes[n], torch.cat((center - extent / 2, center + extent / 2), -1))
        torch.testing.assert_close(probabilities[-1], trace.record.output.logits[0].softmax(-1))
    found = bundle.detect(decode_base64(image), threshold=0.5)
    assert [one.label for one in outcome.objects] == [one.label for one in found]
    for ours, theirs in zip(outcome.objects, found, strict=True):
        assert ours.box == pytest.approx(theirs.box, abs=1e-3)


@pytest.mark.parametrize("family", ["yolos", "detr"])
def test_sequences_cover_patches_and_queries(family: str) -> None:
    bundle = tiny_bundle(family)
    trace = trace_of(bundle, {"image": url(picture((50, 70)))})
    info, outcome = trace.info(), trace.outcome
    assert isinstance(outcome, DetectOutcome)
    for attention in info.attentions:
        assert info.tensors[f"{attention.name}.q"][2] == len(trace.sequence(attention.queries))
        assert info.tensors[f"{attention.name}.k"][2] == len(trace.sequence(attention.keys))
    queries = trace.sequences[-1].tokens[outcome.first_query :]
    assert len(queries) == read_tensor(trace, outcome.boxes).shape[1]
    assert all(token.box is None for token in queries)
    assert describe_model(bundle, "model").kind == "detect"
    describe_heads(trace)
    for stage in info.stages:
        for name in stage.tensors.values():
            read_tensor(trace, name)
    change = {"kind": "ablate_head", "attention": info.attentions[-1].name, "head": 0}
    after = trace_of(bundle, {"image": trace.prepared.input.image}, [change])
    assert not torch.equal(after.derived[outcome.boxes], trace.derived[outcome.boxes])
    with pytest.raises(UnsupportedError):
        swap = {"kind": "swap_tokens", "sequence": trace.sequences[0].name, "positions": [1, 2]}
        trace_of(bundle, {"image": trace.prepared.input.image}, [swap])


def test_attention_to_object_queries_is_a_role_of_its_own() -> None:
    bundle = tiny_bundle("yolos")
    tokens = trace_of(bundle, {"image": url(picture())}).sequences[0]
    patterns, queries = self_patterns(tokens), bundle.spec.input.suffix
    assert queries and patterns["queries"][0].tolist() == [False] * (len(tokens) - queries) + [True] * queries
    assert not patterns["separator"].any()

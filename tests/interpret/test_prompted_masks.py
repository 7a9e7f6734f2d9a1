"""Traces of promptable segmenters: masks equal those of the task, weights are distributions, one encoding."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from glassformer.data.image_files import decode_base64
from glassformer.errors import InvalidValueError, MissingValueError, UnsupportedError
from glassformer.interpret.head_ablation import ablate_heads
from glassformer.interpret.head_patterns import describe_heads
from glassformer.interpret.schema import SegmentOutcome
from glassformer.interpret.tensors import read_tensor
from tests.interpret.models import picture, tiny_bundle, trace_of, url

PROMPTS: list[dict[str, Any]] = [
    {"points": [[10.0, 30.0]]},
    {"points": [[10.0, 30.0], [20.0, 5.0]], "background_points": [[40.0, 40.0]]},
    {"box": [5.0, 6.0, 40.0, 30.0]},
    {"points": [[10.0, 30.0]], "box": [5.0, 6.0, 40.0, 35.0]},
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_masks_equal_those_of_the_task(prompt: dict[str, Any]) -> None:
    bundle = tiny_bundle("sam")
    image = url(picture((45, 60)))
    trace = trace_of(bundle, {"image": image, **prompt})
    outcome = trace.outcome
    assert isinstance(outcome, SegmentOutcome)
    options = {name: prompt[name] for name in ("points", "background_points") if name in prompt}
    boxes = {"boxes": [prompt["box"]]} if "box" in prompt else {}
    expected = bundle.segment(decode_base64(image), **options, **boxes, multimask_output=True)
    assert outcome.iou == pytest.approx([one.score for one in expected], abs=1e-5)
    logits = read_tensor(trace, outcome.masks).values
    sized = F.interpolate(logits[None], outcome.size, mode="bilinear")[0] > 0
    for ours, theirs in zip(sized, expected, strict=True):  # resized in one step instead of two
        assert (ours.numpy() == theirs.mask).mean() > 0.97
    describe_heads(trace)
    for attention in trace.attentions():
        queries, keys = (len(trace.sequence(name)) for name in (attention.queries, attention.keys))
        weights = read_tensor(trace, f"{attention.name}.weights").values
        assert tuple(weights.shape) == (1, attention.heads, queries, keys)
        assert trace.info().tensors[f"{attention.name}.q"][2] == queries
        total = weights.sum(-1)
        if attention.keys == "image":
            assert bool((total <= 1 + 1e-5).all())  # the padding has the rest
        else:
            torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("attention", ["decoder.blocks.0.image_attn", "decoder.final_attn"])
def test_masks_without_a_head_are_those_of_a_model_without_it(attention: str) -> None:
    bundle, values = tiny_bundle("sam"), {"image": url(picture((45, 60))), "points": [[10.0, 30.0]]}
    change = {"kind": "ablate_head", "attention": attention, "head": 1}
    changed = trace_of(bundle, values, [change])
    assert not torch.equal(
        changed.derived["segment.masks"], trace_of(bundle, values).derived["segment.masks"]
    )
    other = copy.deepcopy(bundle.model)
    module: Any = other.get_submodule(attention)
    with torch.no_grad():
        module.out_proj.weight[:, module.head_dim : 2 * module.head_dim] = 0
    expected = trace_of(replace(bundle, model=other), values)
    torch.testing.assert_close(changed.derived["segment.masks"], expected.derived["segment.masks"])
    trace = trace_of(bundle, values)
    effects = ablate_heads(trace, attention).effects
    masks = [one.record.output.masks for one in (trace, expected)]
    assert effects[1] == pytest.approx(float((masks[0] - masks[1]).abs().mean()), rel=1e-3)
    blocks = {"kind": "ablate_head", "attention": "encoder.blocks.0.self_attn", "head": 0}
    with pytest.raises(UnsupportedError):
        trace_of(bundle, values, [blocks])


def test_an_image_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tiny_bundle("sam")
    image = url(picture((45, 60)))
    first = trace_of(bundle, {"image": image})  # without a prompt: the center
    assert first.prepared.input.points == ((30.0, 22.5),)
    monkeypatch.setattr(type(bundle.model), "encode_image", None)
    second = trace_of(bundle, {"image": image, "points": [[3.0, 4.0]]})
    assert first.outcome != second.outcome
    with pytest.raises(InvalidValueError) as raised:
        trace_of(bundle, {"image": image, "points": [[99.0, 4.0]]})
    assert raised.value.name == "points"
    with pytest.raises(MissingValueError):
        trace_of(bundle, {"points": [[3.0, 4.0]]})

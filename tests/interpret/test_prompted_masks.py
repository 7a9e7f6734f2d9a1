"""Traces of promptable segmenters: masks equal those of the task, weights are distributions, one encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from glassformer.data.image_files import decode_base64
from glassformer.errors import InvalidValueError, MissingValueError
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
    assert np.clip(outcome.iou, 0, 1) == pytest.approx([one.score for one in expected], abs=1e-5)
    logits = read_tensor(trace, outcome.masks).values
    sized = F.interpolate(logits[None], outcome.size, mode="bilinear")[0] > 0
    for ours, theirs in zip(sized, expected, strict=True):  # resized in one step instead of two
        assert (ours.numpy() == theirs.mask).mean() > 0.97
    tokens, (rows, columns) = len(trace.sequences[0]), trace.sequences[1].grid or (0, 0)
    for attention in outcome.attentions:
        weights = read_tensor(trace, attention.weights).values
        shapes = {
            "tokens": (tokens, tokens),
            "tokens_to_image": (tokens, rows * columns),
            "image_to_tokens": (rows * columns, tokens),
        }
        assert tuple(weights.shape) == (attention.heads, *shapes[attention.kind])
        total = weights.sum(-1)
        if attention.kind == "tokens_to_image":
            assert bool((total <= 1 + 1e-5).all())  # the padding has the rest
        else:
            torch.testing.assert_close(total, torch.ones_like(total))


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

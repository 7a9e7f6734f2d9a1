"""Models with two towers: pairs, similarities and occlusion equal what the model computes."""

from __future__ import annotations

import copy

import pytest
import torch

from glassformer.data.image_files import decode_base64
from glassformer.errors import MissingValueError, UnsupportedError
from glassformer.interpret.examples import example_inputs
from glassformer.interpret.occlusion import background
from glassformer.interpret.similarity import compare_images_texts
from glassformer.interpret.tensors import read_tensor
from tests.interpret.models import example_values, picture, tiny_bundle, trace_of, url


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_similarities_equal_those_of_the_task_and_of_each_pair(family: str) -> None:
    bundle = tiny_bundle(family)
    images = [url(picture()), url(picture((16, 40)))]
    texts = ["the cat sat on the mat.", "a dog ran", "where is the glass?"]
    info = compare_images_texts(bundle, images, texts)
    classes = bundle.classify([decode_base64(image) for image in images], labels=texts, template="{}")
    for n, row in enumerate(info.cosines):
        logits = info.scale * torch.tensor(row) + info.bias
        scores = logits.softmax(-1) if info.activation == "softmax" else logits.sigmoid()
        expected = {label.label: label.score for label in classes[n]}
        assert scores.tolist() == pytest.approx([expected[text] for text in texts], abs=1e-5)
        for m, cosine in enumerate(row):
            outcome = trace_of(bundle, {"image": images[n], "text": texts[m]}).outcome
            assert (outcome.cosine, outcome.logit) == pytest.approx((cosine, float(logits[m])), abs=1e-4)
    with pytest.raises(UnsupportedError):
        compare_images_texts(tiny_bundle("vit"), images, texts)


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_trace_has_both_towers(family: str) -> None:
    bundle = tiny_bundle(family)
    trace = trace_of(bundle, example_values(bundle))
    info = trace.info()
    assert [(one.name, one.kind) for one in info.sequences] == [("image", "patches"), ("text", "text")]
    for attention in info.attentions:
        assert info.tensors[f"{attention.name}.q"][2] == len(trace.sequence(attention.queries))
    for stage in info.stages:
        for name in stage.tensors.values():
            read_tensor(trace, name)
    (head,) = (attention.name for attention in info.attentions[:1])
    changed = trace_of(
        bundle, example_values(bundle), [{"kind": "ablate_head", "attention": head, "head": 0}]
    )
    assert changed.outcome.cosine != trace.outcome.cosine
    texts = [one.text for one in example_inputs(bundle)]  # all that are not too long
    assert texts == ["a red circle", "a red square", "a blue circle", "a blue square"]
    for name in ("image", "text"):
        with pytest.raises(MissingValueError) as raised:
            trace_of(bundle, {k: v for k, v in example_values(bundle).items() if k != name})
        assert raised.value.name == name


@pytest.mark.parametrize("family", ["clip", "vit", "swin"])
def test_occlusion_is_the_drop_of_the_score(family: str) -> None:
    bundle = tiny_bundle(family)
    trace = trace_of(bundle, example_values(bundle))
    drops = read_tensor(trace, "occlusion").values  # (L, rows, columns)
    patches = trace.sequences[0]
    assert tuple(drops.shape[1:]) == patches.grid
    row, column = 1, 2
    x, y, width, height = patches.tokens[patches.prefix + row * patches.grid[1] + column].box
    inputs = copy.deepcopy(trace.prepared.inputs)
    image = inputs["images" if family == "clip" else "inputs"]
    image[:, :, y : y + height, x : x + width] = background(image)
    with torch.inference_mode():
        before, after = bundle.model(**trace.prepared.inputs), bundle.model(**inputs)
    if family == "clip":
        expected = (before.logits_per_image - after.logits_per_image)[0]
    else:
        expected = (before.double().softmax(-1).logit() - after.double().softmax(-1).logit())[0].float()
    torch.testing.assert_close(drops[:, row, column], expected, atol=1e-5, rtol=1e-4)

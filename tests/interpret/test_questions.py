"""A question about an image: words and patches in one sequence, with the numbers of the model's forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.inputs import ImageTextInputs
from glassformer.data.image_files import decode_base64
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret.catalog import describe_model
from glassformer.interpret.head_patterns import attention_blocks
from glassformer.interpret.logit_lens import logit_lens
from glassformer.interpret.occlusion import background
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import Trace
from tests.interpret.models import example_values, tiny_bundle, trace_of

WORDS, PREFIX, PATCHES = 7, 8, 16  # [CLS] where is the cat ? [SEP] [image], 4 x 4 patches


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return tiny_bundle("vilt")


@pytest.fixture
def trace(bundle: Bundle) -> Trace:
    return trace_of(bundle, example_values(bundle))


def inputs_of(trace: Trace) -> ImageTextInputs:
    inputs: ImageTextInputs = trace.prepared.inputs["inputs"]
    return inputs


@torch.no_grad()
def probabilities(trace: Trace, inputs: ImageTextInputs) -> Tensor:
    model: Any = trace.bundle.model
    result: Tensor = model(inputs)[0].softmax(-1)
    return result


def log_odds(probabilities: Tensor) -> Tensor:
    return (probabilities / (1 - probabilities)).log()


def test_words_come_before_the_patches_and_the_answers_are_those_of_the_model(trace: Trace) -> None:
    (sequence,) = trace.sequences
    assert len(sequence) == PREFIX + PATCHES == trace.record["embed.out"].shape[1]
    assert (sequence.prefix, sequence.grid, sequence.kind) == (PREFIX, (4, 4), "patches")
    assert [token.piece for token in sequence.tokens[3:9]] == ["the", "cat", "?", "[SEP]", "[image]", "1,1"]
    expected = probabilities(trace, inputs_of(trace))
    shown = {one.label: one.probability for one in trace.outcome.labels}
    for label, probability in zip(("red", "two", "no"), expected.tolist(), strict=True):
        assert shown[label] == pytest.approx(probability, abs=1e-6)
    info = trace.info()
    assert set(trace.record) <= {name for stage in info.stages for name in stage.tensors.values()}
    model = describe_model(trace.bundle, "questions")
    assert (model.kind, model.architecture) == ("ask", "encoder-only")
    assert model.image is not None and model.image.grid == (4, 4)


@pytest.mark.parametrize("job", ["vqa", None])
def test_probabilities_are_those_of_ask(bundle: Bundle, job: str | None) -> None:
    """One answer is right for a model of the job vqa; published models have a probability for each."""
    other = replace(bundle, job=replace(bundle.job, name=job))
    values = example_values(other)
    trace, best = (
        trace_of(other, values),
        other.ask(decode_base64(values["image"]), values["question"], top=3),
    )
    expected = [(best.answer, best.score), *((one.answer, one.score) for one in best.alternatives)]
    shown = [(one.label, pytest.approx(one.probability, abs=1e-6)) for one in trace.outcome.labels]
    assert expected == shown and (sum(score for _, score in expected) == pytest.approx(1)) == bool(job)
    after = logit_lens(trace).layers[-1].predictions[0]
    assert (after.text, after.probability) == (best.answer, pytest.approx(best.score, abs=1e-6))


def test_blocks_are_the_attention_between_words_and_patches(trace: Trace) -> None:
    blocks = read_tensor(trace, "attention.blocks").values
    assert blocks.shape == (2, 4, 2, 2)
    torch.testing.assert_close(blocks.sum(-1), torch.ones(2, 4, 2))
    weights = trace.record.weights("encoder.blocks.1.self_attn")[0]  # (H, 24, 24)
    for head in range(4):
        given = sum(float(weights[head, q, k]) for q in range(WORDS) for k in range(WORDS, PREFIX + PATCHES))
        assert float(blocks[1, head, 0, 1]) == pytest.approx(given / WORDS, abs=1e-5)
        given = sum(float(weights[head, q, k]) for q in range(WORDS, PREFIX + PATCHES) for k in range(WORDS))
        assert float(blocks[1, head, 1, 0]) == pytest.approx(given / (PREFIX + PATCHES - WORDS), abs=1e-5)
    with pytest.raises(UnsupportedError):
        attention_blocks(trace_of(tiny_bundle("vit"), example_values(tiny_bundle("vit"))))


@pytest.mark.parametrize("size", [1, 3])
def test_covered_patches_and_masked_words_equal_forwards_of_their_own(trace: Trace, size: int) -> None:
    inputs = inputs_of(trace)
    assert isinstance(inputs.images, Tensor)
    before = log_odds(probabilities(trace, inputs))
    drops = read_tensor(trace, f"occlusion.{size}").values
    assert drops.shape == (3, 4, 4)
    for row, column in ((0, 0), (1, 2), (3, 3)):
        images = inputs.images.clone()
        high, wide = (slice(max(0, at - size // 2) * 4, (at + size // 2) * 4 + 4) for at in (row, column))
        images[:, :, high, wide] = background(inputs.images)
        expected = before - log_odds(probabilities(trace, replace(inputs, images=images)))
        torch.testing.assert_close(drops[:, row, column], expected, atol=1e-5, rtol=1e-4)
    masked = read_tensor(trace, "occlusion.words").values
    assert masked.shape == (3, WORDS)
    for word in range(WORDS):
        visible = torch.ones(1, WORDS, dtype=torch.bool)
        visible[0, word] = False
        alone = replace(inputs, mask=visible, positions=torch.arange(WORDS)[None])
        expected = before - log_odds(probabilities(trace, alone))
        torch.testing.assert_close(masked[:, word], expected, atol=1e-5, rtol=1e-4)


def test_changes_apply_to_words_and_patches(trace: Trace) -> None:
    bundle, values = trace.bundle, example_values(trace.bundle)
    masked = read_tensor(trace, "occlusion.words").values
    before = trace.record["head.logits"][0].softmax(-1)
    change = {"kind": "mask_token", "sequence": "input", "position": 4}
    after = trace_of(bundle, values, [change]).record["head.logits"][0].softmax(-1)
    torch.testing.assert_close(masked[:, 4], log_odds(before) - log_odds(after), atol=1e-5, rtol=1e-4)
    hidden = trace_of(bundle, values, [{**change, "position": PREFIX + 5}])
    assert not bool(hidden.record.weights("encoder.blocks.0.self_attn")[..., PREFIX + 5].any())

    inputs, swap = inputs_of(trace), {"kind": "swap_tokens", "sequence": "input"}
    swapped = trace_of(bundle, values, [{**swap, "positions": [1, 4]}])
    ids = inputs.ids[:, [0, 4, 2, 3, 1, 5, 6]]
    expected = probabilities(trace, replace(inputs, ids=ids))
    torch.testing.assert_close(swapped.record["head.logits"][0].softmax(-1), expected)
    assert [token.piece for token in swapped.sequences[0].tokens[1:5]] == ["cat", "is", "the", "where"]
    assert isinstance(inputs.images, Tensor)
    images = inputs.images.clone()
    images[..., :4, :4], images[..., 4:8, 8:12] = inputs.images[..., 4:8, 8:12], inputs.images[..., :4, :4]
    swapped = trace_of(bundle, values, [{**swap, "positions": [PREFIX, PREFIX + 6]}])
    expected = probabilities(trace, replace(inputs, images=images))
    torch.testing.assert_close(swapped.record["head.logits"][0].softmax(-1), expected, atol=1e-6, rtol=1e-5)
    for positions in ([1, PREFIX], [WORDS, PREFIX + 1]):
        with pytest.raises(InvalidValueError, match="position"):
            trace_of(bundle, values, [{**swap, "positions": positions}])

"""Occlusion of texts and series against forwards of inputs that are changed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.inputs import TextInputs, tensor_of
from glassformer.errors import MissingValueError, UnsupportedError
from glassformer.interpret import occlusion
from glassformer.interpret.occlusion import background, occlude
from glassformer.interpret.schema import ItemNotFoundError, TooLargeError
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import Trace
from tests.interpret.models import TEXT, classifier, example_values, tiny_bundle, trace_of

TOKENS = ["the", "film", "was", "not", "boring", "great", "story", "and", "very", "it"]


def token_scores(trace: Trace, logits: Tensor, shift: int) -> Tensor:
    """Log-probabilities of the tokens that follow."""
    ids = trace.prepared.inputs["tgt" if "tgt" in trace.prepared.inputs else "inputs"].ids[0]
    targets = [*ids[1:].tolist(), int(trace.record["head.logits"][0, -1].argmax())][: len(ids) - 1 + shift]
    return torch.stack([logits[0, n].log_softmax(-1)[id] for n, id in enumerate(targets)])


@pytest.mark.parametrize("hide", ["mask", "replace"])
@pytest.mark.parametrize(
    ("family", "name"), [("original", "source"), ("original", "target"), ("gpt2", "input")]
)
def test_drops_equal_those_of_changed_inputs(family: str, name: str, hide: Any) -> None:
    bundle = tiny_bundle(family)
    given = {"target": [5, 6, 7, 8]} if family == "original" else {}
    trace = trace_of(bundle, {"text": TEXT, **given})
    tokenizer: Any = bundle.tokenizer
    replacement = tokenizer.mask_id if tokenizer.mask_id is not None else tokenizer.unk_id
    if hide == "replace" and replacement is None:
        with pytest.raises(UnsupportedError):
            occlude(trace, name, hide=hide)
        return
    drops = occlude(trace, name, hide=hide)
    shift = int(family == "gpt2")
    before = token_scores(trace, trace.record["head.logits"], shift)
    assert drops.shape == (len(before), len(trace.sequence(name)))
    argument = {"source": "src", "target": "tgt", "input": "inputs"}[name]
    for position in range(drops.shape[1]):
        if hide == "mask":
            change = {"kind": "mask_token", "sequence": name, "position": position}
            logits = trace_of(bundle, {"text": TEXT, **given}, [change]).record["head.logits"]
        else:
            text = trace.prepared.inputs[argument]
            ids = text.ids.clone()
            ids[0, position] = replacement
            with torch.no_grad():
                logits = bundle.model(**{**trace.prepared.inputs, argument: replace(text, ids=ids)})
        expected = before - token_scores(trace, logits, shift)
        torch.testing.assert_close(drops[:, position], expected, atol=1e-4, rtol=1e-4)


def test_a_patch_of_a_series_takes_the_last_value_before_it() -> None:
    bundle = tiny_bundle("patchtst")
    trace = trace_of(bundle, example_values(bundle))
    drops = read_tensor(trace, "occlusion").values
    values = tensor_of(trace.prepared.inputs["inputs"])
    with torch.no_grad():
        before = bundle.model(values)
    for position, token in enumerate(trace.sequences[0].tokens):
        changed = values.clone()
        if token.span is not None:
            changed[0, slice(*token.span)] = values[0, max(0, token.span[0] - 1)]
        with torch.no_grad():
            expected = (before - bundle.model(changed))[0].T.flatten()
        torch.testing.assert_close(drops[:, position], expected, atol=1e-5, rtol=1e-4)


def test_the_background_is_the_color_of_the_border() -> None:
    image = torch.full((1, 3, 6, 8), 5.0)
    image[:, 1] = -2
    image[:, :, 2:4, 3:6] = 9
    image[:, :, 0, 0] = 100
    assert background(image).flatten().tolist() == [5, -2, 5]


def test_unknown_sequences_and_changed_traces_are_refused() -> None:
    bundle = tiny_bundle("gpt2")
    with pytest.raises(ItemNotFoundError):
        occlude(trace_of(bundle, {"text": TEXT}), "source")
    with pytest.raises(UnsupportedError):
        occlude(trace_of(bundle, {"text": TEXT}, [{"kind": "skip_layer", "block": "decoder.blocks.0"}]))


def test_an_empty_output_cannot_be_explained() -> None:
    with pytest.raises(MissingValueError):
        read_tensor(trace_of(tiny_bundle("original"), {"text": TEXT, "target": []}), "occlusion")


def test_occlusion_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of(tiny_bundle("original"), {"text": TEXT, "target": [5, 6, 7]})
    source, target = map(len, trace.sequences)
    monkeypatch.setattr(occlusion, "MAX_TOKENS", source * (source + target))
    assert occlude(trace, "source").shape[1] == source
    monkeypatch.setattr(occlusion, "MAX_TOKENS", source * (source + target) - 1)
    with pytest.raises(TooLargeError):
        occlude(trace, "source")


def trained_on_negation() -> Bundle:
    """A small review classifier: "boring" is bad and "great" is good, unless "not" stands before it."""
    bundle = classifier()
    model: Any = bundle.model
    generator = torch.Generator().manual_seed(0)
    first = 5  # ids of TOKENS
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(400):
        ids = torch.randint(0, len(TOKENS), (64, 6), generator=generator)
        ids[ids.eq(3) | ids.eq(4) | ids.eq(5)] = 0
        negated, great = (torch.randint(0, 2, (64,), generator=generator) for _ in range(2))
        place = torch.randint(1, 6, (64,), generator=generator)
        rows = torch.arange(64)
        ids[rows, place] = 4 + great
        ids[rows[negated.bool()], place[negated.bool()] - 1] = 3
        labels = 2 * (great ^ negated)
        loss = torch.nn.functional.cross_entropy(model(TextInputs(ids + first)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    assert loss.item() < 0.1
    return bundle


def test_not_lights_up_in_was_not_boring() -> None:
    from glassformer.interpret.prepared_input import PreparedInput
    from tests.interpret.models import trace_forward

    bundle = trained_on_negation()
    words = ["the", "story", "was", "not", "boring", "it"]
    ids = torch.tensor([[5 + TOKENS.index(word) for word in words]])
    trace = trace_forward(bundle.model, {"inputs": ids}, kind="classify")
    sequences = (sequence_of(words),)
    prepared: PreparedInput = replace(trace.prepared, sequences=sequences)
    trace = replace(trace, bundle=bundle, prepared=prepared)
    label = int(trace.record["head.logits"][0].argmax())
    assert bundle.job.classes is not None and bundle.job.classes[label] == "good"
    drops = occlude(trace, hide="mask")[label]
    assert words[int(drops.argmax())] == "not" and drops[3] > 3
    others = [float(drops[n]) for n in range(len(words)) if words[n] not in ("not", "boring")]
    assert max(map(abs, others)) < float(drops[3]) / 2


def sequence_of(words: list[str]) -> Any:
    from glassformer.interpret.schema import TokenSequence, TraceToken

    return TokenSequence(name="input", kind="text", tokens=tuple(TraceToken(piece=word) for word in words))

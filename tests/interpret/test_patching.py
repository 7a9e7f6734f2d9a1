"""Activation patching against forwards that are patched by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

import glassformer
from glassformer.core.inputs import tensor_of
from glassformer.core.observe import observe
from glassformer.errors import ConflictError, GlassformerError, UnsupportedError
from glassformer.interpret import catalog as catalog_module
from glassformer.interpret import patching as patching_module
from glassformer.interpret import prepared_input
from glassformer.interpret.catalog import Catalog
from glassformer.interpret.patching import Patching, align_positions, compare_answers
from glassformer.interpret.schema import (
    ItemNotFoundError,
    PatchActivation,
    TokenSequence,
    TooLargeError,
    TraceInput,
    TraceToken,
)
from glassformer.interpret.trace import trace_model
from glassformer.interpret.views import base
from glassformer.interpret.views.base import estimate_bytes
from glassformer.server.explorer import TraceRequest
from tests.interpret.models import classifier, example_values, tiny_bundle, trace_of

A, B = (
    TraceInput(text="My father is very tired.", to="fr"),
    TraceInput(text="My mother is very tired.", to="fr"),
)


@pytest.fixture(scope="module")
def patching() -> Any:
    pipeline = glassformer.load("pocket")
    return compare_answers(trace_model(pipeline, A), trace_model(pipeline, B))


def differences(patching: Any, edit: dict[str, Any]) -> float:
    inputs = dict(patching.corrupted.prepared.inputs)
    row = observe(patching.corrupted.bundle.model, inputs, edit=edit).output[0, patching.position]
    return float(row[patching.ids[0]] - row[patching.ids[1]])


def patched_by_hand(name: str, values: Tensor, index: int, dim: int) -> dict[str, Any]:
    def edit(x: Tensor) -> Tensor:
        x = x.clone()
        x.select(dim, index).copy_(values.select(dim, index))
        return x

    return {name: edit}


@pytest.mark.parametrize(
    "name",
    ["encoder.blocks.2.resid_out", "decoder.blocks.1.cross_attn.heads", "encoder.blocks.3.self_attn.weights"],
)
def test_recovery_equals_that_of_forwards_patched_by_hand(patching: Any, name: str) -> None:
    owner, _, tail = name.rpartition(".")
    record = patching.clean.record
    values = record.weights(owner) if tail == "weights" else record[name]
    high, low = patching.setup().differences
    assert high > 0 > low
    result = patching.patch(name)
    assert len(result.recovered) == values.shape[1]
    for index, share in enumerate(result.recovered):
        expected = (differences(patching, patched_by_hand(name, values, index, 1)) - low) / (high - low)
        assert share == pytest.approx(expected, abs=1e-4)


def test_copies_run_in_batches_below_the_limit(patching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "encoder.blocks.2.resid_out"
    expected = patching.patch(name).recovered
    sizes = []
    model = patching.corrupted.bundle.model
    hook = model.register_forward_pre_hook(
        lambda module, args, inputs: sizes.append(len(tensor_of(inputs["src"]))), with_kwargs=True
    )
    monkeypatch.setattr(prepared_input, "MAX_NUMBERS", 2 * patching.corrupted.record.output.numel())
    with hook:
        assert patching.patch(name).recovered == pytest.approx(expected, abs=1e-4)
    assert max(sizes) == 2 and sum(sizes) == len(expected)


def test_the_whole_answer_comes_back_where_nothing_can_change_it(patching: Any) -> None:
    last = patching.patch("decoder.blocks.2.resid_out")
    assert last.recovered[patching.position] == pytest.approx(1, abs=1e-5)
    with pytest.raises(ItemNotFoundError):
        patching.patch("decoder.blocks.7.resid_out")


def test_a_patched_translation_is_that_of_the_other_sentence(patching: Any) -> None:
    pipeline = patching.clean.bundle
    change = PatchActivation(name="encoder.blocks.2.resid_out", position=2, source=A)
    assert trace_model(pipeline, B, [change]).outcome.text == "Mon père est très fatigué."
    given = patching.corrupted.prepared.input
    record = trace_model(pipeline, given, [change]).record
    row = record["head.logits"][0, patching.position]
    high, low = patching.setup().differences
    share = (float(row[patching.ids[0]] - row[patching.ids[1]]) - low) / (high - low)
    assert share == pytest.approx(patching.patch(change.name).recovered[2], abs=1e-4)
    for wrong in ({"name": "nothing.blocks.0.resid_out"}, {"name": change.name, "position": 99}):
        with pytest.raises(GlassformerError):
            trace_model(pipeline, B, [PatchActivation(source=A, **wrong)])


def test_each_source_of_patches_is_run_once(patching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []

    def counted(*args: Any) -> Any:
        runs.append(args)
        return observe(*args)

    monkeypatch.setattr(patching_module, "observe", counted)
    site, given = "encoder.blocks.2.resid_out", patching.corrupted.prepared.input
    changes = [PatchActivation(name=site, position=n, source=source) for n in (1, 2) for source in (A, B)]
    trace = trace_model(patching.clean.bundle, given, changes)
    assert len(runs) == 2
    expected = trace_model(patching.clean.bundle, given, changes[3:]).record[site]
    assert torch.equal(trace.record[site], expected)  # the later patch of a token


def test_sources_of_patches_have_the_limits_of_inputs(patching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    long = replace(A, text="tired " * 100)
    limit = estimate_bytes(patching.corrupted.bundle, patching.corrupted.prepared)
    monkeypatch.setattr(base, "MAX_BYTES", 2 * limit)
    with pytest.raises(TooLargeError):
        patch = PatchActivation(name="encoder.blocks.2.resid_out", source=long)
        trace_model(patching.clean.bundle, patching.corrupted.prepared.input, [patch])
    body: dict[str, Any] = {"model": "pocket", "text": "a"}
    change: dict[str, Any] = {"kind": "patch", "name": "x", "source": {"text": "a", "target": [5]}}
    (read,) = TraceRequest.model_validate({**body, "interventions": [change]}).interventions
    assert isinstance(read, PatchActivation) and read.source == TraceInput(text="a", target=(5,))
    wrong: tuple[dict[str, Any], ...] = ({"text": "a" * 100_001}, {"target": [-1]}, {"texts": "a"})
    for source in wrong:
        with pytest.raises(ValidationError):
            TraceRequest.model_validate({**body, "interventions": [{**change, "source": source}]})


@pytest.mark.parametrize("tail", ["heads", "weights"])
def test_window_attention_cannot_be_patched(tail: str) -> None:
    bundle = tiny_bundle("swin")
    trace = trace_of(bundle, example_values(bundle))
    source = trace.prepared.input
    patch = PatchActivation(name=f"{trace.attentions()[0].name}.{tail}", head=0, source=source)
    with pytest.raises(UnsupportedError, match="window attention"):
        trace_model(bundle, source, [patch])


def test_equal_answers_cannot_be_patched(patching: Any) -> None:
    pipeline = patching.clean.bundle
    with pytest.raises(ConflictError, match="the same"):
        compare_answers(trace_model(pipeline, A), trace_model(pipeline, A))


def test_traces_that_differ_only_in_the_target_cannot_be_patched(patching: Any) -> None:
    traces = [trace_model(patching.clean.bundle, replace(A, target=text)) for text in ("Mon", "Ma")]
    with pytest.raises(ConflictError, match="only in the target"):
        compare_answers(*traces)


def test_concurrent_requests_share_a_patching(patching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog({"pocket": patching.clean.bundle})
    first, second = (catalog.take("pocket", one).id for one in (A, B))
    counted = Mock(wraps=compare_answers)
    monkeypatch.setattr(catalog_module, "compare_answers", counted)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: catalog.patching(first, second), range(8)))
    assert counted.call_count == 1 and all(one is results[0] for one in results)
    monkeypatch.setattr(catalog_module, "MAX_PATCHINGS", 0)
    assert catalog.patching(second, first).ids == results[0].ids[::-1]  # evicted by the time it is returned


def sequence(text: str) -> TokenSequence:
    tokens = tuple(TraceToken(id=hash(word), piece=word) for word in text.split())
    return TokenSequence(name="input", kind="text", tokens=tokens)


def test_tokens_without_a_counterpart_are_left_out() -> None:
    pairs = align_positions(sequence("the very old dog slept"), sequence("the dog sat"))
    assert pairs == ((0, 0), (3, 1), (4, 2))


def test_next_tokens_and_labels_can_be_patched() -> None:
    bundle = tiny_bundle("gpt2")
    traces = [trace_model(bundle, TraceInput(text=text)) for text in ("aaaa", "bbbb", "cccc", "dddd", "eeee")]
    best = [int(one.record["head.logits"][0, -1].argmax()) for one in traces]
    other = next(n for n in range(1, len(best)) if best[n] != best[0])
    patching = compare_answers(traces[0], traces[other])
    assert patching.ids == (best[0], best[other])
    labels = classifier()
    pair = [trace_model(labels, TraceInput(text=text)) for text in ("the cat sat", "where is it")]
    for one in (patching, Patching(pair[0], pair[1], None, (0, 2))):
        last = [site for site in one.sites() if site.endswith("resid_out")][-1]
        read = -1 if one is patching else 0  # the head reads the last position, or the first
        assert one.patch(last).recovered[read] == pytest.approx(1, abs=1e-4)

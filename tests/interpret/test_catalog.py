"""Models estimate of, traces kept and dropped, changes that act on the answer, and what a trace may cost."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread

import pytest

from glassformer.baselines import build_baseline
from glassformer.baselines import spec as baseline_specs
from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError, UnsupportedError
from glassformer.families.sidecars import JobInfo
from glassformer.interpret.catalog import Catalog
from glassformer.interpret.schema import ItemNotFoundError, SkipLayer, TooLargeError, TraceInput
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import TraceStore, trace_model
from glassformer.interpret.views import base
from glassformer.interpret.views.base import estimate_bytes
from tests.interpret.models import (
    TEXT,
    WRITERS,
    classifier,
    example_values,
    tiny_bundle,
    trace_of,
    wordwise,
)
from tests.tasks.tiny_models import KOREAN


@pytest.mark.parametrize(
    "family",
    [*WRITERS, "gpt2", "gemma2", "llava", "bert", "deberta", "sentence", "vit", "patchtst", "blip"],
)
def test_every_model_is_described_with_an_example_it_accepts(family: str) -> None:
    bundle = tiny_bundle(family)
    (info,) = Catalog({"one": bundle}).models()
    numbers = sum(one.numel() for one in bundle.model.parameters())
    assert info.parameters == numbers and info.bytes == 4 * numbers
    assert info.architecture in ("encoder-decoder", "encoder-only", "decoder-only")
    for stack in info.outline.stacks:
        parts = [bundle.model.get_submodule(name) for name in (stack.name, stack.embed)]
        counts = [sum(one.numel() for one in part.parameters()) for part in parts]
        assert sum(stack.parameters.values()) == sum(counts) and stack.parameters["embedding"] == counts[1]
        names = dict(bundle.model.get_submodule(f"{stack.name}.blocks.0.ffn").named_parameters())
        assert {f"{one}.bias" for one in stack.biases} == {one for one in names if one.endswith("bias")}
    if info.kind in ("translate", "generate", "fill", "classify", "image"):
        scored = [one for one, _ in bundle.model.head.named_parameters() if one.endswith("bias")]
        assert info.outline.head.bias == bool(scored)
    trace = trace_model(bundle, info.example)
    assert trace.kind == info.kind
    for stage in trace.info().stages:
        for name in stage.tensors.values():
            read_tensor(trace, name)
    bundle.job = replace(bundle.job, example={"text": "mine"})
    assert Catalog({"one": bundle}).models()[0].example == TraceInput(text="mine")
    if info.image:
        assert trace.sequences[0].grid == tuple(info.image.grid)
    if info.series:
        assert trace.outcome.columns == info.series.channels


def test_descriptions_list_labels_and_languages() -> None:
    (info,) = Catalog({"one": classifier()}).models()
    assert info.labels == ("bad", "so so", "good") and info.outline.head.num_labels == 3
    from glassformer.tokenization import TokenizerPlan, train_tokenizer

    bundle = tiny_bundle("marian")
    bundle.tokenizer = train_tokenizer(
        [TEXT] * 3, TokenizerPlan(kind="word", vocab_size=wordwise().vocab_size, tags=(">>fra<<", ">>de<<"))
    )
    (info,) = Catalog({"one": bundle}).models()
    assert info.languages == ("fra", "de")
    tagged = trace_of(bundle, {"text": TEXT, "to": "fra"}).sequence("source")
    assert tagged.tokens[0].raw == ">>fra<<" and tagged.tokens[0].special and tagged.tokens[1].start == 0
    with pytest.raises(GlassformerError):
        trace_of(bundle, {"text": TEXT, "to": "xx"})


def test_baselines_are_not_listed() -> None:
    bundle = build_baseline(baseline_specs.LSTMLanguageModelSpec(vocab_size=50, d_model=8, num_layers=1))
    catalog = Catalog({"lstm": Bundle(model=bundle, tokenizer=wordwise()), "gpt2": tiny_bundle("gpt2")})
    assert [info.id for info in catalog.models()] == ["gpt2"]
    with pytest.raises(UnsupportedError):
        catalog.take("lstm", TraceInput(text="a"))


def test_repeated_requests_are_answered_from_the_store() -> None:
    catalog = Catalog({"one": tiny_bundle("gpt2"), "two": tiny_bundle("gpt2")})
    input = TraceInput(text="the sea")
    first = catalog.take("one", input)
    assert catalog.take("one", TraceInput(text="the sea"), []) is first
    assert catalog.store.get(first.id) is first
    others = [
        catalog.take("two", input),
        catalog.take("one", TraceInput(text="the sea ")),
        catalog.take("one", TraceInput(text="the sea", target=(5,))),
        catalog.take("one", input, [SkipLayer(block="decoder.blocks.0")]),
    ]
    assert len({first.id, *(other.id for other in others)}) == 5
    with pytest.raises(ItemNotFoundError):
        catalog.take("three", input)


def test_store_drops_the_least_recently_used_traces() -> None:
    bundle = tiny_bundle("gpt2")
    traces = [trace_of(bundle, {"text": text}, model="m") for text in ("aa", "bb", "cc", "dd")]
    store = TraceStore(max_traces=2)
    for one in traces[:2]:
        store.put(one)
    store.get(traces[0].id)
    store.put(traces[2])
    assert store.find(traces[0].id) and store.find(traces[2].id)
    with pytest.raises(ItemNotFoundError):
        store.get(traces[1].id)
    room = TraceStore(max_bytes=traces[0].bytes * 2)
    for one in traces:
        room.put(one)
        assert room.bytes <= traces[0].bytes * 2
    assert room.find(traces[3].id)
    tiny_room = TraceStore(max_bytes=1)
    tiny_room.put(traces[0])
    assert tiny_room.get(traces[0].id) is traces[0]


def test_trace_size_counts_shared_storage_once() -> None:
    trace = trace_of(tiny_bundle("gpt2"), {"text": "the sea"})
    places = {one.untyped_storage().data_ptr(): one for one in trace.record.tensors.values()}
    assert trace.bytes == sum(one.untyped_storage().nbytes() for one in places.values())
    assert len(places) < len(trace.record.tensors)


@pytest.mark.parametrize("family", ["original", "t5", "llama", "palm", "bert", "vit", "patchtst"])
def test_trace_size_is_estimated_before_the_forward(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tiny_bundle(family)
    trace = trace_of(bundle, example_values(bundle))
    estimate = estimate_bytes(bundle, trace.prepared)
    assert 0.7 * trace.bytes < estimate < 1.6 * trace.bytes
    monkeypatch.setattr(base, "MAX_BYTES", estimate - 1)
    with pytest.raises(TooLargeError):
        trace_of(bundle, example_values(bundle))


def test_concurrent_requests_share_one_trace() -> None:
    catalog = Catalog({"one": tiny_bundle("gpt2")})
    result: list[int] = []

    def ask() -> None:
        result.append(id(catalog.take("one", TraceInput(text=KOREAN[:12]))))

    threads = [Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(result) == 8 and len(set(result)) == 1


def test_swapped_tokens_are_swapped_in_the_sequence() -> None:
    bundle = tiny_bundle("original")
    before = trace_of(bundle, {"text": TEXT}).sequence("source")
    after = trace_of(
        bundle, {"text": TEXT}, [{"kind": "swap_tokens", "sequence": "source", "positions": [1, 4]}]
    ).sequence("source")
    order = [0, 4, 2, 3, 1, *range(5, len(before))]
    assert after.tokens == tuple(before.tokens[n] for n in order)


def test_gaps_to_restore_are_source_tokens() -> None:
    from glassformer.tokenization import TokenizerPlan, train_tokenizer

    bundle = tiny_bundle("original")
    bundle.tokenizer = train_tokenizer(
        [TEXT] * 3, TokenizerPlan(kind="word", vocab_size=wordwise().vocab_size, tags=("<gap>",))
    )
    bundle.job = JobInfo(name="restore", gap="<gap>", before="")
    text = "the cat <gap> the mat."
    trace = trace_of(bundle, {"text": text})
    estimate = bundle.restore(text)
    assert trace.outcome.text == estimate
    source = trace.sequence("source")
    assert [token.raw for token in source.tokens].count("<gap>") == 1
    for token in source.tokens:
        if token.start is not None:
            assert text[token.start : token.end].strip() == token.piece.strip()
    assert {token.raw for token in source.tokens if token.start is None} == {"</s>"}

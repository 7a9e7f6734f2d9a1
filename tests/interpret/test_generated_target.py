"""The traced answer is what `translate` gives, and with interventions what a model changed by hand gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import glassformer
from glassformer.api import Pipeline
from glassformer.core.inputs import TextInputs
from glassformer.core.masks import Mask
from glassformer.families.sidecars import JobInfo
from glassformer.interpret.interventions import IntervenedModel
from glassformer.interpret.search_view import search_tree
from glassformer.interpret.views import view_of
from glassformer.tasks.text_generation import segments_of
from glassformer.tasks.translation import Translator
from tests.interpret.models import TEXT, interventions, tiny_bundle, trace_of, wordwise

SENTENCES = (
    "I would like to learn how it works.",
    "Click the button to save the file.",
    "The doctor expected him to rest for a week.",
)
PARTS = ("the cat sat on the mat.", "Where is the glass?", "a dog ran after the cat")
LINES = f"{PARTS[0]}  {PARTS[1]}\n\n {PARTS[2]} "
NOTHING = {"kind": "scale_residual", "name": "encoder.blocks.0.resid_out", "position": 0, "scale": 1.0}


@pytest.fixture(scope="module")
def pocket() -> Pipeline:
    return glassformer.load("pocket")


@pytest.mark.parametrize("to", ["de", "ko"])
def test_trace_of_pocket_equals_its_translation(pocket: Pipeline, to: str) -> None:
    for text in SENTENCES:
        expected = pocket.translate(text, to=to)
        assert trace_of(pocket, {"text": text, "to": to}).outcome.text == expected
        assert search_tree(pocket, text=text, to=to).results[0].text == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 3, "length_penalty": 0.2, "early_stopping": True},
        {"num_beams": 1},
        {"num_beams": 2, "num_return_sequences": 2, "max_length": 7},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
        {"stop_strings": ["sat"], "num_beams": 2},
    ],
)
def test_generation_settings_of_the_folder_apply(settings: dict[str, Any]) -> None:
    bundle = tiny_bundle("original")
    bundle.generation |= settings
    expected = Translator(bundle)(TEXT)
    for changes in ((), [NOTHING]):
        outcome = trace_of(bundle, {"text": TEXT}, changes).outcome
        assert (outcome.text, outcome.finish_reason) == (expected.text, expected.finish_reason)


def test_traces_never_sample() -> None:
    bundle = tiny_bundle("original")
    plain = bundle.translate(TEXT, num_beams=1)
    bundle.generation |= {"do_sample": True, "num_return_sequences": 3}
    assert trace_of(bundle, {"text": TEXT}).outcome.text == plain


def without_head(name: str, head: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        attention: Any = model.get_submodule(name)
        width = attention.value_dim
        attention.out_proj.weight[:, head * width : (head + 1) * width] = 0

    return change


def without_layer(stack: str, layer: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        blocks = model.get_submodule(stack).blocks
        model.get_submodule(stack).blocks = nn.ModuleList(b for n, b in enumerate(blocks) if n != layer)

    return change


BY_HAND: tuple[tuple[dict[str, Any], Callable[[Any], None]], ...] = (
    (
        {"kind": "ablate_head", "attention": "decoder.blocks.1.cross_attn", "head": 0},
        without_head("decoder.blocks.1.cross_attn", 0),
    ),
    ({"kind": "skip_layer", "block": "encoder.blocks.0"}, without_layer("encoder", 0)),
)


@pytest.mark.parametrize("n", range(len(BY_HAND)))
def test_intervened_output_equals_a_modified_model(pocket: Pipeline, n: int) -> None:
    change, by_hand = BY_HAND[n]
    other = copy.deepcopy(pocket.model)
    with torch.no_grad():
        by_hand(other)
    changed = Pipeline(model=other, tokenizer=pocket.tokenizer, job=pocket.job, generation=pocket.generation)
    moved = 0
    for text in SENTENCES[:2]:
        expected = changed.translate(text, to="de")
        assert trace_of(pocket, {"text": text, "to": "de"}, [change]).outcome.text == expected
        moved += expected != pocket.translate(text, to="de")
    assert moved or change["kind"] == "ablate_head"  # a trained model may do without one head


def test_target_interventions_apply_from_their_position_on() -> None:
    """Step by step, the scores that the search is given are those of a forward under the changes so far."""
    bundle = tiny_bundle("original")
    change = {"kind": "mask_token", "sequence": "target", "position": 2}
    model: Any = bundle.model
    src = torch.tensor([wordwise().encode(TEXT).ids])
    prefill = IntervenedModel(model, interventions([change])).prefill(
        src, src.eq(src), start_ids=[1], capacity=9
    )
    steps, target = prefill.decoder, torch.tensor([[1]])
    steps.select(torch.tensor([0, 0]))
    target = target.expand(2, -1)
    for ids in torch.tensor([[4, 5], [6, 6], [7, 8], [5, 4]]):
        result = steps.step(ids)
        target = torch.cat((target, ids[:, None]), 1)
        mask = torch.ones_like(target, dtype=torch.bool)
        mask[:, 2:3] = False
        with torch.no_grad():
            places = torch.arange(target.shape[1]).expand_as(target)
            tgt = TextInputs(target, Mask(padding=mask), positions=places)
            wanted = model(src.expand(2, -1), tgt)[:, -1]
        torch.testing.assert_close(result, wanted)
    steps.select(torch.tensor([1]))
    assert steps.step(torch.tensor([4])).shape == wanted[:1].shape


def translator(unit: str | None = None) -> Pipeline:
    bundle = tiny_bundle("original")
    bundle.job = JobInfo(name="translate", unit=unit)
    return bundle


def test_traced_sentences_form_the_translation() -> None:
    bundle = translator(unit="sentence")
    assert tuple(view_of(bundle).split(LINES)) == PARTS
    one, other, last = (trace_of(bundle, {"text": part}).outcome.text for part in PARTS)
    assert len({one, other, last}) > 1
    assert bundle.translate(LINES) == f"{one}  {other}\n\n {last}"


def test_each_sentence_is_traced_with_the_ids_that_translate_reads(pocket: Pipeline) -> None:
    bundle = pocket
    text = "I like 🍎 and 🍌. Where is the glass? 👋"
    (document,) = Translator(bundle, to="de").preprocess([text])
    sources = [
        trace_of(bundle, {"text": one, "to": "de"}).sequence("source")
        for one in view_of(bundle).split(text, "de")
    ]
    read = [[token.id for token in source.tokens] for source in sources]
    assert read == [segment.ids for segment in segments_of(document)] and len(read) == 2


def test_only_translation_splits_sentences() -> None:
    restorer, summarizer = translator(), tiny_bundle("bart")
    gap = wordwise().tokens([5])[0]
    restorer.job = replace(restorer.job, name="restore", gap=gap, before="")
    summarizer.config["task_specific_params"] = {"summarization_cnn": {"num_beams": 1}}
    for bundle in (restorer, summarizer, tiny_bundle("gpt2")):
        assert view_of(bundle).split(LINES) == [LINES]
    assert len(view_of(tiny_bundle("bart")).split(LINES)) == 2  # its lines


def test_uppercase_text_is_traced_as_it_is_translated(pocket: Pipeline) -> None:
    bundle, text = pocket, "WHERE IS THE STATION?"
    outcome = trace_of(bundle, {"text": text, "to": "de"}).outcome
    assert bundle.translate(text, to="de") == outcome.text.upper()


def test_symbols_outside_the_vocabulary_are_reported_as_unread(pocket: Pipeline) -> None:
    assert trace_of(pocket, {"text": "I love 🍕 and music 🎉🎉.", "to": "de"}).info().unread == ("🍕", "🎉")
    assert view_of(pocket).split("Hello! I love pizza 🍕.", "de") == ["Hello!", "I love pizza. 🍕"]
    assert trace_of(pocket, {"text": "나는 음악을 좋아해요!", "to": "en"}).info().unread == ()

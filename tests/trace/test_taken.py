"""A trace's numbers are the library's own: the forward's to the bit, the verbs' where they tell the same."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as drawing
from hypothesis import settings
from hypothesis import strategies as st

from glassformer.api import Bundle
from glassformer.baselines import spec as baseline_specs
from glassformer.baselines.build import build_baseline
from glassformer.core import spec
from glassformer.core.build import build
from glassformer.core.errors import GlassformerError
from glassformer.text import TokenizerPlan, train_tokenizer
from glassformer.trace.outline import kind_of, stacks_of
from glassformer.trace.sequences import read_text, written_text
from glassformer.trace.stations import growth_of
from glassformer.trace.taken import take
from glassformer.verify.inputs import outputs
from tests.trace.models import (
    CONTINUERS,
    ENCODERS,
    TEXT,
    WRITERS,
    bundle,
    bytewise,
    classifier,
    columns,
    given,
    picture,
    url,
    wordpieces,
    wordwise,
)
from tests.verbs.reversing import KOREAN

FAMILIES = (*WRITERS, *CONTINUERS, *ENCODERS, "sentence", "vit", "deit", "patchtst")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recorded_output_is_the_models_own_and_every_station_is_there(family: str) -> None:
    made = bundle(family)
    trace = take(made, given(made))
    with torch.no_grad():
        wanted = outputs(made.model(**trace.ready.inputs))
    for name, found in outputs(trace.record.output).items():
        assert torch.equal(found, wanted[name])
    info = trace.info()
    named = {name for station in info["stations"] for name in station["tensors"].values()}
    assert set(trace.record) <= named
    ids = [station["id"] for station in info["stations"]]
    assert len(set(ids)) == len(ids) and ids[-1] == "head"
    assert {a["name"] for a in info["attentions"]} == set(trace.record.attentions())
    for stack in stacks_of(made):
        layers = [s["layer"] for s in info["stations"] if s["stack"] == stack.name and s["layer"] is not None]
        assert layers == sorted(layers) and set(layers) == set(range(stack.layers))
        assert len(trace.sequence(stack.sequence)) == trace.record[f"{stack.embed}.out"].shape[1]
        assert growth_of(stack, trace.record)[-1] == f"{stack.name}.blocks.{stack.layers - 1}.resid_out"


@pytest.mark.parametrize("family", ["bert", "t5", "falcon", "palm", "original"])
def test_add_and_norm_is_a_sum_and_a_norm(family: str) -> None:
    made = bundle(family)
    trace = take(made, given(made))
    stations = [s for s in trace.info()["stations"] if s["kind"] == "add_norm"]
    assert stations
    for station in stations:
        x = {role: trace.record[name] for role, name in station["tensors"].items()}
        added = x["before"] + x["sublayer"] + x.get("sublayer_ffn", 0)
        assert torch.allclose(x["sum"], added, atol=1e-5)
        block = made.model.get_submodule(f"{station['stack']}.blocks.{station['layer']}")
        norm = getattr(block, station["id"].rpartition(".")[2])
        before = x["sum"] if torch.equal(x["after"], x["normed"]) else x["before"]
        with torch.no_grad():
            assert torch.allclose(norm(before), x["normed"], atol=1e-5)


@pytest.mark.parametrize("family", WRITERS)
def test_the_target_is_what_translate_writes(family: str) -> None:
    made = bundle(family)
    trace = take(made, {"text": TEXT})
    (told,) = made.translate(TEXT, num_beams=1)
    assert trace.outcome["text"] == told and trace.sequence("target").text == told
    written = trace.ready.inputs["tgt"][0, trace.ready.start :].tolist()
    assert trace.outcome["written"] == len(written) > 0
    # each token is the likeliest after those before it, and the end is where it is said to be
    best = trace.record.output[0].argmax(-1).tolist()
    assert best[trace.ready.start - 1 : -1] == written
    assert (best[-1] == wordwise().eos_id) == (trace.outcome["ended"] == "end")
    again = take(made, {"text": TEXT, "target": written})
    assert torch.equal(again.record.output, trace.record.output) and again.outcome["ended"] is None
    assert again.id != trace.id


def test_text_given_as_target_is_read_as_it_is() -> None:
    made = bundle("original")
    trace = take(made, {"text": "the cat", "target": "a dog ran"})
    assert [t.piece.strip() for t in trace.sequence("target").tokens][1:] == ["a", "dog", "ran"]
    assert trace.outcome == {"kind": "translate", "text": "a dog ran", "written": 3, "ended": None}
    with pytest.raises(GlassformerError, match="knows"):
        take(made, {"text": "the cat", "target": [10**6]})


@pytest.mark.parametrize("family", CONTINUERS)
def test_a_prompt_goes_on_with_what_was_written(family: str) -> None:
    made = bundle(family)
    prompt, written = made.tokenizer.encode("the sea").ids, made.tokenizer.encode(" sang 늙").ids
    trace = take(made, {"text": "the sea", "target": written})
    assert trace.ready.inputs["ids"].tolist() == [[*prompt, *written]]
    assert trace.outcome["text"] == " sang 늙" and trace.sequences[0].text == "the sea sang 늙"
    assert trace.outcome["written"] == len(written) and trace.ready.start == len(prompt)


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 6, "max_new_tokens": 9},
        {"forced_eos_token_id": 3, "max_new_tokens": 5},
        {"forced_bos_token_id": 7},
        {"suppress_tokens": [18]},
    ],
)
def test_a_change_that_changes_nothing_writes_the_same(settings: dict[str, Any]) -> None:
    made = bundle("original")
    made.generation |= settings
    nothing = [{"kind": "residual", "name": "encoder.blocks.0.resid_out", "position": 0, "scale": 1.0}]
    plain, changed = take(made, {"text": TEXT}), take(made, {"text": TEXT}, nothing)
    assert plain.outcome["written"] > 0 and changed.outcome == plain.outcome
    assert changed.ready.inputs["tgt"].tolist() == plain.ready.inputs["tgt"].tolist()


@pytest.mark.parametrize("changes", [(), [{"kind": "layer_off", "block": "decoder.blocks.0"}]])
def test_an_answer_without_an_end_stops_where_the_table_of_positions_does(changes: Any) -> None:
    made = bundle("original", max_len=9)
    made.generation |= {"suppress_tokens": [wordwise().eos_id]}
    trace = take(made, {"text": "the cat"}, changes)
    assert len(trace.sequence("target")) == 9 and trace.outcome["ended"] == "length"


def test_a_prompt_may_hold_the_token_that_spells_padding() -> None:
    made = bundle("llama")
    ids = bytewise().encode("sos").ids
    read = dataclasses.replace(made.spec.input, pad_id=ids[0])
    padded = build(dataclasses.replace(made.spec, input=read)).eval()
    padded.load_state_dict(made.model.state_dict())
    trace = take(Bundle(model=padded, tokenizer=bytewise(), family="llama"), {"text": "sos"})
    assert torch.equal(trace.record.output, take(made, {"text": "sos"}).record.output)


def test_a_model_may_write_more_tokens_than_its_tokenizer_spells() -> None:
    size = wordwise().vocab_size
    made = bundle("original", src_vocab_size=size + 5, tgt_vocab_size=size + 5)
    trace = take(made, {"text": TEXT, "target": [size + 4]})
    assert trace.ready.inputs["tgt"][0, -1] == size + 4
    with pytest.raises(GlassformerError, match=f"knows {size + 5}"):
        take(made, {"text": TEXT, "target": [size + 5]})


def test_places_cover_the_text_letter_by_letter() -> None:
    """Korean and pictures in pieces of bytes: spans, and bytes only where letters are broken."""
    made = bundle("gpt2", max_len=200)
    read, written = KOREAN[:20], KOREAN[20:]
    trace = take(made, {"text": read, "target": bytewise().encode(written).ids})
    (sequence,) = trace.sequences
    assert sequence.text == KOREAN
    covered = set()
    for token in sequence.tokens:
        spelt = KOREAN[token.start : token.end]
        covered |= set(range(token.start, token.end))
        if token.bytes is None:
            assert token.piece == spelt
        else:
            assert bytes.fromhex(token.bytes) in spelt.encode() and len(spelt) >= 1
    assert covered == set(range(len(KOREAN)))
    assert any(token.bytes for token in sequence.tokens[trace.ready.start :])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "char", "word"])
def test_a_decomposed_syllable_is_covered_whole(kind: Any) -> None:
    plan = TokenizerPlan(kind=kind, vocab_size=400 if kind == "byte" else 60)
    tokenizer = train_tokenizer(["안녕 세상, 늙은 선장이 é", "the old sea"] * 4, plan)
    text = unicodedata.normalize("NFD", "안녕 세상 늙은 é")
    tokens = read_text(tokenizer, tokenizer.encode(text), text, "input").tokens
    spelt = [text[token.start : token.end] for token in tokens if token.start is not None]
    assert "".join("".join(spelt).split()) == "".join(text.split())
    for token in tokens:
        if token.start is not None and token.bytes is None and not token.special:
            assert unicodedata.normalize("NFC", text[token.start : token.end]).strip() == token.piece.strip()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "char", "word", "wordpiece"])
def test_written_tokens_stand_where_their_letters_do(kind: str) -> None:
    text = "the old sea, isn't it? zebras" if kind == "wordpiece" else "안녕 세상, isn't the sea?"
    tokenizer = wordpieces()
    if kind != "wordpiece":
        plan = TokenizerPlan(kind=kind, vocab_size=300 if kind == "byte" else 60)  # type: ignore[arg-type]
        tokenizer = train_tokenizer(["안녕 세상, 늙은 선장이", "the old sea, isn't it?"] * 4, plan)
    ids = tokenizer.encode(text).ids
    decoded = tokenizer.decode(ids)
    end = 0
    for token in written_text(tokenizer, ids, decoded, "target"):
        if token.special or not token.piece.strip():
            continue
        spelt = decoded[token.start : token.end]
        if token.bytes is None:
            assert spelt.strip() == token.piece.removeprefix("##").strip()
        assert token.start is not None and token.end is not None and end - 1 <= token.start < token.end
        end = token.end
    assert end == len(decoded)


def test_a_classifier_tells_what_classify_tells() -> None:
    made = classifier()
    labels = take(made, {"text": TEXT}).outcome["labels"]
    wanted = made.classify(TEXT)
    assert [one["label"] for one in labels] == [one.label for one in wanted]
    assert np.allclose([one["probability"] for one in labels], [one.score for one in wanted], atol=1e-6)


def test_a_classifier_of_two_stacks_reads_the_text_twice() -> None:
    end = wordwise().eos_id
    made = bundle("bart", head=spec.Classify(num_labels=3, pool="end", end_id=end, hidden="tanh"))
    trace = take(made, {"text": TEXT})
    assert [one["probability"] for one in trace.outcome["labels"]] == pytest.approx(
        [one.score for one in made.classify(TEXT)], abs=1e-6
    )
    assert len(trace.sequence("source")) == len(trace.sequence("target"))


@pytest.mark.parametrize("family", ["vit", "deit"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_is_told_as_classify_tells_it(family: str, kind: str) -> None:
    made = bundle(family)
    file = picture(kind=kind)
    trace = take(made, {"image": url(file, kind.lower())})
    ((wanted),) = made.classify([file])
    assert [one["label"] for one in trace.outcome["labels"]] == [one.label for one in wanted]
    assert [one["probability"] for one in trace.outcome["labels"]] == pytest.approx(
        [one.score for one in wanted], abs=1e-5
    )
    (sequence,) = trace.sequences
    assert sequence.grid == (4, 4) and len(sequence) == sequence.prefix + 16
    assert trace.kept["input.pixels"].shape == (16, 16, 3)
    # a box holds the very pixels that its patch was made of: blank the rest, and the patch stays
    x, y, wide, high = sequence.tokens[sequence.prefix + 6].box
    blank = torch.zeros_like(trace.ready.inputs["inputs"])
    blank[..., y : y + high, x : x + wide] = trace.ready.inputs["inputs"][..., y : y + high, x : x + wide]
    with torch.no_grad():
        other = made.model.embed.patch(blank).flatten(2).transpose(1, 2)
    assert torch.allclose(other[0, 6], trace.record["embed.patch"][0, 6], atol=1e-5)


def test_pictures_without_labels_give_the_vector_of_embed() -> None:
    made = bundle("vit", head=spec.Features(pooler=True))
    trace = take(made, {"image": url(picture())})
    wanted = made.embed([picture()])
    assert kind_of(made) == "embed" and trace.outcome["vector_name"] == "embedding"
    assert torch.allclose(trace.kept["embedding"], wanted, atol=1e-5)


@pytest.mark.parametrize("head", [None, spec.Features()], ids=["sentence", "features"])
def test_a_text_has_the_vector_that_embed_gives(head: Any) -> None:
    made = bundle("sentence") if head is None else bundle("bert", head=head)
    trace = take(made, {"text": TEXT})
    name = trace.outcome["vector_name"]
    found = trace.record[name] if name in trace.record else trace.kept[name]
    wanted = made.embed([TEXT])
    assert torch.allclose(found, wanted, atol=1e-5)
    assert trace.outcome["norm"] == pytest.approx(float(wanted.norm()), abs=1e-5)


@pytest.mark.parametrize("family", ENCODERS)
def test_masks_are_filled_as_fill_does(family: str) -> None:
    made = bundle(family)
    text = "the [MASK] sat on the [MASK]."
    masks = take(made, {"text": text}).outcome["masks"]
    wanted = made.fill(text, top=10).masks
    assert [[one["id"] for one in mask["guesses"]] for mask in masks] == [
        [one.token for one in mask] for mask in wanted
    ]
    for mask, other in zip(masks, wanted, strict=True):
        found = [one["probability"] for one in mask["guesses"]]
        assert found == pytest.approx([one.score for one in other], abs=1e-6)


def test_an_answer_is_the_one_that_answer_gives() -> None:
    made = bundle("bert", head=spec.Answer())
    asked = given(made)
    trace = take(made, asked)
    wanted = made.answer(asked["question"], asked["context"])
    assert (trace.outcome["text"], trace.outcome["start"]) == (wanted.text, wanted.start)
    assert trace.outcome["score"] == pytest.approx(wanted.score, abs=1e-6)
    (sequence,) = trace.sequences
    for token in sequence.tokens:
        if token.start is not None:
            assert sequence.text[token.start : token.end] == token.piece.removeprefix("##")


@pytest.mark.parametrize("distribution", ["none", "student_t"])
def test_a_forecast_is_the_one_that_forecast_gives(distribution: str) -> None:
    made = bundle("patchtst", distribution=distribution)
    table = columns()
    trace = take(made, {"series": {"columns": table, "truth": 4}})
    told = made.forecast({"ds": list(range(36)), **{name: table[name][:-4] for name in ("load", "oil")}})
    names = trace.outcome["names"]
    assert np.allclose(trace.kept[names["forecast"]].numpy(), told.values[0].T, atol=1e-4)
    assert trace.kept[names["truth"]].numpy() == pytest.approx(
        np.array([table["load"][-4:], table["oil"][-4:]], np.float32)
    )
    assert trace.kept[names["past"]][0, -1] == pytest.approx(table["load"][-5])
    assert (trace.kept[names["persistence"]] == trace.kept[names["past"]][:, -1:]).all()
    assert trace.info()["rows"] == ["load", "oil"] and len(trace.record["embed.out"]) == 2
    if distribution == "none":
        assert names["quantiles"] is None
    else:
        found = trace.kept[names["quantiles"]].numpy()  # (C, Q, N)
        assert np.allclose(found, told.quantiles[:, 0].transpose(2, 0, 1), atol=1e-3)


def test_a_series_patch_says_which_steps_it_holds() -> None:
    made = bundle("patchtst")
    trace = take(made, given(made))
    (sequence,) = trace.sequences
    values = trace.record["embed.scaled"][0, :, 1]  # (context,)
    for n, token in enumerate(sequence.tokens[sequence.prefix :]):
        with torch.no_grad():
            found = made.model.embed.patch(values[slice(*token.span)])
        assert torch.allclose(found, trace.record["embed.patch"][1, n], atol=1e-5)
    assert sequence.tokens[-1].span[1] == made.spec.input.context_length


@cache
def read_by(name: str) -> Bundle:
    return bundle("bert", head=spec.Answer()) if name == "answer" else bundle(name)


@settings(max_examples=60)
@drawing(
    st.sampled_from(["original", "gpt2", "bert", "sentence", "answer"]),
    st.text(max_size=40),
    st.none() | st.text(max_size=12) | st.lists(st.integers(-1, 310), max_size=6),
)
def test_any_text_is_a_trace_or_a_sentence(name: str, text: str, target: Any) -> None:
    words = (
        {"question": text, "context": text[::-1]} if name == "answer" else {"text": text, "target": target}
    )
    try:
        trace = take(read_by(name), words)
    except GlassformerError as error:
        assert len(str(error).split()) > 3
        return
    json.dumps(trace.info(), allow_nan=False)
    for sequence in trace.sequences:
        for token in sequence.tokens:
            assert token.start is None or 0 <= token.start <= token.end <= len(sequence.text)


def test_a_model_that_overflows_is_still_told_in_json() -> None:
    made = classifier()
    with torch.no_grad():
        made.model.head.out.bias.fill_(torch.nan)
    info = take(made, {"text": TEXT}).info()
    assert [one["probability"] for one in info["outcome"]["labels"]] == [None] * 3


def test_what_a_model_lacks_or_cannot_read_is_a_sentence() -> None:
    vit, patchtst, gpt2 = bundle("vit"), bundle("patchtst"), bundle("gpt2")
    cases: list[tuple[Bundle, dict[str, Any], str]] = [
        (bundle("original"), {}, "give one as `text`"),
        (bundle("original"), {"text": "  "}, "give one as `text`"),
        (bundle("bert", head=spec.Answer()), {"question": "where?"}, "give both"),
        (vit, {"text": "a"}, "reads a picture"),
        (vit, {"image": "data:text/html,abc"}, "data:image"),
        (vit, {"image": "data:image/png;base64,@@@"}, "not base64"),
        (vit, {"image": "AAAA"}, "picture"),
        (patchtst, {"series": {"columns": {"load": [1.0] * 40}}}, "'oil'"),
        (patchtst, {"series": {"columns": {"load": [1.0] * 9, "oil": [1.0] * 9}}}, "reads the last 24"),
        (patchtst, {"series": {"columns": {"load": [1e400] * 40, "oil": [1.0] * 40}}}, "finite"),
        (patchtst, {"series": {"columns": columns(30), "truth": 7}}, "held back"),
        (gpt2, {"text": "the sea " * 40}, "at most 64"),
        (gpt2, {"text": "a", "txet": "b"}, "no word 'txet'"),
        (Bundle(model=gpt2.model), {"text": "a"}, "tokenizer"),
        (bundle("patchtst", head=spec.SeriesClassify(num_labels=2)), {}, "no view shows"),
    ]
    for made, words, told in cases:
        with pytest.raises(GlassformerError, match=told):
            take(made, words)


def test_a_small_file_cannot_claim_a_huge_picture() -> None:
    from PIL import Image

    made = bundle("vit")
    bomb = picture()
    size = bomb.index(b"IHDR") + 4
    bomb = bomb[:size] + (60_000).to_bytes(4, "big") * 2 + bomb[size + 8 :]
    with pytest.raises(GlassformerError):
        take(made, {"image": url(bomb)})
    assert Image.MAX_IMAGE_PIXELS is not None


def test_a_baseline_has_nothing_to_look_into() -> None:
    kinds = vars(baseline_specs)
    made = build_baseline(kinds["LSTMLanguageModel"](vocab_size=50, d_model=8, num_layers=1))
    with pytest.raises(GlassformerError, match="without attention"):
        take(Bundle(model=made, tokenizer=wordwise()), {"text": "the cat"})

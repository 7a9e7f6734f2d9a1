"""A trace tells what the verbs tell: labels, vectors, missing options, answers, forecasts."""

from __future__ import annotations

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

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.errors import (
    EmptyInputError,
    GlassformerError,
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.families.sidecars import JobInfo
from glassformer.interpret.catalog import describe_model
from glassformer.interpret.logit_lens import logit_lens
from glassformer.interpret.outline import model_kind
from glassformer.interpret.schema import LabelsOutcome, to_json
from glassformer.interpret.tokens import encoded_sequence, generated_tokens
from glassformer.interpret.trace import trace_model
from glassformer.tokenization import TokenizerPlan, train_tokenizer
from tests.interpret.models import (
    ENCODERS,
    TEXT,
    byte_tokenizer,
    classifier,
    columns,
    example_values,
    picture,
    tiny_bundle,
    trace_of,
    url,
    wordpieces,
    wordwise,
)
from tests.tasks.tiny_models import KOREAN


def test_outcome_equals_classify() -> None:
    bundle = classifier()
    labels = trace_of(bundle, {"text": TEXT}).outcome.labels
    wanted = bundle.classify(TEXT)
    assert [one.label for one in labels] == [one.label for one in wanted]
    assert np.allclose([one.probability for one in labels], [one.score for one in wanted], atol=1e-6)


def test_series_classifier_has_its_channels_and_the_labels_of_classify() -> None:
    bundle = tiny_bundle("patchtst", num_labels=3, channels=4)
    bundle.job = JobInfo(columns=("load", "oil"), difference=True, mean=(1.0,) * 4, std=(2.0,) * 4)
    info = describe_model(bundle, "waves")
    assert info.kind == "classify" and info.series is not None and info.series.channels == ("load", "oil")
    trace = trace_model(bundle, info.example)
    assert info.example.series is not None and len(trace.prepared.rows or ()) == 4
    (wanted,) = bundle.classify([np.array([*info.example.series.columns.values()]).T])
    assert isinstance(trace.outcome, LabelsOutcome)
    got = {one.label: one.probability for one in trace.outcome.labels}
    assert got == pytest.approx({one.label: one.score for one in wanted}, abs=1e-6)
    best = logit_lens(trace).layers[-1].predictions[0]
    assert (best.text, best.probability) == (wanted[0].label, pytest.approx(wanted[0].score, abs=1e-6))


def test_forecaster_with_covariates_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        describe_model(tiny_bundle("patchtst", covariates=2), "sales")


def test_encoder_decoder_classifier_reads_the_text_in_both_stacks() -> None:
    end = wordwise().eos_id
    bundle = tiny_bundle("bart", head=spec.ClassifySpec(num_labels=3, pool="end", end_id=end, hidden="tanh"))
    trace = trace_of(bundle, {"text": TEXT})
    assert [one.probability for one in trace.outcome.labels] == pytest.approx(
        [one.score for one in bundle.classify(TEXT)], abs=1e-6
    )
    assert len(trace.sequence("source")) == len(trace.sequence("target"))


@pytest.mark.parametrize("family", ["vit", "deit"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_image_outcome_equals_classify(family: str, kind: str) -> None:
    bundle = tiny_bundle(family)
    file = picture(kind=kind)
    trace = trace_of(bundle, {"image": url(file, kind.lower())})
    ((wanted),) = bundle.classify([file])
    assert [one.label for one in trace.outcome.labels] == [one.label for one in wanted]
    assert [one.probability for one in trace.outcome.labels] == pytest.approx(
        [one.score for one in wanted], abs=1e-5
    )
    (sequence,) = trace.sequences
    assert sequence.grid == (4, 4) and len(sequence) == sequence.prefix + 16
    assert trace.derived["input.pixels"].shape == (16, 16, 3)
    # a box holds the very pixels that its patch was bundle of: blank the rest, and the patch stays
    x, y, wide, high = sequence.tokens[sequence.prefix + 6].box
    blank = torch.zeros_like(trace.prepared.inputs["inputs"])
    blank[..., y : y + high, x : x + wide] = trace.prepared.inputs["inputs"][..., y : y + high, x : x + wide]
    with torch.no_grad():
        other = bundle.model.embed.patch(blank).flatten(2).transpose(1, 2)
    assert torch.allclose(other[0, 6], trace.record["embed.patch"][0, 6], atol=1e-5)


def test_image_embedding_equals_embed() -> None:
    bundle = tiny_bundle("vit", head=spec.FeaturesSpec(pooler=True))
    trace = trace_of(bundle, {"image": url(picture())})
    wanted = bundle.embed([picture()])
    assert model_kind(bundle) == "embed" and trace.outcome.vector_name == "embedding"
    assert torch.allclose(trace.derived["embedding"], wanted, atol=1e-5)


@pytest.mark.parametrize("head", [None, spec.FeaturesSpec()], ids=["sentence", "features"])
def test_text_embedding_equals_embed(head: Any) -> None:
    bundle = tiny_bundle("sentence") if head is None else tiny_bundle("bert", head=head)
    trace = trace_of(bundle, {"text": TEXT})
    name = trace.outcome.vector_name
    result = trace.record[name] if name in trace.record else trace.derived[name]
    wanted = bundle.embed([TEXT])
    assert torch.allclose(result, wanted, atol=1e-5)
    assert trace.outcome.norm == pytest.approx(float(wanted.norm()), abs=1e-5)


@pytest.mark.parametrize("family", ENCODERS)
def test_fill_outcome_equals_fill(family: str) -> None:
    bundle = tiny_bundle(family)
    text = "the [MASK] sat on the [MASK]."
    masks = trace_of(bundle, {"text": text}).outcome.masks
    wanted = bundle.fill(text, top=10).masks
    assert [[one.id for one in mask.predictions] for mask in masks] == [
        [one.token for one in mask] for mask in wanted
    ]
    for mask, other in zip(masks, wanted, strict=True):
        result = [one.probability for one in mask.predictions]
        assert result == pytest.approx([one.score for one in other], abs=1e-6)


def test_answer_outcome_equals_answer() -> None:
    bundle = tiny_bundle("bert", head=spec.AnswerSpec())
    requested = example_values(bundle)
    trace = trace_of(bundle, requested)
    wanted = bundle.answer(requested["question"], requested["context"])
    assert (trace.outcome.text, trace.outcome.start) == (wanted.text, wanted.start)
    assert trace.outcome.score == pytest.approx(wanted.score, abs=1e-6)
    (sequence,) = trace.sequences
    for token in sequence.tokens:
        if token.start is not None:
            assert sequence.text[token.start : token.end] == token.piece.removeprefix("##")


@pytest.mark.parametrize("distribution", ["none", "student_t"])
def test_forecast_outcome_equals_forecast(distribution: str) -> None:
    bundle = tiny_bundle("patchtst", distribution=distribution)
    table = columns()
    trace = trace_of(bundle, {"series": {"columns": table, "holdout": 4}})
    expected = bundle.forecast(
        {"ds": list(range(36)), **{name: table[name][:-4] for name in ("load", "oil")}}
    )
    names = trace.outcome.names
    assert np.allclose(trace.derived[names.forecast].numpy(), expected.values[0].T, atol=1e-4)
    assert trace.derived[names.truth].numpy() == pytest.approx(
        np.array([table["load"][-4:], table["oil"][-4:]], np.float32)
    )
    assert trace.derived[names.past][0, -1] == pytest.approx(table["load"][-5])
    assert (trace.derived[names.persistence] == trace.derived[names.past][:, -1:]).all()
    assert trace.info().channels == ("load", "oil") and len(trace.record["embed.out"]) == 2
    if distribution == "none":
        assert names.quantiles is None
    else:
        result = trace.derived[names.quantiles].numpy()  # (C, Q, N)
        assert np.allclose(result, expected.quantiles[:, 0].transpose(2, 0, 1), atol=1e-3)


def test_series_patches_name_their_steps() -> None:
    bundle = tiny_bundle("patchtst")
    trace = trace_of(bundle, example_values(bundle))
    (sequence,) = trace.sequences
    values = trace.record["embed.scaled"][0, :, 1]  # (context,)
    for n, token in enumerate(sequence.tokens[sequence.prefix :]):
        with torch.no_grad():
            result = bundle.model.embed.patch(values[slice(*token.span)])
        assert torch.allclose(result, trace.record["embed.patch"][1, n], atol=1e-5)
    assert sequence.tokens[-1].span[1] == bundle.spec.input.context_length


def test_token_spans_cover_the_text() -> None:
    """Korean and pictures in pieces of bytes: spans, and bytes only where letters are broken."""
    bundle = tiny_bundle("gpt2", max_len=200)
    read, written = KOREAN[:20], KOREAN[20:]
    trace = trace_of(bundle, {"text": read, "target": byte_tokenizer().encode(written).ids})
    (sequence,) = trace.sequences
    assert sequence.text == KOREAN
    covered = set()
    for token in sequence.tokens:
        spans = KOREAN[token.start : token.end]
        covered |= set(range(token.start, token.end))
        if token.bytes is None:
            assert token.piece == spans
        else:
            assert bytes.fromhex(token.bytes) in spans.encode() and len(spans) >= 1
    assert covered == set(range(len(KOREAN)))
    assert any(token.bytes for token in sequence.tokens[trace.prepared.start :])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "char", "word"])
def test_spans_include_decomposed_syllables(kind: Any) -> None:
    plan = TokenizerPlan(kind=kind, vocab_size=400 if kind == "byte" else 60)
    tokenizer = train_tokenizer(["안녕 세상, 늙은 선장이 é", "the old sea"] * 4, plan)
    text = unicodedata.normalize("NFD", "안녕 세상 늙은 é")
    tokens = encoded_sequence(tokenizer, tokenizer.encode(text), text, "input").tokens
    spans = [text[token.start : token.end] for token in tokens if token.start is not None]
    assert "".join("".join(spans).split()) == "".join(text.split())
    for token in tokens:
        if token.start is not None and token.bytes is None and not token.special:
            assert unicodedata.normalize("NFC", text[token.start : token.end]).strip() == token.piece.strip()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "char", "word", "wordpiece"])
def test_generated_tokens_have_spans_in_the_decoded_text(kind: str) -> None:
    text = "the old sea, isn't it? zebras" if kind == "wordpiece" else "안녕 세상, isn't the sea?"
    tokenizer = wordpieces()
    if kind != "wordpiece":
        plan = TokenizerPlan(kind=kind, vocab_size=300 if kind == "byte" else 60)  # type: ignore[arg-type]
        tokenizer = train_tokenizer(["안녕 세상, 늙은 선장이", "the old sea, isn't it?"] * 4, plan)
    ids = tokenizer.encode(text).ids
    decoded = tokenizer.decode(ids)
    end = 0
    for token in generated_tokens(tokenizer, ids, decoded, "target"):
        if token.special or not token.piece.strip():
            continue
        spans = decoded[token.start : token.end]
        if token.bytes is None:
            assert spans.strip() == token.piece.removeprefix("##").strip()
        assert token.start is not None and token.end is not None and end - 1 <= token.start < token.end
        end = token.end
    assert end == len(decoded)


@cache
def read_by(name: str) -> Bundle:
    return tiny_bundle("bert", head=spec.AnswerSpec()) if name == "answer" else tiny_bundle(name)


@settings(max_examples=60)
@drawing(
    st.sampled_from(["original", "gpt2", "bert", "sentence", "answer"]),
    st.text(max_size=40),
    st.none() | st.text(max_size=12) | st.lists(st.integers(-1, 310), max_size=6),
)
def test_any_text_gives_a_trace_or_an_error(name: str, text: str, target: Any) -> None:
    options = (
        {"question": text, "context": text[::-1]} if name == "answer" else {"text": text, "target": target}
    )
    try:
        trace = trace_of(read_by(name), options)
    except GlassformerError as error:
        assert len(str(error).split()) > 3
        return
    json.dumps(to_json(trace.info()), allow_nan=False)
    for sequence in trace.sequences:
        for token in sequence.tokens:
            assert token.start is None or 0 <= token.start <= token.end <= len(sequence.text)


def test_overflowing_models_give_valid_json() -> None:
    bundle = classifier()
    with torch.no_grad():
        bundle.model.head.out.bias.fill_(torch.nan)
    info = to_json(trace_of(bundle, {"text": TEXT}).info())
    assert [one["probability"] for one in info["outcome"]["labels"]] == [None] * 3


def test_unusable_inputs_are_rejected() -> None:
    vit, patchtst, gpt2 = tiny_bundle("vit"), tiny_bundle("patchtst"), tiny_bundle("gpt2")
    short, infinite = {"load": [1.0] * 9, "oil": [1.0] * 9}, {"load": [1e400] * 40, "oil": [1.0] * 40}
    cases: list[tuple[Bundle, dict[str, Any], type[GlassformerError]]] = [
        (tiny_bundle("original"), {}, MissingValueError),
        (tiny_bundle("original"), {"text": "  "}, EmptyInputError),
        (tiny_bundle("bert", head=spec.AnswerSpec()), {"question": "where?"}, MissingValueError),
        (vit, {"text": "a"}, MissingValueError),
        (vit, {"image": "data:text/html,abc"}, InvalidValueError),
        (vit, {"image": "data:image/png;base64,@@@"}, InvalidValueError),
        (vit, {"image": "AAAA"}, GlassformerError),
        (patchtst, {"series": {"columns": {"load": [1.0] * 40}}}, MissingValueError),
        (patchtst, {"series": {"columns": short}}, ShapeError),
        (patchtst, {"series": {"columns": infinite}}, NonFiniteError),
        (patchtst, {"series": {"columns": columns(30), "holdout": 7}}, ShapeError),
        (gpt2, {"text": "the sea " * 40}, GlassformerError),
        (gpt2, {"text": "a", "txet": "b"}, UnknownNameError),
        (Bundle(model=gpt2.model), {"text": "a"}, GlassformerError),
        (tiny_bundle("patchtst", head=spec.SeriesRegressSpec(num_targets=2)), {}, UnsupportedError),
        (tiny_bundle("vit", head=spec.PixelsSpec(num_labels=3)), {}, UnsupportedError),
    ]
    for bundle, values, error in cases:
        with pytest.raises(error):
            trace_of(bundle, values)

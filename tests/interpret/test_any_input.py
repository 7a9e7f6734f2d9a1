"""Whatever is given is a trace or a sentence that says why not."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given as drawing
from hypothesis import settings
from hypothesis import strategies as st

from glassformer.baselines import build_baseline
from glassformer.baselines import spec as baseline_specs
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
from glassformer.interpret.schema import to_json
from tests.interpret.models import (
    TEXT,
    bundle,
    classifier,
    columns,
    picture,
    trace_of,
    url,
    wordwise,
)


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
        trace = trace_of(read_by(name), words)
    except GlassformerError as error:
        assert len(str(error).split()) > 3
        return
    json.dumps(to_json(trace.info()), allow_nan=False)
    for sequence in trace.sequences:
        for token in sequence.tokens:
            assert token.start is None or 0 <= token.start <= token.end <= len(sequence.text)


def test_a_model_that_overflows_is_still_told_in_json() -> None:
    made = classifier()
    with torch.no_grad():
        made.model.head.out.bias.fill_(torch.nan)
    info = to_json(trace_of(made, {"text": TEXT}).info())
    assert [one["probability"] for one in info["outcome"]["labels"]] == [None] * 3


def test_unusable_inputs_are_rejected() -> None:
    vit, patchtst, gpt2 = bundle("vit"), bundle("patchtst"), bundle("gpt2")
    short, infinite = {"load": [1.0] * 9, "oil": [1.0] * 9}, {"load": [1e400] * 40, "oil": [1.0] * 40}
    cases: list[tuple[Bundle, dict[str, Any], type[GlassformerError]]] = [
        (bundle("original"), {}, EmptyInputError),
        (bundle("original"), {"text": "  "}, EmptyInputError),
        (bundle("bert", head=spec.Answer()), {"question": "where?"}, EmptyInputError),
        (vit, {"text": "a"}, MissingValueError),
        (vit, {"image": "data:text/html,abc"}, InvalidValueError),
        (vit, {"image": "data:image/png;base64,@@@"}, InvalidValueError),
        (vit, {"image": "AAAA"}, GlassformerError),
        (patchtst, {"series": {"columns": {"load": [1.0] * 40}}}, MissingValueError),
        (patchtst, {"series": {"columns": short}}, ShapeError),
        (patchtst, {"series": {"columns": infinite}}, NonFiniteError),
        (patchtst, {"series": {"columns": columns(30), "truth": 7}}, ShapeError),
        (gpt2, {"text": "the sea " * 40}, GlassformerError),
        (gpt2, {"text": "a", "txet": "b"}, UnknownNameError),
        (Bundle(model=gpt2.model), {"text": "a"}, GlassformerError),
        (bundle("patchtst", head=spec.SeriesClassify(num_labels=2)), {}, UnsupportedError),
    ]
    for made, values, error in cases:
        with pytest.raises(error):
            trace_of(made, values)


def test_a_small_file_cannot_claim_a_huge_picture() -> None:
    from PIL import Image

    made = bundle("vit")
    bomb = picture()
    size = bomb.index(b"IHDR") + 4
    bomb = bomb[:size] + (60_000).to_bytes(4, "big") * 2 + bomb[size + 8 :]
    with pytest.raises(GlassformerError):
        trace_of(made, {"image": url(bomb)})
    assert Image.MAX_IMAGE_PIXELS is not None


def test_a_baseline_has_nothing_to_look_into() -> None:
    kinds = vars(baseline_specs)
    made = build_baseline(kinds["LSTMLanguageModel"](vocab_size=50, d_model=8, num_layers=1))
    with pytest.raises(UnsupportedError):
        trace_of(Bundle(model=made, tokenizer=wordwise()), {"text": "the cat"})

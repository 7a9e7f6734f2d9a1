"""The sentences of a text are traced as `translate` reads them."""

from __future__ import annotations

from dataclasses import replace

from starlette.testclient import TestClient

import glassformer
from glassformer.api import Pipeline
from glassformer.families.sidecars import JobInfo
from glassformer.interpret.inputs import split_sentences
from glassformer.server.app import create_app
from glassformer.server.security import Address
from glassformer.tasks.text_generation import segments_of
from glassformer.tasks.translation import Translator
from tests.interpret.models import bundle, trace_of, wordwise

PARTS = ("the cat sat on the mat.", "Where is the glass?", "a dog ran after the cat")
TEXT = f"{PARTS[0]}  {PARTS[1]}\n\n {PARTS[2]} "


def translator(unit: str | None = None) -> Pipeline:
    made = bundle("original")
    made.job = JobInfo(name="translate", unit=unit)
    return made


def test_traced_sentences_make_up_the_translation() -> None:
    made = translator(unit="sentence")
    assert tuple(split_sentences(made, TEXT)) == PARTS
    one, other, last = (trace_of(made, {"text": part}).outcome.text for part in PARTS)
    assert len({one, other, last}) > 1
    assert made.translate(TEXT) == f"{one}  {other}\n\n {last}"


def test_each_sentence_is_traced_with_the_ids_that_translate_reads() -> None:
    made = glassformer.load("pocket")
    text = "I like 🍎 and 🍌. Where is the glass? 👋"
    (document,) = Translator(made, to="de").preprocess([text])
    sources = [
        trace_of(made, {"text": one, "to": "de"}).sequence("source")
        for one in split_sentences(made, text, "de")
    ]
    read = [[token.id for token in source.tokens] for source in sources]
    assert read == [segment.ids for segment in segments_of(document)] and len(read) == 2


def test_texts_to_restore_summarize_or_continue_are_read_whole() -> None:
    restorer, summarizer = translator(), bundle("bart")
    gap = wordwise().tokens([5])[0]
    restorer.job = replace(restorer.job, name="restore", gap=gap, before="")
    summarizer.config["task_specific_params"] = {"summarization_cnn": {"num_beams": 1}}
    for made in (restorer, summarizer, bundle("gpt2")):
        assert split_sentences(made, TEXT) == [TEXT]
    assert len(split_sentences(bundle("bart"), TEXT)) == 2  # its lines


def test_sentences_route() -> None:
    address = Address(host="127.0.0.1", port=8000)
    app = create_app({"one": translator(unit="sentence")}, address=address)
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        answer = client.post("/trace/sentences", json={"model": "one", "text": TEXT})
        assert answer.json() == {"sentences": list(PARTS)}
        assert client.post("/trace/sentences", json={"model": "two", "text": TEXT}).status_code == 404


def test_text_in_capitals_is_traced_as_it_is_translated() -> None:
    made, text = glassformer.load("pocket"), "WHERE IS THE STATION?"
    outcome = trace_of(made, {"text": text, "to": "de"}).outcome
    assert made.translate(text, to="de") == outcome.text.upper()

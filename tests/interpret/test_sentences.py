"""What is looked into of a paragraph is what `translate` reads and writes, piece by piece."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

import glassformer
from glassformer.bundle import Bundle
from glassformer.families.sidecars import JobInfo
from glassformer.interpret.inputs import emoji_note, replace_emoji, split_sentences
from glassformer.server.app import create_app
from glassformer.server.security import Address
from glassformer.tasks.writing.pieces import Place
from glassformer.tasks.writing.rewriting import translating
from tests.interpret.models import bundle, trace_of

PARTS = ("the cat sat on the mat.", "Where is the glass?", "a dog ran after the cat")
TEXT = f"{PARTS[0]}  {PARTS[1]}\n\n {PARTS[2]} "


def translator(**about: str) -> Bundle:
    made = bundle("original")
    made.job = JobInfo.from_dict({"job": "translate", **about})
    return made


def test_each_alone_is_a_part_of_the_whole_translation() -> None:
    made = translator(unit="sentence")
    assert tuple(split_sentences(made, TEXT)) == PARTS
    one, other, last = (trace_of(made, {"text": part}).outcome.text for part in PARTS)
    assert len({one, other, last}) > 1
    assert made.translate(TEXT) == f"{one}  {other}\n\n {last}"


@pytest.mark.parametrize("split", ["long", "always"])
def test_every_piece_is_encoded_from_the_text_it_tells(split) -> None:
    made = translator()
    for text in (TEXT, " ".join(PARTS * 30), "mat" * 300):
        (layout,) = translating(made, {}, split=split).layouts([text])
        for part in layout:
            assert not isinstance(part, Place) or made.tokenizer.encode(part.text).ids == part.ids


def test_a_picture_is_shown_as_given_and_read_as_a_letter() -> None:
    """What is looked into of the sentence that is chosen is what `translate` reads for it."""
    made = glassformer.load("pocket")
    text = "I like 🍎 and 🍌. Where is the glass? 👋"
    (layout,) = translating(made, {}, to="de").layouts([text])
    shown = split_sentences(made, text, "de")
    assert shown == ["I like 🍎 and 🍌.", "Where is the glass?"]
    sources = [trace_of(made, {"text": one, "to": "de"}).sequence("source") for one in shown]
    read = [[token.id for token in source.tokens] for source in sources]
    assert read == [part.ids for part in layout if isinstance(part, Place)]
    assert sources[0].text.endswith("I like X and Q.")
    note = emoji_note(made, shown[0], "de")
    assert note is not None and "X for 🍎" in note and "Q for 🍌" in note
    assert emoji_note(made, shown[1], "de") is None
    assert replace_emoji(made, "Hello 👋 there", "de") == ("Hello 👋 there", ())  # it only adorns


def test_what_is_no_translation_is_read_whole() -> None:
    mends, tells, writes = translator(), bundle("bart"), bundle("gpt2")
    mends.job = replace(mends.job, name="restore")
    tells.config["task_specific_params"] = {"summarization_cnn": {"num_beams": 1}}
    for made in (mends, tells, writes):
        assert split_sentences(made, TEXT) == [TEXT]
    assert len(split_sentences(bundle("bart"), TEXT)) == 2  # its lines


def test_the_route_gives_them() -> None:
    address = Address(host="127.0.0.1", port=8000)
    served = create_app({"one": translator(unit="sentence")}, address=address)
    with TestClient(served, base_url="http://127.0.0.1:8000") as client:
        answer = client.post("/trace/sentences", json={"model": "one", "text": TEXT})
        assert answer.json() == {"sentences": list(PARTS)}
        assert client.post("/trace/sentences", json={"model": "two", "text": TEXT}).status_code == 404


def test_a_text_in_capitals_is_looked_into_as_it_is_translated() -> None:
    made, text = glassformer.load("pocket"), "WHERE IS THE STATION?"
    found = trace_of(made, {"text": text, "to": "de"})
    assert replace_emoji(made, text, "de")[0] == "Where is the station?"
    assert made.translate(text, to="de") == found.outcome.text.upper()

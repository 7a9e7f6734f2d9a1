"""Text all in capitals: read as if it were not, and answered in capitals; no other text is touched."""

from __future__ import annotations

import pytest

import glassformer
from glassformer.bundle import Bundle
from glassformer.tasks.writing.capitals import Capitals
from glassformer.tokenization import TokenizerPlan, train_tokenizer

READ = {
    "de": ["Where is the station?", "I have two cats and a dog.", "I don't know. You're late! Why?"],
    "ko": ["Where is the station?", "I have two cats and a dog."],
    "en": ["Das ist so eine traurige Geschichte.", "Je ne sais pas où est la gare."],
}
# a word of no sense, a unit, few letters, small ones, names of things
AS_GIVEN = ["HELLO", "NASA", "5 KG", "DVD CD USB", "HTML, CSS", "Where IS it?", "저는 NASA 에서 일해요.", ""]


@pytest.fixture(scope="module")
def pocket() -> Bundle:
    return glassformer.load("pocket")


@pytest.mark.parametrize("to", READ)
def test_capitals_say_the_same_as_small_letters(pocket: Bundle, to: str) -> None:
    usual = pocket.translate(READ[to], to=to)
    assert pocket.translate([text.upper() for text in READ[to]], to=to) == [one.upper() for one in usual]


def test_each_line_by_itself_and_pictures_in_their_place(pocket: Bundle) -> None:
    lines = ["Where is the station?", "I like 🍎 and 🍌."]
    plain, shouted = pocket.translate(["\n".join(lines), "\n".join((lines[0], lines[1].upper()))], to="de")
    first, second = plain.split("\n")
    assert shouted == f"{first}\n{second.upper()}" and "🍎" in second and "🍌" in second


def test_nothing_else_is_read_otherwise(pocket: Bundle) -> None:
    assert pocket.tokenizer is not None
    assert [Capitals(pocket.tokenizer).read(text) for text in AS_GIVEN] == AS_GIVEN
    assert Capitals(pocket.tokenizer).read("BUY A DVD NOW!") == "Buy a DVD now!"


@pytest.mark.parametrize("learnt", ["small letters alone", "capitals", "letters one by one"])
def test_where_the_vocabulary_gains_nothing_capitals_stay(learnt: str) -> None:
    text = "THE OLD CAPTAIN SANG TO THE SEA"
    plan = TokenizerPlan(
        kind="char" if learnt == "letters one by one" else "bpe",
        vocab_size=300,
        min_frequency=1,
        lowercase=learnt == "small letters alone",
    )
    corpus = [text] if learnt == "capitals" else [text, text.lower()]
    assert Capitals(train_tokenizer(corpus * 3, plan)).read(text) == text
    usual = train_tokenizer([text.capitalize()] * 3, TokenizerPlan(kind="bpe", vocab_size=300))
    assert Capitals(usual).read(text) == text.capitalize()

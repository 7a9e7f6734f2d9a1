"""Documents into segments and back: lines stay lines, long ones are split, and nothing is lost."""

from __future__ import annotations

import gzip
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import glassformer
from glassformer.errors import GlassformerError, InputTooLongError
from glassformer.tasks import Callbacks, RejectedInputError, Translator
from glassformer.tasks.text_generation import assemble, segments_of
from glassformer.tasks.translation import LINE_TOKENS, Segment, Segmenter
from glassformer.tokenization.sentence_split import split_in_half, split_sentences, split_word
from tests.tasks.tiny_models import ROWS, reversal_model

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def pocket():
    return glassformer.load("pocket")


def test_line_breaks_are_preserved():
    bundle = glassformer.load(reversal_model())
    first, second, third = bundle.translate(["red blue", "gold", "blue blue red"])
    assert bundle.translate("red blue\n\n  gold\n \nblue blue red\n") == f"{first}\n\n  {second}\n\n{third}\n"
    parts = [f"{row}。" for row in ROWS[20:60]]
    text, expected = " ".join(parts), " ".join(bundle.translate(parts))
    assert len(bundle.tokenizer.encode(text).ids) > LINE_TOKENS
    assert bundle.translate(text) == expected == bundle.translate(text, split="always")


@given(st.lists(st.sampled_from(["red", "blue,", "gold.", "Green;", "z.", "3."]), min_size=1, max_size=90))
def test_segments_fit_and_nothing_is_lost(words):
    """Every word is in one segment, in order, and no segment is longer than the model reads."""
    text_of: dict[tuple[int, ...], str] = {}

    def encode(texts):
        encoded = []
        for text in texts:
            ids = [hash(word) % 1000 for word in text.split()]
            text_of[tuple(ids)] = text
            encoded.append(ids)
        return encoded

    (document,) = Segmenter(encode=encode, max_tokens=7, split="long").segment([" ".join(words)])
    assert all(len(segment.ids) <= 7 for segment in segments_of(document))
    parts = (text_of[tuple(p.ids)] if isinstance(p, Segment) else p for p in document)
    assert "".join(parts) == " ".join(words)


CLAUSES = " and ".join(f"the old captain number {n} sang to the sea, which was calm," for n in range(30))


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        (CLAUSES, ()),
        ("a" * 3000, ("split_word",)),
        ("나는오늘아침에학교에갔다가집에왔다" * 100, ("split_word",)),
        ("我今天早上去了学校然后回家了" * 100, ("split_word",)),
    ],
    ids=["clauses", "letters", "Korean", "Chinese"],
)
def test_no_segment_is_longer_than_the_model_was_trained_on(pocket, text, warnings) -> None:
    """A long sentence is split at its clauses, and text without spaces within words."""
    task = Translator(pocket, to="en")
    (document,) = task.preprocess([f"Hello. {text}"])
    ids = [segment.ids for segment in segments_of(document)]
    assert len(ids) > 3 and max(map(len, ids)) <= pocket.job.usual_len
    assert task.warnings(document)[: len(warnings) or 1] == warnings
    again = [part if isinstance(part, str) else pocket.tokenizer.decode(part.ids) for part in document]
    assert "".join(again) == f"Hello. {text}"
    if warnings:
        assert assemble(document, ["sea"] * len(ids)) == " ".join(["sea"] * len(ids))


def test_character_with_too_many_combining_marks_is_rejected(pocket) -> None:
    lines = ["Hello.", "a" + "\u0301" * 3000, "Bye."]
    rejected: list[tuple[int, GlassformerError]] = []
    callbacks = Callbacks(on_reject=lambda number, reason: rejected.append((number, reason)))
    task = Translator(pocket, to="de")
    assert [bool(document) for document in task.preprocess(lines, callbacks)] == [True, False, True]
    ((number, reason),) = rejected
    assert number == 2 and isinstance(reason, InputTooLongError) and reason.limit == 5000
    with pytest.raises(RejectedInputError) as caught:
        task(lines)
    assert caught.value.number == 2
    with pytest.raises(InputTooLongError):
        task(lines[1])


SYMBOLS = [
    ("I love you 😀", "I love you", "{} 😀"),
    ("Thanks 🙏🏽 for your help.", "Thanks for your help.", "{} 🙏🏽"),
    ("✅ I love you.", "I love you.", "✅ {}"),
]


@pytest.mark.parametrize("to", ["de", "ko"])
@pytest.mark.parametrize(("text", "read", "expected"), SYMBOLS)
def test_unknown_symbols_are_copied(pocket, text: str, read: str, expected: str, to: str) -> None:
    result = Translator(pocket, to=to)(text)
    assert result.text == expected.format(pocket.translate(read, to=to)) and result.warnings == ()


def test_capitals_are_translated_like_lower_case(pocket) -> None:
    text = "Where is the station? Is it very far?"
    expected = pocket.translate(text, to="de").upper()
    assert pocket.translate(text.upper(), to="de") == expected
    assert pocket.translate(f"{text.upper()}\nHello.", to="de").split("\n")[0] == expected
    task = Translator(pocket, to="de")
    for unchanged in ("NASA", "Where IS it?", "저는 NASA 에서 일해요."):
        (document,) = task.preprocess([unchanged])
        assert [segment.text for segment in segments_of(document)] == [unchanged]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Mr. J. R. Lee of the U.S. Navy paid $3.50. Then he left. "Oh?" he asked. "Yes!" She smiled.', 5),
        ("It was 1999. No. 5 is alive. No. I will not go at 5 p.m. today... Why? See www.x.com for it.", 6),
        ("Am 3. Mai kam z. B. Dr. Ott, d. h. der Chef, in die Hauptstr. 5 usw. Er war 42. Dann ging er.", 3),
        ("M. Dupont a dit : « Bonjour ! » Puis il est parti, cf. p. 12, etc. Est-ce vrai ? Oui.", 4),
        ("그는 집에 갔다. 3.5도였다! 정말? U.S. 대통령이 왔다.", 4),
        ("我来了。你好！真的吗？", 3),
        ("1. Introduction to glass.", 1),
        ("no stop here", 1),
    ],
)  # fmt: skip
def test_sentence_boundaries(text, expected):
    sentences = split_sentences(text)
    assert len(sentences) == expected, sentences
    assert "".join(sentence + gap for sentence, gap in sentences) == text


@pytest.mark.skipif(not (DATA / "flores").is_dir(), reason="GLASSFORMER_DATA has no flores")
@pytest.mark.parametrize(
    ("name", "recall", "precision"),
    [
        *((f"flores/flores-test.{language}.gz", 0.97, 0.8) for language in ("en", "de", "fr", "ko")),
        *((f"wmt-newstest/newstest2018.en-de.{language}.gz", 0.94, 0.97) for language in ("en", "de")),
    ],
)
def test_real_sentences_are_found(name, recall, precision):
    """Lines joined by fives are split where they were joined; some hold several sentences themselves."""
    if not (DATA / name).is_file():
        pytest.skip(f"GLASSFORMER_DATA has no {name}")
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    hits = joints = ends = 0
    for at in range(0, len(lines) - 4, 5):
        group = lines[at : at + 5]
        expected = {*itertools.accumulate(len(line) + 1 for line in group[:-1])}
        predicted = {
            *itertools.accumulate(
                len(sentence) + len(gap) for sentence, gap in split_sentences(" ".join(group))[:-1]
            )
        }
        hits, joints, ends = hits + len(expected & predicted), joints + len(expected), ends + len(predicted)
    assert hits / joints >= recall and hits / ends >= precision


@given(st.text(alphabet=' .!?aB3"»。\u00a0,\n', max_size=200))
def test_sentences_lose_nothing(text):
    assert "".join(sentence + gap for sentence, gap in split_sentences(text)) == text
    cut = split_in_half(text)
    assert cut is None or ("".join(cut) == text and max(len(cut[0]), len(cut[2])) < len(text))


SCOTLAND = "🏴" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbsct") + "\U000e007f"


@given(st.text(alphabet="a\u0301한\u1112\u1161\u11abก่👩\u200d🚀🏽\ufe0f", min_size=2, max_size=40))
def test_grapheme_clusters_are_not_split(text):
    cut = split_word(text)
    assert cut is None or ("".join(cut) == text and all(cut))
    for letter in ("a\u0301", "\u1112\u1161\u11ab", "👩\u200d🚀", "👍🏽", "❤\ufe0f", SCOTLAND):
        assert split_word(letter) is None and split_word(letter * 2) == (letter, letter)

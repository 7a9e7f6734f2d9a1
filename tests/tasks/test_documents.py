"""Whole documents: lines stay lines, and long ones are translated by their sentences."""

from __future__ import annotations

import gzip
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import glassformer
from glassformer.errors import GlassformerError
from glassformer.tasks.writing.pieces import LONG, Cutter, Place
from glassformer.tokenization.documents import halved, sentences, torn
from tests.tasks.reversing import ROWS, reverser

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def bundle():
    return glassformer.load(reverser())


def test_lines_stay_lines(bundle):
    text = "red blue\n\n  gold\n \nblue blue red\n"
    rows = ["red blue", "gold", "blue blue red"]
    one, two, three = bundle.translate(rows)
    assert bundle.translate([text]) == [f"{one}\n\n  {two}\n\n{three}\n"]


def test_a_long_line_is_translated_by_its_sentences(bundle):
    parts = [f"{row}。" for row in ROWS[20:60]]
    text, expected = " ".join(parts), [" ".join(bundle.translate(parts))]
    assert len(bundle.tokenizer.encode(text).ids) > LONG
    assert bundle.translate([text]) == expected == bundle.translate([text], split="always")


@given(st.lists(st.sampled_from(["red", "blue,", "gold.", "Green;", "z.", "3."]), min_size=1, max_size=90))
def test_pieces_fit_and_nothing_is_lost(words):
    """Every word is in one piece, in order, and no piece is longer than the model reads."""
    seen: dict[tuple[int, ...], str] = {}

    def encode(texts):
        found = []
        for text in texts:
            ids = [hash(word) % 1000 for word in text.split()]
            seen[tuple(ids)] = text
            found.append(ids)
        return found

    (layout,) = Cutter(encode=encode, reads=7, split="long").layouts([" ".join(words)])
    places = [part for part in layout if isinstance(part, Place)]
    assert all(len(place.ids) <= 7 for place in places)
    assert "".join(seen[tuple(p.ids)] if isinstance(p, Place) else p for p in layout) == " ".join(words)


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
def test_sentences_end_where_people_see_them_end(text, expected):
    found = sentences(text)
    assert len(found) == expected, found
    assert "".join(sentence + gap for sentence, gap in found) == text


@pytest.mark.skipif(not (DATA / "flores").is_dir(), reason="GLASSFORMER_DATA has no flores")
@pytest.mark.parametrize(
    ("name", "found", "right"),
    [
        *((f"flores/flores-test.{tongue}.gz", 0.97, 0.8) for tongue in ("en", "de", "fr", "ko")),
        *((f"wmt-newstest/newstest2018.en-de.{tongue}.gz", 0.94, 0.97) for tongue in ("en", "de")),
    ],
)
def test_real_sentences_are_found_again(name, found, right):
    """Lines joined by fives come apart where they were joined; some hold several sentences themselves."""
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    hits = joints = ends = 0
    for at in range(0, len(lines) - 4, 5):
        group = lines[at : at + 5]
        true = {*itertools.accumulate(len(line) + 1 for line in group[:-1])}
        got = {*itertools.accumulate(len(one) + len(gap) for one, gap in sentences(" ".join(group))[:-1])}
        hits, joints, ends = hits + len(true & got), joints + len(true), ends + len(got)
    assert hits / joints >= found and hits / ends >= right


@given(st.text(alphabet=' .!?aB3"»。\u00a0,\n', max_size=200))
def test_sentences_lose_nothing(text):
    assert "".join(sentence + gap for sentence, gap in sentences(text)) == text
    cut = halved(text)
    assert cut is None or ("".join(cut) == text and max(len(cut[0]), len(cut[2])) < len(text))


SCOTLAND = "🏴" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbsct") + "\U000e007f"


@given(st.text(alphabet="a\u0301한\u1112\u1161\u11abก่👩\u200d🚀🏽\ufe0f", min_size=2, max_size=40))
def test_no_letter_is_torn(text):
    cut = torn(text)
    assert cut is None or ("".join(cut) == text and all(cut))
    for letter in ("a\u0301", "\u1112\u1161\u11ab", "👩\u200d🚀", "👍🏽", "❤\ufe0f", SCOTLAND):
        assert torn(letter) is None and torn(letter * 2) == (letter, letter)


def test_a_megabyte_is_cut_into_what_the_model_reads():
    cutter = Cutter(encode=lambda texts: [[1] * len(text) for text in texts], reads=512)
    with pytest.raises(GlassformerError, match="1,000,000 letters with no space"):
        list(cutter.layouts(["x" * 1_000_000]))
    (layout,) = cutter.layouts(["red, blue " * 100_000])
    assert sum(len(part.ids) for part in layout if isinstance(part, Place)) > 800_000

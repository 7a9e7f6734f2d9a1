"""Readable pieces: complete, and one per id."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.tokenization import load_tokenizer
from glassformer.tokenization.display import decode_parts, display_parts
from tests.tokenization.layouts import LAYOUTS


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback", "unigram", "marian"])
def test_pieces_spell_the_text(tmp_path: Path, name: str) -> None:
    """Korean, characters outside the vocabulary and spaces are readable, not escaped."""
    LAYOUTS[name](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    text = "The captain 나는 학교에"
    ids = tokenizer.encode(text, special=False).ids
    pieces = tokenizer.pieces(ids)
    assert len(pieces) == len(ids)
    assert not re.search("[▁Ġ]|<0x", "".join(pieces))
    spelled = re.sub(r"(.)\(1/\d\)", r"\1", "".join(pieces))
    spelled = re.sub(r".\(\d/\d\)", "", spelled)
    assert spelled.strip() == text


def test_split_characters_show_their_share() -> None:
    korean = "안".encode()
    assert display_parts([b" " + korean[:1], korean[1:] + b"!"]) == [" 안(1/2)", "안(2/2)!"]
    assert display_parts([korean[:1], korean[1:2], korean[2:]]) == ["안(1/3)", "안(2/3)", "안(3/3)"]
    assert display_parts([korean[:2], "</s>"]) == ["<0xEC><0x95>", "</s>"]
    assert display_parts([b"a\nb\x00", "\u1112\u1161\u11ab"]) == ["a␊b␀", "한"]


@given(st.text().map(str.encode), st.lists(st.integers(0, 40)))
def test_splitting_bytes_anywhere_loses_nothing(data: bytes, cuts: list[int]) -> None:
    ends = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    parts = [data[a:b] for a, b in pairwise(ends)]
    assert decode_parts(parts) == data.decode()
    assert len(display_parts(parts)) == len(parts)

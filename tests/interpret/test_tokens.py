"""Every token stands where its letters do, read or written, however the tokenizer cuts them."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest

from glassformer.interpret.tokens import encoded_sequence, generated_tokens
from glassformer.tokenization import TokenizerPlan, train_tokenizer
from tests.interpret.models import (
    bundle,
    bytewise,
    trace_of,
    wordpieces,
)
from tests.tasks.reversing import KOREAN


def test_places_cover_the_text_letter_by_letter() -> None:
    """Korean and pictures in pieces of bytes: spans, and bytes only where letters are broken."""
    made = bundle("gpt2", max_len=200)
    read, written = KOREAN[:20], KOREAN[20:]
    trace = trace_of(made, {"text": read, "target": bytewise().encode(written).ids})
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
    assert any(token.bytes for token in sequence.tokens[trace.prepared.start :])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "char", "word"])
def test_a_decomposed_syllable_is_covered_whole(kind: Any) -> None:
    plan = TokenizerPlan(kind=kind, vocab_size=400 if kind == "byte" else 60)
    tokenizer = train_tokenizer(["안녕 세상, 늙은 선장이 é", "the old sea"] * 4, plan)
    text = unicodedata.normalize("NFD", "안녕 세상 늙은 é")
    tokens = encoded_sequence(tokenizer, tokenizer.encode(text), text, "input").tokens
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
    for token in generated_tokens(tokenizer, ids, decoded, "target"):
        if token.special or not token.piece.strip():
            continue
        spelt = decoded[token.start : token.end]
        if token.bytes is None:
            assert spelt.strip() == token.piece.removeprefix("##").strip()
        assert token.start is not None and token.end is not None and end - 1 <= token.start < token.end
        end = token.end
    assert end == len(decoded)

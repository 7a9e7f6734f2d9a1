"""Decoding drops incomplete UTF-8 characters, at once and streamed."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer import pretrained as models
from glassformer.tasks.streaming import IncrementalDecoder
from glassformer.tokenization import Tokenizer, TokenizerPlan, load_tokenizer, train_tokenizer
from glassformer.tokenization.display import Part
from tests.tokenization.layouts import CORPUS, LAYOUTS

KINDS = ("byte-level", "byte-fallback", "trained", "pocket")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    loaded = {}
    for name in KINDS[:2]:
        folder = tmp_path_factory.mktemp(name)
        LAYOUTS[name](folder)
        loaded[name] = load_tokenizer(folder)
    loaded["trained"] = train_tokenizer(CORPUS, TokenizerPlan(kind="byte", vocab_size=700))
    loaded["pocket"] = load_tokenizer(models.folder_of("pocket"))
    return {name: tokenizer for name, tokenizer in loaded.items() if tokenizer is not None}


def byte_token_id(tokenizer: Tokenizer, byte: int) -> int:
    """The id of the token for this single byte."""
    return next(n for n, part in enumerate(parts_of(tokenizer)) if part == bytes([byte]))


@cache
def parts_of(tokenizer: Tokenizer) -> list[Part]:
    return tokenizer.parts(range(tokenizer.vocab_size))


@pytest.mark.parametrize("kind", KINDS)
def test_incomplete_characters_are_dropped(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    """A complete character among stray bytes is decoded, and so is an encoded U+FFFD."""
    tokenizer = tokenizers[kind]
    first, both = (tokenizer.encode(text, special=False).ids for text in ("The sea", "The sea sang"))
    last = both[len(first) :]
    wave = "🌊".encode()
    for run, decoded in (
        (wave[:3], ""),
        (wave[:2] + wave, "🌊"),
        (wave + b"\xff\x80", "🌊"),
        ("\ufffd".encode() + wave[:1], "\ufffd"),
    ):
        bytes_of = [byte_token_id(tokenizer, byte) for byte in run]
        assert tokenizer.decode([*first, *bytes_of]) == f"The sea{decoded}"
        assert tokenizer.decode([*first, *bytes_of, *last]) == f"The sea{decoded} sang"
    ids = [*first, *(byte_token_id(tokenizer, byte) for byte in wave)]
    assert tokenizer.decode(ids) == "The sea🌊"


@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_any_ids_decode_to_complete_characters_also_when_streamed(
    kind: str, tokenizers: dict[str, Tokenizer], data: Any
) -> None:
    tokenizer = tokenizers[kind]
    size = tokenizer.vocab_size
    special = tokenizer.special_ids
    plain = st.integers(0, size - 1).filter(lambda n: n not in special)
    single = st.sampled_from([byte_token_id(tokenizer, byte) for byte in (0x41, *"é안🌊".encode())])
    ids = data.draw(st.lists(plain | single, max_size=30))
    run = b"".join(part for part in tokenizer.parts(ids) if isinstance(part, bytes))
    text = tokenizer.decode(ids)
    assert text.lstrip() == run.decode(errors="ignore").lstrip()
    pieces = IncrementalDecoder(tokenizer)
    assert "".join([*(pieces.push(token) for token in ids), pieces.end()]) == text

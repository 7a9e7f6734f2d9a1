"""Tokenizers in GGUF metadata encode like the tokenizers they were written from."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from glassformer.errors import FileProblemError, UnsupportedError
from glassformer.tokenization.gguf import load_gguf_tokenizer

CORPUS = ["the old captain sang to the sea", "바다 the 2,102 seas — naïve", "\tif x == 42:\n  return"] * 20
TEXTS = ["the old sea", " the  sea\n\nsang 2024", "naïve — 바다 ☃", ""]
PATH = Path("model.gguf")


def sentencepiece_metadata(prefix: bool) -> tuple[Any, dict[str, Any]]:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=prefix,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<turn>", "▁▁"],
        minloglevel=2,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(trained.get_piece_size())
    kinds = {2: trained.is_unknown, 3: trained.is_control, 6: trained.is_byte}
    types = [next((kind for kind, test in kinds.items() if test(n)), 1) for n in ids]
    tokens = [trained.id_to_piece(n) for n in ids]
    for token in ("<turn>", "▁▁"):
        types[tokens.index(token)] = 4
        tokens[tokens.index(token)] = token.replace("▁", " ")  # as llama.cpp does for user-defined tokens
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": [trained.get_score(n) for n in ids],
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_space_prefix": prefix,
    }
    return trained, {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_vocabulary_encodes_like_the_original(prefix: bool) -> None:
    trained, metadata = sentencepiece_metadata(prefix)
    tokenizer = load_gguf_tokenizer({**metadata, "tokenizer.chat_template": "{{ messages }}"}, PATH)
    assert tokenizer is not None and tokenizer.bos_id == 1 and tokenizer.eos_id == 2
    for text in TEXTS:
        assert tokenizer.encode(text).ids == [1, *trained.encode(text)]
        assert tokenizer.decode(tokenizer.encode(text).ids) == trained.decode(trained.encode(text))


def bpe_metadata() -> tuple[Backend, dict[str, Any]]:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=330, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    )
    vocabulary = sorted(backend.get_vocab(), key=backend.get_vocab().__getitem__)
    merges = [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    metadata = {"model": "gpt2", "tokens": vocabulary, "merges": merges, "eos_token_id": 0, "pre": "gpt-2"}
    metadata["token_type"] = [3] + [1] * (len(vocabulary) - 1)
    return backend, {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def test_byte_level_bpe_encodes_like_the_original() -> None:
    backend, metadata = bpe_metadata()
    tokenizer = load_gguf_tokenizer(metadata, PATH)
    assert tokenizer is not None and tokenizer.eos_id == 0
    for text in TEXTS:
        assert tokenizer.encode(text).ids == backend.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("a<|end|>", parse_special=True).ids[-1] == 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": "bert"}, UnsupportedError),
        ({"pre": "unknown-words"}, UnsupportedError),
        ({"eos_token_id": 10**6}, FileProblemError),
        ({"tokens": ["a", "a"]}, FileProblemError),
        ({"merges": ["ab"]}, FileProblemError),
        ({"merges": ["zz zz"]}, FileProblemError),
    ],
)
def test_damaged_vocabulary_is_rejected(changes: dict[str, Any], error: type) -> None:
    _, metadata = bpe_metadata()
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(error):
        load_gguf_tokenizer(metadata, PATH)

"""The tokenizer in the metadata of a GGUF file, as the files of a tokenizer folder.

Byte-level BPE (model "gpt2") becomes a tokenizer.json, SentencePiece BPE (model "llama") a tokenizer.model.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from glassformer.errors import FileProblemError, UnsupportedError
from glassformer.tokenization.folder import CONFIG, backend_errors
from glassformer.tokenization.loading import load_tokenizer
from glassformer.tokenization.tokenizer import Tokenizer

CONTROL, USER_DEFINED = 3, 4  # types of tokens, as in SentencePiece
_PREFIX: Final = "tokenizer.ggml."
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte_level])


# how a text is split into words before BPE, by the name in the metadata
_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
_PRE_TOKENIZERS: dict[str, pre_tokenizers.PreTokenizer] = {
    "default": _BYTE_LEVEL,
    "gpt-2": _BYTE_LEVEL,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _BYTE_LEVEL]),
    "llama-bpe": _split(_WORDS % "{1,3}" + _SPACES),
    "qwen2": _split(_WORDS % "" + _SPACES),
}


def load_gguf_tokenizer(metadata: Mapping[str, Any], path: Path) -> Tokenizer | None:
    """Build the tokenizer of a GGUF file from its metadata; None if it has none."""
    kind = metadata.get(f"{_PREFIX}model")
    if kind is None or kind == "none":
        return None
    if kind not in ("gpt2", "llama"):
        raise UnsupportedError(f"reading {path.name}", f"the tokenizer model {kind!r}", hint="gpt2 or llama")
    tokens, types = _list(metadata, "tokens", path, str), _list(metadata, "token_type", path, int)
    types = types or [1] * len(tokens)
    if not tokens or len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise FileProblemError(path, "has a damaged vocabulary")
    config = _config(metadata, tokens, path)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if kind == "gpt2":
            with backend_errors(path, "has a damaged vocabulary"):
                (folder / "tokenizer.json").write_text(_bpe(metadata, tokens, types, path), "utf-8")
        else:
            (folder / "tokenizer.model").write_bytes(_sentencepiece(metadata, tokens, types, path))
            config["tokenizer_class"] = "LlamaTokenizer"
        (folder / CONFIG).write_text(json.dumps(config), "utf-8")
        return load_tokenizer(folder)


def _list(metadata: Mapping[str, Any], key: str, path: Path, kind: type) -> list[Any]:
    values = metadata.get(_PREFIX + key, [])
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise FileProblemError(path, f"has no list of {kind.__name__} in {_PREFIX + key}")
    return values


def _config(metadata: Mapping[str, Any], tokens: list[str], path: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    config: dict[str, Any] = {}
    for role, key in _ROLES.items():
        index = metadata.get(f"{_PREFIX}{key}_token_id")
        if index is not None:
            if not isinstance(index, int) or not 0 <= index < len(tokens):
                raise FileProblemError(path, f"has no token with the id {index!r} of {_PREFIX}{key}_token_id")
            config[f"{role}_token"] = tokens[index]
    for key in ("add_bos_token", "add_eos_token"):
        if isinstance(metadata.get(_PREFIX + key), bool):
            config[key] = metadata[_PREFIX + key]
    if isinstance(metadata.get("tokenizer.chat_template"), str):
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config


def _bpe(metadata: Mapping[str, Any], tokens: list[str], types: list[int], path: Path) -> str:
    """Return the content of tokenizer.json for byte-level BPE."""
    pre = metadata.get(f"{_PREFIX}pre", "default")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise UnsupportedError(f"reading {path.name}", f"the pre-tokenizer {pre!r}", hint=f"known: {known}")
    merges = []
    for merge in _list(metadata, "merges", path, str):
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise FileProblemError(path, f"has the merge {merge!r:.60}, which is not two pieces")
        merges.append((left, right))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe")
    backend = Backend(model)
    backend.normalizer = normalizers.NFC() if pre == "qwen2" else None
    backend.pre_tokenizer, backend.decoder = _PRE_TOKENIZERS[pre], decoders.ByteLevel()
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [
            AddedToken(token, normalized=False, special=special)
            for token, own in zip(tokens, types, strict=True)
            if own == kind
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(added)
    return backend.to_str()


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: list[int], path: Path) -> bytes:
    """Return a SentencePiece model, a protobuf message: pieces, trainer spec and normalizer spec."""
    scores = _list(metadata, "scores", path, float)
    if len(scores) != len(tokens):
        raise FileProblemError(path, f"has {len(scores)} scores for {len(tokens)} tokens")
    if types.count(2) != 1:  # SentencePiece needs exactly one unknown token
        unknown = metadata.get(f"{_PREFIX}unknown_token_id", 0)
        types = [2 if index == unknown else 1 if own == 2 else own for index, own in enumerate(types)]
    # llama.cpp writes the spaces of user-defined tokens as such, SentencePiece as its own symbol
    tokens = [
        token.replace(" ", "▁") if kind == USER_DEFINED else token
        for token, kind in zip(tokens, types, strict=True)
    ]
    message = b"".join(
        _field(1, _field(1, token.encode()) + b"\x15" + struct.pack("<f", score) + _number(3, own))
        for token, score, own in zip(tokens, scores, types, strict=True)
    )
    byte_fallback = 6 in types
    trainer = _number(3, 2) + _number(4, len(tokens)) + _number(35, byte_fallback)  # 2: BPE
    trainer += _number(40, types.index(2))
    for number, role in ((41, "bos"), (42, "eos"), (43, "padding")):
        index = metadata.get(f"{_PREFIX}{role}_token_id")
        trainer += _number(number, -1 if index is None else index)
    prefix = metadata.get(f"{_PREFIX}add_space_prefix", True)
    normalizer = _field(1, b"identity") + _number(3, prefix) + _number(4, False) + _number(5, True)
    return message + _field(2, trainer) + _field(3, normalizer)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers have ten bytes
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(int(value))


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content

"""A tokenizer backed by the `tokenizers` library."""

import json
import secrets
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from glassformer.tokenization.display import (
    Part,
    decode_parts,
    from_byte_level,
    from_metaspace,
    incomplete_parts,
)
from glassformer.tokenization.folder import TokenizerConfig, backend_errors
from glassformer.tokenization.tokenizer import CLEANED_CHARACTERS, Encoded, Side, Tokenizer

_REPLACEMENT = "\ufffd"  # what the library writes for an incomplete character


class FastTokenizer(Tokenizer):
    """Wrap a `tokenizers` backend, read from tokenizer.json or built from a vocabulary."""

    _class_name = "PreTrainedTokenizerFast"

    def __init__(
        self,
        backend: Backend,
        config: TokenizerConfig,
        role_ids: dict[str, int | None],
        *,
        raw: bytes | None = None,
    ) -> None:
        super().__init__(config, role_ids)
        self._raw = raw
        self._truncation, self._padding = backend.truncation, backend.padding
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._spells_special = _model_spells_special(backend)
        backend.encode_special_tokens = not self._spells_special
        self._cleans_up = not isinstance(backend.model, models.BPE)

    @cached_property
    def _plain(self) -> Backend:
        """A backend that encodes the name of a special token as plain text."""
        if not self._spells_special:
            return self._backend
        return _with_unspellable_special(self._backend)

    @cached_property
    def _parsing(self) -> Backend:
        """A backend that encodes the name of a special token as that token."""
        if self._spells_special:
            return self._backend
        twin = Backend.from_str(self._backend.to_str())
        twin.encode_special_tokens = False
        return twin

    def _encode(
        self, texts: list[str], pairs: list[str] | None, *, special: bool, parse_special: bool, side: Side
    ) -> list[Encoded]:
        backend = self._parsing if parse_special else self._plain
        inputs: list[Any] = texts if pairs is None else list(zip(texts, pairs, strict=True))
        with backend_errors("the text", "cannot be encoded"):
            encodings = backend.encode_batch(inputs, add_special_tokens=special)
        return [
            Encoded(
                ids=encoding.ids,
                type_ids=encoding.type_ids,
                offsets=encoding.offsets,
                sequence_ids=encoding.sequence_ids,
                word_ids=encoding.word_ids,
            )
            for encoding in encodings
        ]

    def _encode_ids(self, texts: list[str], side: Side) -> list[list[int]]:
        with backend_errors("the text", "cannot be encoded"):
            return [encoding.ids for encoding in self._plain.encode_batch_fast(texts)]

    def _encode_ids_with_first_end(self, texts: list[str]) -> list[tuple[list[int], int]]:
        with backend_errors("the text", "cannot be encoded"):
            encodings = self._plain.encode_batch(texts, add_special_tokens=False)
        # reading the offsets of one token is faster than of all
        return [
            (encoding.ids, (encoding.token_to_chars(0) or (0, 0))[1] if len(encoding) else 0)
            for encoding in encodings
        ]

    def _decode(self, ids: list[int], *, skip_special: bool, side: Side) -> str:
        with backend_errors("the ids", "cannot be decoded"):
            text = self._backend.decode(ids, skip_special_tokens=skip_special)
            return self._decode_complete(ids, skip_special) if _REPLACEMENT in text else text

    def _decode_complete(self, ids: list[int], skip_special: bool) -> str:
        """Decode ids without incomplete characters, which the backend would replace with U+FFFD.

        One incomplete character makes the backend replace a full run of byte tokens, so its tokens are
        removed first.
        """
        skipped = self._added_special if skip_special else frozenset()
        known = [index for index in ids if index not in skipped and self._token(index, "target") is not None]
        parts = [self._part(index, "target") for index in known]
        if self._spelling == "bytes":  # a token has several bytes, some of which may be incomplete
            return decode_parts(parts)
        removed = incomplete_parts(parts)
        return self._backend.decode(
            [index for n, index in enumerate(known) if n not in removed], skip_special_tokens=False
        )

    @cached_property
    def _added_special(self) -> frozenset[int]:
        """The ids that the backend skips as special."""
        added = self._backend.get_added_tokens_decoder().items()
        return frozenset(index for index, token in added if token.special)

    @cached_property
    def unstable_characters(self) -> int:
        decoder = self._backend.decoder  # WordPiece's cleans up, too
        cleans_up = decoder is not None and b'"cleanup":true' in decoder.__getstate__()
        return CLEANED_CHARACTERS if cleans_up else super().unstable_characters

    def _token(self, index: int, side: Side) -> str | None:
        return self._backend.id_to_token(index)

    def _id(self, token: str, side: Side) -> int | None:
        return self._backend.token_to_id(token)

    @cached_property
    def _spelling(self) -> str:
        """How the vocabulary encodes spaces and bytes: "bytes" (byte-level), "metaspace" or ""."""
        decoder = self._backend.decoder
        state = decoder.__getstate__() if decoder is not None else b""
        if b'"ByteLevel"' in state:
            return "bytes"
        return "metaspace" if "▁".encode() in state else ""

    def _role_token(self, index: int) -> Any:
        token = self._backend.get_added_tokens_decoder().get(index)
        if token is None or not (token.lstrip or token.rstrip or token.single_word):
            return self._token(index, "source")
        flags = ("content", "lstrip", "rstrip", "single_word", "normalized", "special")
        return {"__type": "AddedToken"} | {flag: getattr(token, flag) for flag in flags}

    def _part(self, index: int, side: Side) -> Part:
        token = self._token(index, side)
        if token is None:
            return f"<id {index}>"
        if index in self.special_ids or not self._spelling:
            return token
        return from_byte_level(token) if self._spelling == "bytes" else from_metaspace(token)

    def _files(self) -> dict[str, bytes]:
        if self._raw is not None:
            return {"tokenizer.json": self._raw}
        twin = Backend.from_str(self._backend.to_str())
        if self._truncation is not None:
            twin.enable_truncation(**self._truncation)
        if self._padding is not None:
            twin.enable_padding(**self._padding)
        return {"tokenizer.json": twin.to_str(pretty=True).encode("utf-8")}

    @cached_property
    def vocab_size(self) -> int:
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return self._added_special | frozenset(index for _, index in self._present_roles())


def _model_spells_special(backend: Backend) -> bool:
    """Whether plain text may be encoded as a special token.

    BPE on bytes and splitting at punctuation never do that; looking up full words or pieces may.
    """
    if isinstance(backend.model, models.WordPiece):
        return not isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    return not isinstance(backend.model, models.BPE)


def _with_unspellable_special(backend: Backend) -> Backend:
    """Copy the backend and give its special tokens random names that no text contains; ids stay the same."""
    data = json.loads(backend.to_str())
    secret = f"\0{secrets.token_hex(16)}"
    names = {entry["content"]: f"{secret}{entry['id']}" for entry in data["added_tokens"] if entry["special"]}
    for entry in data["added_tokens"]:
        entry["content"] = names.get(entry["content"], entry["content"])
    model = data["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): i for token, i in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    twin = Backend.from_str(json.dumps(data))
    twin.encode_special_tokens = True
    return twin

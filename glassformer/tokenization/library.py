"""A tokenizer whose work is done by the `tokenizers` library."""

import json
import secrets
from functools import cached_property
from typing import Any

from tokenizers import Encoding, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from glassformer.tokenization.declared import Declared
from glassformer.tokenization.display import Part, from_byte_level, from_metaspace, joined, strays
from glassformer.tokenization.folder import translated
from glassformer.tokenization.tokenizer import Encoded, Side, Tokenizer

_BROKEN = "\ufffd"  # what the library writes for a byte that makes no letter


class LibraryTokenizer(Tokenizer):
    """Wraps a backend, whether read from tokenizer.json or put together from a vocabulary."""

    _class_name = "PreTrainedTokenizerFast"

    def __init__(
        self,
        backend: Backend,
        declared: Declared,
        role_ids: dict[str, int | None],
        *,
        raw: bytes | None = None,
    ) -> None:
        super().__init__(declared, role_ids)
        self._raw = raw
        self._truncation, self._padding = backend.truncation, backend.padding
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._spells_special = _model_spells_special(backend)
        backend.encode_special_tokens = not self._spells_special
        self._tidies = not isinstance(backend.model, models.BPE)

    @cached_property
    def _plain(self) -> Backend:
        """Encodes text in which a special token's name means nothing."""
        if not self._spells_special:
            return self._backend
        return _with_unspellable_special(self._backend)

    @cached_property
    def _keeping(self) -> Backend:
        """Encodes text in which a special token's name means that token."""
        if self._spells_special:
            return self._backend
        twin = Backend.from_str(self._backend.to_str())
        twin.encode_special_tokens = False
        return twin

    def _encode(
        self, texts: list[str], pairs: list[str] | None, *, special: bool, keep: bool, side: Side
    ) -> list[Encoded]:
        backend = self._keeping if keep else self._plain
        inputs: list[Any] = texts if pairs is None else list(zip(texts, pairs, strict=True))
        with translated("The text cannot be encoded"):
            encodings = backend.encode_batch(inputs, add_special_tokens=special)
        return [_encoded(encoding) for encoding in encodings]

    def _ids_of(self, texts: list[str], side: Side) -> list[list[int]]:
        with translated("The text cannot be encoded"):
            return [encoding.ids for encoding in self._plain.encode_batch_fast(texts)]

    def _begun_ids_of(self, texts: list[str]) -> list[tuple[list[int], int]]:
        with translated("The text cannot be encoded"):
            encodings = self._plain.encode_batch(texts, add_special_tokens=False)
        # asking for one token's place spares making all of them
        return [(one.ids, (one.token_to_chars(0) or (0, 0))[1] if len(one) else 0) for one in encodings]

    def _decode(self, ids: list[int], *, skip_special: bool, side: Side) -> str:
        with translated("The ids cannot be decoded"):
            text = self._backend.decode(ids, skip_special_tokens=skip_special)
            return self._mended(ids, skip_special) if _BROKEN in text else text

    def _mended(self, ids: list[int], skip_special: bool) -> str:
        """The text without the bytes that make no letter, for which the backend would write U+FFFD.

        Of a run of byte tokens with one stray byte it would write nothing else, so strays go before it reads.
        """
        passed = self._marks if skip_special else frozenset()
        known = [index for index in ids if index not in passed and self._token(index, "target") is not None]
        parts = [self._part(index, "target") for index in known]
        if self._spelling == "bytes":  # tokens of several bytes, some of which may be stray
            return joined(parts)
        lost = strays(parts)
        return self._backend.decode(
            [index for place, index in enumerate(known) if place not in lost], skip_special_tokens=False
        )

    @cached_property
    def _marks(self) -> frozenset[int]:
        """The ids that the backend skips as special."""
        added = self._backend.get_added_tokens_decoder().items()
        return frozenset(index for index, token in added if token.special)

    def _token(self, index: int, side: Side) -> str | None:
        return self._backend.id_to_token(index)

    def _id(self, token: str, side: Side) -> int | None:
        return self._backend.token_to_id(token)

    @cached_property
    def _spelling(self) -> str:
        """Which spelling of spaces and bytes the decoder undoes: "bytes", "metaspace" or ""."""
        decoder = self._backend.decoder
        described = decoder.__getstate__() if decoder is not None else b""
        if b'"ByteLevel"' in described:
            return "bytes"
        return "metaspace" if "▁".encode() in described else ""

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
        return self._marks | frozenset(index for _, index in self._given_roles())


def _encoded(encoding: Encoding) -> Encoded:
    return Encoded(
        ids=encoding.ids,
        types=encoding.type_ids,
        offsets=encoding.offsets,
        sequences=encoding.sequence_ids,
        words=encoding.word_ids,
    )


def _model_spells_special(backend: Backend) -> bool:
    """Whether the model may arrive at a special token by plain spelling.

    Merging bytes or splitting off punctuation never does; looking up whole words or pieces may.
    """
    if isinstance(backend.model, models.WordPiece):
        return not isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    return not isinstance(backend.model, models.BPE)


def _with_unspellable_special(backend: Backend) -> Backend:
    """A copy in which special tokens keep their ids under names no text can contain by chance."""
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

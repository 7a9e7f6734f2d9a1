"""Tokenizers with a single SentencePiece model; they add an EOS token (spiece.model) or a BOS token.

Ids are those of the SentencePiece model; special tokens outside its vocabulary get the ids after it.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
from tokenizers import AddedToken

from glassformer.errors import FileProblemError, InvalidValueError
from glassformer.tokenization.display import Part, decode_parts, from_metaspace
from glassformer.tokenization.folder import ROLES, TokenizerConfig, backend_errors
from glassformer.tokenization.tokenizer import Encoded, Side, Tokenizer


class Piece(NamedTuple):
    """A piece of text: its spelling, its id, and its character offsets [start, end)."""

    text: str
    number: int
    start: int
    end: int


class SentencePieceModel:
    """A SentencePiece model, read from a file."""

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        if not self.content:
            raise FileProblemError(path, "is empty")
        with backend_errors(path, "is not a SentencePiece model"):
            self._with_prefix = sentencepiece.SentencePieceProcessor(model_proto=self.content)
            self._without_prefix = sentencepiece.SentencePieceProcessor(model_proto=self.content)
            self._without_prefix.override_normalizer_spec(add_dummy_prefix=False)
            self.size: int = self._with_prefix.get_piece_size()
            self.pieces = [self._with_prefix.id_to_piece(index) for index in range(self.size)]
            self.index = {piece: index for index, piece in enumerate(self.pieces)}
            self._byte_fallback = "<0x00>" in self.index
            self.prefixes = any(p.text.startswith("▁") for p in self.encode("a")[:1])

    def scores(self) -> list[tuple[str, float]]:
        """Return each piece with its log probability, in the order of the ids."""
        return [(piece, self._with_prefix.get_score(index)) for index, piece in enumerate(self.pieces)]

    def normalization_rules(self) -> bytes:
        """Return the compiled normalization rules (`precompiled_charsmap`); empty if there are none."""
        specs = [value for number, value in _fields(self.content) if number == 3]  # normalizer_spec
        return next((value for spec in specs for number, value in _fields(spec) if number == 2), b"")

    def control(self) -> dict[str, int]:
        """Pieces that no text is encoded to: BOS, EOS, padding, unknown."""
        model = self._with_prefix
        return {
            piece: index
            for piece, index in self.index.items()
            if model.is_control(index) or model.is_unknown(index)
        }

    def encode(self, text: str, *, prefix: bool = True) -> list[Piece]:
        """Encode a text to pieces. prefix: encode it as if it started with a space."""
        model = self._with_prefix if prefix else self._without_prefix
        pieces = _parse(model.encode_as_serialized_proto(text))
        if not text.isascii():  # the model counts bytes
            widths = (len(char.encode("utf-8")) for char in text)
            position = {byte: at for at, byte in enumerate(accumulate(widths, initial=0))}
            pieces = [Piece(p.text, p.number, position[p.start], position[p.end]) for p in pieces]
        return _widen_byte_pieces(pieces) if self._byte_fallback else pieces


def _widen_byte_pieces(pieces: list[Piece]) -> list[Piece]:
    """Give each byte of a byte-fallback character the offsets of the full character."""
    widened: list[Piece] = []
    end = 0
    for piece in reversed(pieces):
        spelled = len(piece.text) == 6 and piece.text.startswith("<0x")
        end = end if spelled and piece.start == piece.end else piece.end
        widened.append(piece._replace(end=end) if end != piece.end else piece)
    return widened[::-1]


def _parse(data: bytes) -> list[Piece]:
    """Parse the library's protobuf message into pieces, with offsets in bytes.

    Each piece is a field 2 of the outer message, with its text in field 1, id in 2, begin in 4, end in 5.
    Parsed by hand for speed: this runs for every token of every text.
    """
    pieces = []
    at, size = 0, len(data)
    while at < size:
        outer = data[at]
        length, at = _varint(data, at + 1)
        stop = at + length
        if outer != 0x12:
            at = stop
            continue
        text, values = b"", [0, 0, 0, 0, 0, 0]
        while at < stop:
            key = data[at]
            value = data[at + 1]
            at += 2
            if value >= 0x80:
                value, at = _varint(data, at - 1)
            if key & 7 == 2:
                if key == 0x0A:
                    text = data[at : at + value]
                at += value
            else:
                values[key >> 3] = value
        pieces.append(Piece(text.decode("utf-8"), values[2], values[4], values[5]))
    return pieces


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and content of the length-delimited fields of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                _, at = _varint(data, at)
            case 2:
                length, at = _varint(data, at)
                yield key >> 3, data[at : at + length]
                at += length
            case width:
                at += 4 if width == 5 else 8


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def split_special(text: str, tokens: Sequence[AddedToken]) -> Iterator[tuple[str, int, bool]]:
    """Split a text at special tokens into non-empty (part, start, whether it is special)."""
    if not tokens:
        if text:
            yield text, 0, False
        return
    longest_first = sorted(tokens, key=lambda token: -len(token.content))
    pattern = "|".join(_pattern(token, number) for number, token in enumerate(longest_first))
    at = 0
    for match in re.finditer(pattern, text):
        if match.start() > at:
            yield text[at : match.start()], at, False
        start, end = match.span(match.lastgroup or 0)  # without the space around it
        yield text[start:end], start, True
        at = match.end()
    if at < len(text):
        yield text[at:], at, False


def _pattern(token: AddedToken, number: int) -> str:
    left, right = r"\s*" if token.lstrip else "", r"\s*" if token.rstrip else ""
    inner = re.escape(token.content)
    if token.single_word:
        inner = rf"(?<!\w){inner}(?!\w)"
    return f"{left}(?P<t{number}>{inner}){right}"


@dataclass(frozen=True, kw_only=True)
class VocabularyLayout:
    """A kind of SentencePiece folder; settings in the folder override these defaults.

    classes       transformers' tokenizer classes and model types with this layout; the first is saved
    defaults      role to token
    adds          the special tokens that are added to a text
    sentinels     number of <extra_id_k> tokens after the vocabulary
    pair_type     token type of the second text of a pair
    spaced_parts  whether text after a special token gets a space before it
    """

    classes: tuple[str, ...]
    defaults: dict[str, str]
    adds: tuple[str, ...]
    sentinels: int
    pair_type: int
    spaced_parts: bool


T5_LAYOUT = VocabularyLayout(
    classes=("T5Tokenizer", "MT5Tokenizer", "t5", "mt5"),
    defaults={"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    adds=("eos",),
    sentinels=100,
    pair_type=0,
    spaced_parts=True,
)
LLAMA_LAYOUT = VocabularyLayout(
    classes=("LlamaTokenizer", "llama", "mistral"),
    defaults={"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
    adds=("bos",),
    sentinels=0,
    pair_type=1,
    spaced_parts=False,
)


class SentencePieceBase(Tokenizer):
    """Base class of SentencePiece tokenizers. _pair_type: token type of the second text of a pair."""

    _cleans_up = True
    _pair_type = 0

    @abstractmethod
    def _pieces(self, text: str, parse_special: bool, side: Side) -> list[Piece]:
        """Encode a text to pieces with the tokenizer's ids."""

    @abstractmethod
    def _around(self, side: Side) -> tuple[list[int], list[int], list[int]]:
        """Return the special tokens before each text, after each text, and after the last."""

    def _encode(
        self, texts: list[str], pairs: list[str] | None, *, special: bool, parse_special: bool, side: Side
    ) -> list[Encoded]:
        before, after, last = self._around(side) if special else ([], [], [])
        encodings = []
        for both in zip(texts, strict=True) if pairs is None else zip(texts, pairs, strict=True):
            encoded = Encoded(ids=[], type_ids=[], offsets=[], sequence_ids=[], word_ids=[])
            for sequence, text in enumerate(both):
                kind = self._pair_type if sequence else 0
                pieces = self._pieces(text, parse_special, side)
                starts = (n == 0 or piece.text[:1] == "▁" for n, piece in enumerate(pieces))
                _add_special(encoded, before, kind)
                encoded.ids.extend([piece.number for piece in pieces])
                encoded.type_ids.extend([kind] * len(pieces))
                encoded.offsets.extend([(piece.start, piece.end) for piece in pieces])
                encoded.sequence_ids.extend([sequence] * len(pieces))
                encoded.word_ids.extend([word - 1 for word in accumulate(starts)])
                _add_special(encoded, after, kind)
            _add_special(encoded, last, 0)
            encodings.append(encoded)
        return encodings


def _add_special(encoded: Encoded, ids: list[int], kind: int) -> None:
    encoded.ids.extend(ids)
    encoded.type_ids.extend([kind] * len(ids))
    encoded.offsets.extend([(0, 0)] * len(ids))
    encoded.sequence_ids.extend([None] * len(ids))
    encoded.word_ids.extend([None] * len(ids))


class SentencePieceTokenizer(SentencePieceBase):
    """A tokenizer with one SentencePiece model and special tokens."""

    @classmethod
    def load(cls, config: TokenizerConfig, name: str, layout: VocabularyLayout) -> "SentencePieceTokenizer":
        """Load the tokenizer of a folder whose SentencePiece model is the file `name`."""
        if config.kind is not None and config.kind not in layout.classes:
            raise config.needs_tokenizer_json(name)
        return cls(SentencePieceModel(config.folder / name), name, config, layout)

    def __init__(
        self, spm: SentencePieceModel, name: str, config: TokenizerConfig, layout: VocabularyLayout
    ) -> None:
        self._spm, self._name, self._layout = spm, name, layout
        self._class_name, self._pair_type = layout.classes[0], layout.pair_type
        count = _count_sentinels(config, layout)
        self._extra = {f"<extra_id_{count - 1 - k}>": spm.size + k for k in range(count)}
        self._special = {
            token: AddedToken(token, special=True, normalized=False)
            for token in [*self._extra, *spm.control()]
        }
        for index, token in config.added:
            self._add(token, index, config)
        for role_token in config.roles.values():
            if role_token is not None:
                self._add(role_token, None, config)
        self._name_of = {index: token for token, index in self._extra.items()}
        tokens = {role: config.role(role, layout.defaults.get(role)) for role in ROLES}
        super().__init__(
            config,
            {
                role: None if token is None else self._id(token.content, "source")
                for role, token in tokens.items()
            },
        )
        special = []
        for role in ("bos", "eos"):
            enabled = config.flag(f"add_{role}_token", role in layout.adds)
            index = self._role_ids[role] if enabled else None
            if enabled and index is None and role in layout.adds:
                raise config.missing_token(config.folder / name, role, None)
            special.append([] if index is None else [index])
        self._before, self._after = special
        self._prefix = config.flag("add_prefix_space", True)
        self._spaced_parts = config.flag("legacy", layout.spaced_parts) or layout.spaced_parts

    def _add(self, token: AddedToken, index: int | None, config: TokenizerConfig) -> None:
        known = self._id(token.content, "source")
        if known is None:
            known = self.vocab_size
            self._extra[token.content] = known
        if index is not None and known != index:
            raise FileProblemError(
                config.folder, f"declares id {index} for {token.content!r}, whose id is {known}"
            )
        self._special[token.content] = token

    def _around(self, side: Side) -> tuple[list[int], list[int], list[int]]:
        return self._before, self._after, []

    def _pieces(self, text: str, parse_special: bool, side: Side) -> list[Piece]:
        pieces: list[Piece] = []
        # Added tokens that are not special are parsed in any text, like ordinary words.
        tokens = [token for token in self._special.values() if parse_special or not token.special]
        for part, start, matched in split_special(text, tokens):
            if matched:
                index = self._id(part, "source")
                assert index is not None
                pieces.append(Piece(part, index, start, start + len(part)))
                continue
            prefix = self._prefix and (start == 0 or self._spaced_parts)
            pieces += shift_pieces(self._spm.encode(part, prefix=prefix), start)
        return pieces

    def _decode(self, ids: list[int], *, skip_special: bool, side: Side) -> str:
        known = [i for i in ids if i < self.vocab_size]
        if skip_special:
            known = [i for i in known if i not in self.special_ids]
        text = decode_parts([self._part(index, side) for index in known])
        return text.removeprefix(" ") if self._prefix and self._spm.prefixes else text

    def _token(self, index: int, side: Side) -> str | None:
        if index in self._name_of:
            return self._name_of[index]
        return self._spm.pieces[index] if index < self._spm.size else None

    def _id(self, token: str, side: Side) -> int | None:
        index = self._extra.get(token)
        return self._spm.index.get(token) if index is None else index

    def _part(self, index: int, side: Side) -> Part:
        token = self._token(index, side)
        if token is None:
            return f"<id {index}>"
        own = index in self.special_ids or index in self._name_of
        return token if own else from_metaspace(token)

    def _files(self) -> dict[str, bytes]:
        return {self._name: self._spm.content}

    def _settings(self) -> dict[str, Any]:
        if self._layout is not LLAMA_LAYOUT:
            return {}
        # Other libraries use different defaults for these.
        return {
            "add_bos_token": bool(self._before),
            "add_eos_token": bool(self._after),
            "legacy": self._spaced_parts,
        }

    @property
    def vocab_size(self) -> int:
        return max([self._spm.size - 1, *self._extra.values()]) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        ids = {self._id(name, "source") for name, token in self._special.items() if token.special}
        return frozenset(index for index in ids if index is not None) | frozenset(
            index for _, index in self._present_roles()
        )


def _count_sentinels(config: TokenizerConfig, layout: VocabularyLayout) -> int:
    count = config.config.get("extra_ids")
    if count is not None:
        if not isinstance(count, int) or count < 0:
            raise InvalidValueError(f"{config.folder}: extra_ids", count, "an integer of at least 0")
        return count
    named = sum(token.content.startswith("<extra_id_") for _, token in config.added)
    return named or layout.sentinels


def shift_pieces(pieces: list[Piece], offset: int) -> list[Piece]:
    """Add `offset` to the character offsets of pieces."""
    if offset == 0:
        return pieces
    return [Piece(text, number, start + offset, end + offset) for text, number, start, end in pieces]

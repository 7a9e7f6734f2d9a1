"""A sentencepiece model: text to pieces with their place in the text."""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from glassformer.core.errors import GlassformerError
from glassformer.text.folder import read_bytes, translated


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A piece of text: its spelling, the model's own id, and [start, end) in characters."""

    text: str
    index: int
    start: int
    end: int


class Spm:
    """One sentencepiece model read from a file."""

    def __init__(self, path: Path) -> None:
        self.content = read_bytes(path)
        if not self.content:
            raise GlassformerError(f"{path} is empty, where a sentencepiece model is due.")
        with translated(f"{path} cannot be read as a sentencepiece model"):
            self._with_prefix = SentencePieceProcessor(model_proto=self.content)
            self._without_prefix = SentencePieceProcessor(model_proto=self.content)
            self._without_prefix.override_normalizer_spec(add_dummy_prefix=False)
            self.size: int = self._with_prefix.get_piece_size()
            self.pieces = [self._with_prefix.id_to_piece(index) for index in range(self.size)]
            self.index = {piece: index for index, piece in enumerate(self.pieces)}
            self.prefixes = any(p.text.startswith("▁") for p in self.encode("a")[:1])

    def control(self) -> dict[str, int]:
        """Pieces that text never yields: begin, end, padding, unknown."""
        model = self._with_prefix
        return {
            piece: index
            for piece, index in self.index.items()
            if model.is_control(index) or model.is_unknown(index)
        }

    def encode(self, text: str, *, prefix: bool = True) -> list[Piece]:
        """Pieces of a text; without `prefix` no space is imagined before it."""
        model = self._with_prefix if prefix else self._without_prefix
        found = _parse(model.encode_as_serialized_proto(text))
        widths = (len(letter.encode("utf-8")) for letter in text)
        starts = accumulate(widths, initial=0)
        place = {byte: number for number, byte in enumerate(starts)}  # the model counts bytes
        return _spread([(piece, index, place[b], place[e]) for piece, index, b, e in found])


def _spread(found: list[tuple[str, int, int, int]]) -> list[Piece]:
    """Give each byte of a letter spelled in bytes the whole letter's place, not the last alone."""
    pieces: list[Piece] = []
    end = 0
    for text, index, start, stop in reversed(found):
        spelled = len(text) == 6 and text.startswith("<0x")
        end = end if spelled and start == stop else stop
        pieces.append(Piece(text=text, index=index, start=start, end=end))
    return pieces[::-1]


def _parse(data: bytes) -> list[tuple[str, int, int, int]]:
    """(piece, id, begin, end) from the library's message, whose format no version has changed.

    The outer message holds pieces in field 2; a piece has text in 1, id in 2, begin in 4, end in 5.
    """
    found = []
    for field, value in _fields(data):
        if field == 2 and isinstance(value, bytes):
            parts = dict(_fields(value))
            text, index = parts.get(1, b""), parts.get(2, 0)
            begin, end = parts.get(4, 0), parts.get(5, 0)
            assert isinstance(text, bytes) and isinstance(index, int)
            assert isinstance(begin, int) and isinstance(end, int)
            found.append((text.decode("utf-8"), index, begin, end))
    return found


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """Fields of a message: (number, whole number or bytes)."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value, at = _varint(data, at)
        match key & 7:
            case 0:
                fields.append((key >> 3, value))
            case 2:
                fields.append((key >> 3, data[at : at + value]))
                at += value
            case other:
                raise ValueError(f"unexpected wire type {other}")
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7

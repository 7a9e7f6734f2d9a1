"""A sentencepiece model: text to pieces with their place in the text."""

from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from sentencepiece import SentencePieceProcessor

from glassformer.errors import GlassformerError
from glassformer.tokenization.folder import read_bytes, translated


class Piece(NamedTuple):
    """A piece of text: its spelling, the model's own id, and [start, end) in characters."""

    text: str
    number: int
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
            self._spells_bytes = "<0x00>" in self.index
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
        if not text.isascii():  # the model counts bytes
            widths = (len(letter.encode("utf-8")) for letter in text)
            place = {byte: at for at, byte in enumerate(accumulate(widths, initial=0))}
            found = [Piece(p.text, p.number, place[p.start], place[p.end]) for p in found]
        return _spread(found) if self._spells_bytes else found


def _spread(found: list[Piece]) -> list[Piece]:
    """Give each byte of a letter spelled in bytes the whole letter's place, not the last alone."""
    pieces: list[Piece] = []
    end = 0
    for piece in reversed(found):
        spelled = len(piece.text) == 6 and piece.text.startswith("<0x")
        end = end if spelled and piece.start == piece.end else piece.end
        pieces.append(piece._replace(end=end) if end != piece.end else piece)
    return pieces[::-1]


def _parse(data: bytes) -> list[Piece]:
    """Pieces, with places in bytes, from the library's message; no version has changed its form.

    The outer message holds a piece per field 2; a piece has text in 1, id in 2, begin in 4, end in
    5. Written out for speed: this runs for every token of every text.
    """
    found = []
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
        found.append(Piece(text.decode("utf-8"), values[2], values[4], values[5]))
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7

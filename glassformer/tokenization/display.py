"""Show tokens in readable form.

A part is either text (a special token: `str`) or UTF-8 bytes that may start or end in the middle of a
character (`bytes`).
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby

Part = str | bytes

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTROL = {code: chr(0x2400 + code) for code in range(32)} | {127: "\u2421"}


# Character to byte in byte-level vocabularies: printable Latin-1 bytes are themselves, the others are the
# characters from U+0100 on.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE}
_BYTE_OF |= {chr(0x100 + n): byte for n, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))}


def from_byte_level(token: str) -> bytes:
    """Decode a byte-level token to bytes: "Ġthe" is b" the"."""
    if all(char in _BYTE_OF for char in token):
        return bytes(_BYTE_OF[char] for char in token)
    return token.encode("utf-8")  # an added token


def from_metaspace(token: str) -> bytes:
    """Decode a SentencePiece token to bytes: "▁the" is b" the", "<0xEC>" is one byte."""
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte:
        return bytes([int(byte.group(1), 16)])
    return token.replace("▁", " ").encode("utf-8")


def split_characters(data: bytes) -> Iterator[tuple[str | None, int, int]]:
    """Split UTF-8 bytes into (character, start, end); the character is None for an invalid byte."""
    start = 0
    while start < len(data):
        first = data[start]
        width = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        try:
            char: str | None = data[start : start + width].decode("utf-8")
        except UnicodeDecodeError:
            char, width = None, 1
        yield char, start, start + width
        start += width


def decode_parts(parts: Sequence[Part]) -> str:
    """Decode consecutive parts to text, without incomplete characters."""
    runs = groupby(parts, lambda part: isinstance(part, bytes))
    return "".join(
        b"".join(run).decode("utf-8", "ignore") if is_bytes else "".join(run)  # type: ignore[arg-type]
        for is_bytes, run in runs
    )


def _characters(parts: Sequence[Part]) -> Iterator[tuple[list[int], str | None, bytes]]:
    """Yield each character of the byte parts: the indices of its parts, the character, its bytes."""
    for is_bytes, group in groupby(enumerate(parts), lambda item: isinstance(item[1], bytes)):
        if is_bytes:
            run = [(index, part) for index, part in group if isinstance(part, bytes)]
            data = b"".join(part for _, part in run)
            owners = [index for index, part in run for _ in part]
            for char, start, end in split_characters(data):
                yield sorted(set(owners[start:end])), char, data[start:end]


def incomplete_parts(parts: Sequence[Part]) -> set[int]:
    """Return the indices of byte parts that belong to no complete character.

    >>> wave = "🌊".encode()
    >>> incomplete_parts([b"sea", wave[:2], wave[:2], wave[2:]])
    {1}
    """
    characters = list(_characters(parts))
    complete = {index for holders, char, _ in characters if char for index in holders}
    return {index for holders, _, _ in characters for index in holders} - complete


def display_parts(parts: Sequence[Part]) -> list[str]:
    """Return a readable string per part; a character split over two parts is shown as "x(1/2)", "x(2/2)"."""
    strings = [part if isinstance(part, str) else "" for part in parts]
    for holders, char, data in _characters(parts):
        for share, holder in enumerate(holders, start=1):
            text = f"<0x{data[0]:02X}>" if char is None else char
            strings[holder] += text if len(holders) == 1 else f"{text}({share}/{len(holders)})"
    # uncased vocabularies may decompose Hangul (NFD), so compose it again
    return [unicodedata.normalize("NFC", text).translate(_CONTROL) for text in strings]

"""Tokens in readable form.

A part is either text (a special token: `str`) or UTF-8 bytes that may start or end in the middle of a
character (`bytes`).
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

Part = str | bytes

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTROL = {code: chr(0x2400 + code) for code in range(32)} | {127: "\u2421"}


def _byte_characters() -> dict[str, int]:
    """Character to byte, as in byte-level vocabularies.

    Printable Latin-1 bytes are themselves, the others are the characters from U+0100 on.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {
        chr(0x100 + number): byte for number, byte in enumerate(others)
    }


_BYTE_OF = _byte_characters()


def from_byte_level(token: str) -> bytes:
    """Bytes of a byte-level token: "Ġthe" is b" the"."""
    if all(char in _BYTE_OF for char in token):
        return bytes(_BYTE_OF[char] for char in token)
    return token.encode("utf-8")  # an added token


def from_metaspace(token: str) -> bytes:
    """Bytes of a sentencepiece token: "▁the" is b" the", "<0xEC>" is one byte."""
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte:
        return bytes([int(byte.group(1), 16)])
    return token.replace("▁", " ").encode("utf-8")


def split_characters(data: bytes) -> Iterator[tuple[str | None, int, int]]:
    """(character, start, end) for each character of UTF-8 bytes; None for a byte that belongs to none."""
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
    """The text of consecutive parts, without incomplete characters."""
    text, run = [], b""
    for part in [*parts, ""]:
        if isinstance(part, bytes):
            run += part
        else:
            text += [run.decode("utf-8", "ignore"), part]
            run = b""
    return "".join(text)


def incomplete_parts(parts: Sequence[Part]) -> set[int]:
    """The indices of parts that are bytes and belong to no character.

    >>> wave = "🌊".encode()
    >>> incomplete_parts([b"sea", wave[:2], wave[:2], wave[2:]])
    {1}
    """
    owners = list[int]()
    found, run = set[int](), b""
    for index, part in enumerate([*parts, ""]):
        if isinstance(part, bytes):
            run += part
            owners += [index] * len(part)
            continue
        characters = [(start, end) for char, start, end in split_characters(run) if char]
        whole = {owners[at] for start, end in characters for at in range(start, end)}
        found |= set(owners) - whole
        owners, run = [], b""
    return found


def display_parts(parts: Sequence[Part]) -> list[str]:
    """One string to show per part; a character split over several parts is shown in each with its share."""
    shown = [""] * len(parts)
    position = 0
    while position < len(parts):
        part = parts[position]
        if isinstance(part, str):
            shown[position] = part
            position += 1
            continue
        run, owner = b"", []
        while position < len(parts) and isinstance(piece := parts[position], bytes):
            run += piece
            owner += [position] * len(piece)
            position += 1
        for char, start, end in split_characters(run):
            holders = sorted(set(owner[start:end]))
            for share, holder in enumerate(holders, start=1):
                if char is None:
                    shown[holder] += f"<0x{run[start]:02X}>"
                elif len(holders) == 1:
                    shown[holder] += char
                else:
                    shown[holder] += f"{char}({share}/{len(holders)})"
    # Uncased vocabularies may decompose Hangul (NFD): compose it again.
    return [unicodedata.normalize("NFC", text).translate(_CONTROL) for text in shown]

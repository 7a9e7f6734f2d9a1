"""Token pieces in a form a person can read.

A piece is either text of its own (a special token: `str`) or a run of UTF-8 bytes that may begin or
end in the middle of a letter (`bytes`).
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

Part = str | bytes

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTROL = {code: chr(0x2400 + code) for code in range(32)} | {127: "\u2421"}


def _byte_letters() -> dict[str, int]:
    """Letter to byte, as byte-level vocabularies spell bytes.

    Printable Latin-1 bytes stand for themselves, the others for the letters from U+0100 on.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {
        chr(0x100 + number): byte for number, byte in enumerate(others)
    }


_BYTE_OF = _byte_letters()


def from_byte_level(token: str) -> bytes:
    """Bytes of a byte-level token: "Ġthe" is b" the"."""
    if all(letter in _BYTE_OF for letter in token):
        return bytes(_BYTE_OF[letter] for letter in token)
    return token.encode("utf-8")  # an added token, spelled as it is


def from_metaspace(token: str) -> bytes:
    """Bytes of a sentencepiece token: "▁the" is b" the", "<0xEC>" is one byte."""
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte:
        return bytes([int(byte.group(1), 16)])
    return token.replace("▁", " ").encode("utf-8")


def letters(data: bytes) -> Iterator[tuple[str | None, int, int]]:
    """(letter, start, end) for each letter of UTF-8 bytes; None for a byte that belongs to none."""
    start = 0
    while start < len(data):
        first = data[start]
        width = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        try:
            letter: str | None = data[start : start + width].decode("utf-8")
        except UnicodeDecodeError:
            letter, width = None, 1
        yield letter, start, start + width
        start += width


def joined(parts: Sequence[Part]) -> str:
    """The text of the parts in a row; bytes that make no letter are left out."""
    text, run = [], b""
    for part in [*parts, ""]:
        if isinstance(part, bytes):
            run += part
        else:
            text += [run.decode("utf-8", "ignore"), part]
            run = b""
    return "".join(text)


def strays(parts: Sequence[Part]) -> set[int]:
    """The places of parts that are bytes and no share of any letter.

    >>> wave = "🌊".encode()
    >>> strays([b"sea", wave[:2], wave[:2], wave[2:]])
    {1}
    """
    owners = list[int]()
    found, run = set[int](), b""
    for place, part in enumerate([*parts, ""]):
        if isinstance(part, bytes):
            run += part
            owners += [place] * len(part)
            continue
        whole = {owners[at] for letter, start, end in letters(run) if letter for at in range(start, end)}
        found |= set(owners) - whole
        owners, run = [], b""
    return found


def readable(parts: Sequence[Part]) -> list[str]:
    """One string to show per part."""
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
        for letter, start, end in letters(run):
            holders = sorted(set(owner[start:end]))
            for share, holder in enumerate(holders, start=1):
                if letter is None:
                    shown[holder] += f"<0x{run[start]:02X}>"
                elif len(holders) == 1:
                    shown[holder] += letter
                else:
                    shown[holder] += f"{letter}({share}/{len(holders)})"
    # Hangul may come apart into its strokes (NFD) in uncased vocabularies: put it together again.
    return [unicodedata.normalize("NFC", text).translate(_CONTROL) for text in shown]

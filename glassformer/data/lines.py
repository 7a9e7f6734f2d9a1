"""The lines of a text file, plain or gzip, as a stream: what is held at a time is bounded, whatever the file.

Text is UTF-8. A byte order mark is dropped, a carriage return before a newline too. Only a newline ends a
line. A line that cannot be read is given as a `Flaw` in its place, so that line numbers stay true.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO

from glassformer.data.problems import Tally
from glassformer.errors import GlassformerError

CHUNK = 1 << 18  # bytes read at a time
LONGEST = 1 << 20  # bytes of the longest line that is taken
_GZIP = b"\x1f\x8b"
_NOT_TEXT = {
    b"\xff\xfe": "is UTF-16; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
    b"\x00\x00\xfe\xff": "is UTF-32; save it as UTF-8",
    b"PK\x03\x04": "is a zip archive; unpack it first",
    b"BZh": "is packed with bzip2; unpack it first",
    b"\xfd7zXZ": "is packed with xz; unpack it first",
    b"\x28\xb5\x2f\xfd": "is packed with zstd; unpack it first",
    b"PAR1": "is a Parquet file; name it so, with .parquet at the end",
}


class EmptyError(GlassformerError):
    """A file holds no text at all, which is no fault where nothing need be in it."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a line or a value cannot be used, to be read after the name of the place."""

    what: str


def checked(path: str | PathLike[str]) -> Path:
    """The path, if an ordinary file stands there."""
    path = Path(path)
    try:
        if path.is_file():
            return path
        if path.is_dir():
            raise GlassformerError(f"'{path}' is a folder; name the files in it")
        if path.exists():
            raise GlassformerError(f"'{path}' is not an ordinary file, so it cannot be read more than once")
    except OSError as error:
        raise GlassformerError(f"'{path}' cannot be read: {error.strerror}") from None
    raise GlassformerError(f"'{path}' does not exist")


def chunks(path: str | PathLike[str], *, size: int = CHUNK) -> Iterator[bytes]:
    """The bytes of a text file, unpacked, without a byte order mark, at most `size` at a time."""
    path = checked(path)
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            if path.suffix == ".gz" and not packed and path.stat().st_size:
                raise GlassformerError(f"'{path}' is named .gz but is not gzip; rename it or pack it again")
            stream: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if packed else raw
            first = _without_mark(path, stream.read(size))
            while first:
                yield first
                first = stream.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        what = "is cut short" if isinstance(error, EOFError) else "is damaged"
        raise GlassformerError(f"the gzip file '{path}' {what}; fetch or pack it again") from None
    except OSError as error:
        raise GlassformerError(f"'{path}' cannot be read: {error.strerror or error}") from None


def _without_mark(path: Path, start: bytes) -> bytes:
    if not start:
        raise EmptyError(f"'{path}' is empty")
    for mark, what in _NOT_TEXT.items():
        if start.startswith(mark):
            raise GlassformerError(f"'{path}' {what}")
    head = start[:4096]
    if head.count(0) * 3 > len(head):
        raise GlassformerError(f"'{path}' is UTF-16 or no text at all (many NUL bytes); save it as UTF-8")
    text = start.removeprefix(b"\xef\xbb\xbf")
    if not text:
        raise EmptyError(f"'{path}' is empty but for a byte order mark")
    return text


def lines(path: str | PathLike[str], *, longest: int = LONGEST) -> Iterator[str | Flaw]:
    """Every line without its end; a line that is too long, holds NUL or is not UTF-8 is a `Flaw`."""
    begun, too_long = b"", False
    for chunk in chunks(path):
        end = chunk.rfind(b"\n") + 1
        if end and too_long:
            yield _over(longest)
            too_long = False
            chunk = chunk[chunk.find(b"\n") + 1 :]
            end = chunk.rfind(b"\n") + 1
        if end:
            yield from _each(begun + chunk[:end], longest)
            begun = chunk[end:]
        elif not too_long:
            begun += chunk
        if len(begun) > longest:
            begun, too_long = b"", True
    if too_long:
        yield _over(longest)
    elif begun:
        yield _line(begun, longest)


def _over(longest: int) -> Flaw:
    return Flaw(f"is longer than {longest:,} bytes")


def _each(block: bytes, longest: int) -> Iterator[str | Flaw]:
    """The lines of a block that ends with a newline: all at once where nothing is wrong with any."""
    if len(block) <= longest and 0 not in block:
        try:
            yield from block.decode().replace("\r\n", "\n")[:-1].split("\n")
            return
        except UnicodeDecodeError:
            pass  # which line it is comes out below
    for line in block[:-1].split(b"\n"):
        yield _line(line, longest)


def _line(line: bytes, longest: int) -> str | Flaw:
    if len(line) > longest:
        return _over(longest)
    if 0 in line:
        return Flaw("holds a NUL byte")
    try:
        return line.decode().removesuffix("\r")
    except UnicodeDecodeError as error:
        return Flaw(f"is not UTF-8 (byte 0x{line[error.start]:02x} at byte {error.start + 1})")


def pieces(path: str | PathLike[str], tally: Tally, *, size: int = CHUNK) -> Iterator[str]:
    """Pieces that put end to end are the file, with `\\n` for every line end; a bad line is left out.

    A piece ends with a line where it can, else with a space, else anywhere between two characters, so
    that one line of many gigabytes is no harm.
    """
    begun, number = b"", 1
    for chunk in chunks(path, size=size):
        block = begun + chunk
        end = _end(block)
        begun = block[end:]
        if end and (text := _piece(block[:end], number, tally)):
            yield text
        number += block.count(b"\n", 0, end)
    if begun and (text := _piece(begun, number, tally)):
        yield text


def _end(block: bytes) -> int:
    end = block.rfind(b"\n") + 1 or block.rfind(b" ") + 1
    if end:
        return end
    last = len(block) - 1
    while last > 0 and len(block) - last < 4 and block[last] & 0xC0 == 0x80:
        last -= 1
    return last  # before the last character, which may not be whole yet


def _piece(block: bytes, number: int, tally: Tally) -> str:
    if 0 not in block:
        try:
            text = block.decode().replace("\r\n", "\n")
            tally.good += max(1, text.count("\n"))
            return text
        except UnicodeDecodeError:
            pass  # which line it is comes out below
    kept = []
    for at, line in enumerate(_kept(block), number):
        read = _line(line, len(line))
        if isinstance(read, Flaw):
            tally.add(at, read.what)
        else:
            tally.good += 1
            kept.append(read.replace("\r\n", "\n"))
    return "".join(kept)


def _kept(block: bytes) -> list[bytes]:
    """Lines with their newlines; only a newline ends one."""
    parts = [part + b"\n" for part in block.split(b"\n")]
    last = parts.pop()[:-1]
    return [*parts, last] if last else parts

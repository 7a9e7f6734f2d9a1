"""The texts a verb is given: as arguments, in a file, or on standard input; one a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal

from glassformer.cli.taken import say
from glassformer.core.errors import GlassformerError

Kind = Literal["arguments", "file", "stdin", "terminal"]
LONGEST = 1 << 20  # bytes of the longest line that is taken


@dataclass(frozen=True, kw_only=True)
class Given:
    """Texts in order. total: how many, where that is known without reading standard input."""

    kind: Kind
    lines: Iterator[str]
    total: int | None = None

    def saying_if_empty(self) -> Given:
        """The same, with a sentence to the person who gave nothing to read."""
        return replace(self, lines=_said_if_empty(self.lines))


def _said_if_empty(lines: Iterator[str]) -> Iterator[str]:
    first = next(lines, None)
    if first is None:
        say("note: there is nothing to read; give texts as arguments, with --file, or on standard input")
        return
    yield first
    yield from lines


def given(texts: Sequence[str], file: Path | None) -> Given:
    """What the command line names; standard input where it names nothing."""
    if texts and file is not None:
        raise GlassformerError("texts are given as arguments and with --file; give one of them")
    if texts:
        return Given(kind="arguments", lines=iter(texts), total=len(texts))
    if file is not None and file.exists() and not file.is_file() and not file.is_dir():
        return Given(kind="stdin", lines=_stream_lines(file.open("rb"), f"'{file}'"))  # a pipe, read once
    if file is not None:
        return Given(kind="file", lines=_file_lines(file), total=_count(file))
    kind: Kind = "terminal" if sys.stdin.isatty() else "stdin"
    return Given(kind=kind, lines=_stream_lines(sys.stdin.buffer, "standard input"))


def _file_lines(file: Path) -> Iterator[str]:
    from glassformer.data.lines import Flaw, lines

    for number, line in enumerate(lines(file, longest=LONGEST), 1):
        if isinstance(line, Flaw):
            raise GlassformerError(f"line {number} of '{file}' {line.what}; mend it or take it out")
        yield line


def _count(file: Path) -> int:
    from glassformer.data.lines import chunks

    count, last = 0, b"\n"
    for chunk in chunks(file):
        count, last = count + chunk.count(b"\n"), chunk
    return count + (not last.endswith(b"\n"))


def _stream_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    number = 0
    while line := stream.readline(LONGEST + 2):
        number += 1
        where = f"line {number} of {name}"
        body = line.removesuffix(b"\n")
        if len(body) > LONGEST:
            raise GlassformerError(f"{where} is longer than {LONGEST:,} bytes; break it up")
        if 0 in body:
            raise GlassformerError(f"{where} holds a NUL byte; mend it or take it out")
        try:
            yield body.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise GlassformerError(
                f"{where} is not UTF-8 (byte 0x{body[error.start]:02x} at byte {error.start + 1}); mend it"
            ) from None

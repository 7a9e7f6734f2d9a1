"""The texts a verb is given: as arguments, in a file, or on standard input; one a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from glassformer.cli.refused import Refusals, end_in_error
from glassformer.cli.taken import say
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.data.row_errors import Invalid

Kind = Literal["arguments", "file", "stdin", "terminal"]


@dataclass(frozen=True, kw_only=True)
class Given:
    """Texts in order. total: how many, where that is known without reading standard input.

    refusals: those that hear of a line that is no text, for which an empty one is given; None: it ends all.
    """

    kind: Kind
    lines: Iterator[str]
    total: int | None = None
    refusals: Refusals | None = None

    def refused(self, number: int) -> str | None:
        """Why a line, from 1, could not be answered, asked once when it is its turn; None: it could."""
        return None if self.refusals is None else self.refusals.taken(number)

    def end(self, beside: Refusals | None = None) -> None:
        """All lines are taken; an error where some could not be answered, or used of a file beside them."""
        end_in_error(self.refusals, beside)

    def saying_if_empty(self) -> Given:
        """The same, with a sentence to the person who gave nothing to read."""
        return replace(self, lines=self._said_if_empty())

    def _said_if_empty(self) -> Iterator[str]:
        first = next(self.lines, None)
        if first is None:
            way = "give texts as arguments, with --file, or on standard input"
            say(f"note: there is nothing to read; {'the file is empty' if self.kind == 'file' else way}")
            return
        yield first
        yield from self.lines


def given(texts: Sequence[str], file: Path | None, refusals: Refusals | None = None) -> Given:
    """What the command line names; standard input where it names nothing.

    refusals: of lines; an argument that cannot be answered ends all, for who typed it is there.
    """
    if texts and file is not None:
        raise GlassformerError("texts are given as arguments and with --file; give one of them")
    if texts:
        return Given(kind="arguments", lines=iter(texts), total=len(texts))
    if file is not None and file.exists() and not file.is_file() and not file.is_dir():
        stream = _stream_lines(file.open("rb"))  # a pipe, read once
        return Given(kind="stdin", lines=_texts(stream, f"'{file}'", refusals), refusals=refusals)
    if file is not None:
        total = _count(file)
        found = _texts(_file_lines(file) if total else iter(()), f"'{file}'", refusals)
        return Given(kind="file", lines=found, total=total, refusals=refusals)
    kind: Kind = "terminal" if sys.stdin.isatty() else "stdin"
    found = _texts(_stream_lines(sys.stdin.buffer), "standard input", refusals)
    return Given(kind=kind, lines=found, refusals=refusals)


def _texts(lines: Iterator[str | Invalid], name: str, refusals: Refusals | None) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if isinstance(line, str):
            yield line
            continue
        if refusals is None:
            raise GlassformerError(f"line {number:,} of {name} {line.reason}; mend it or take it out")
        refusals.add(number, f"it {line.reason}")
        yield ""


def _file_lines(file: Path) -> Iterator[str | Invalid]:
    from glassformer.data.readers import read_lines

    return read_lines(file)


def _count(file: Path) -> int:
    from glassformer.data.readers import open_text
    from glassformer.errors import EmptyInputError

    count, last = 0, b"\n"
    try:
        with open_text(file) as stream:
            while chunk := stream.read(1 << 18):
                count, last = count + chunk.count(b"\n"), chunk
    except EmptyInputError:
        return 0
    return count + (not last.endswith(b"\n"))


def _stream_lines(stream: IO[bytes]) -> Iterator[str | Invalid]:
    from glassformer.data.readers import decode_lines

    for number, line in enumerate(decode_lines(stream)):
        yield line.removeprefix("\ufeff") if number == 0 and isinstance(line, str) else line

"""Streaming readers for plain text, TSV, CSV, JSON Lines (all also as .gz), Parquet and Excel.

Memory use is bounded whatever the file size. Text is UTF-8 unless an encoding is given; a byte order mark is
dropped, and so is a carriage return before a newline. A line that cannot be read is yielded as `Invalid`, so
that line numbers stay correct. A table has a head, its first rows, from which columns are chosen, and rows
with line numbers.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import IO, Any, Literal, TypedDict, Unpack, get_args

from glassformer.data.row_errors import MAX_BAD_SHARE, Invalid, RowCounter
from glassformer.errors import (
    EmptyInputError,
    FileMissingError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    MissingDependencyError,
    UnknownNameError,
)
from glassformer.json_text import parse_json
from glassformer.messages import plural, quantity

CHUNK_BYTES = 1 << 18
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # surrogateescape decodes invalid bytes to these
MAX_LINE_BYTES = 1 << 20
HEAD_ROWS = 1000  # rows read to choose columns
PARQUET_BATCH_ROWS = 256
MAX_EXCEL_EXPANSION = 100  # of a part of a workbook larger than MAX_COLUMN_BYTES
MAX_EXPANSION, MAX_COLUMN_BYTES = 1000, 1 << 27  # ratio and size from which a Parquet column is a bomb
UTF8 = "utf-8"
SAMPLE_BYTES = 1 << 16  # read to recognize an encoding
_NOT_TEXT = {
    b"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or save it as .xlsx or .csv",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save it as .xlsx or .csv",
    b"BZh": "compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "compressed with xz; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first",
    b"PAR1": "a Parquet file; rename it to end in .parquet",
}

DELIMITERS = ",;\t|"  # that are detected
DETECTION_LINES = 200
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+([eE][+-]?\d+)?\s*")
_DECIMAL_POINT = re.compile(r"\s*[+-]?\d+\.\d+([eE][+-]?\d+)?\s*")


class TableOptions(TypedDict, total=False):
    """How text files are written. delimiter, decimal: separators of CSV files; None detects them."""

    encoding: str
    delimiter: str | None
    decimal: str | None


Column = str | int  # a name, or a number counted from 1
FileFormat = Literal["plain", "tsv", "csv", "jsonl", "parquet", "xlsx"]
_SUFFIXES: dict[str, FileFormat] = {".tab": "tsv", ".ndjson": "jsonl", ".json": "jsonl", ".xlsm": "xlsx"}
_SUFFIXES |= {f".{name}": name for name in get_args(FileFormat)}

# Common column names, so that most files need no options.
PAIR_NAMES = tuple(
    (pair.split()[0], pair.split()[1])
    for pair in (
        "source target,src tgt,src trg,input output,question answer,q a,document summary,article highlights,"
        "text summary,abstract title"
    ).split(",")
)
TEXT_NAMES = "text sentence document review content body comment question q".split()
TEXT_PAIR_NAMES = tuple(
    (pair.split()[0], pair.split()[1])
    for pair in (
        "premise hypothesis,sentence1 sentence2,sentence_1 sentence_2,sentence_a sentence_b,text1 text2,"
        "text_a text_b,question1 question2,question_1 question_2,text text_pair,s1 s2"
    ).split(",")
)
LABEL_NAMES = "label labels class category sentiment target intent rating stars y score similarity".split()
LANGUAGE_NAMES = frozenset(
    "en de fr ko ja zh es it pt nl ru pl cs sv da fi tr uk ro hu el he ar hi vi th "
    "english german french korean japanese chinese spanish italian portuguese dutch russian".split()
)
LANGUAGE_COLUMN = "to"  # names the language of each target
_COMMON_NAMES = {
    *(name for pair in PAIR_NAMES for name in pair),
    *TEXT_NAMES,
    *(name for pair in TEXT_PAIR_NAMES for name in pair),
    *LABEL_NAMES,
    *LANGUAGE_NAMES,
    *"id idx index no number package reference".split(),
    *"image image_path file_name filename caption".split(),
    LANGUAGE_COLUMN,
}


def require_file(path: str | PathLike[str]) -> Path:
    """Return the path if it is a regular file, which can be read more than once; else raise an error."""
    path = Path(path)
    if path.is_file():
        return path
    if path.is_dir():
        raise FileProblemError(path, "is a folder", hint="name the files in it")
    if path.exists():
        raise FileProblemError(path, "is not a regular file, so it cannot be read more than once")
    raise FileMissingError(path)


def check_encoding(encoding: str) -> str:
    """Return the normalized name of a text encoding; raise if Python does not know it.

    >>> check_encoding("UTF8"), check_encoding("euc-kr")
    ('utf-8', 'euc_kr')
    """
    try:
        codec = codecs.lookup(encoding)
    except LookupError:
        codec = None
    if codec is None or not codec._is_text_encoding:
        raise InvalidValueError("encoding", encoding, "a text encoding, e.g. utf-8, cp949, cp1252 or utf-16")
    return UTF8 if codec.name == "utf-8-sig" else codec.name


class _Transcoder(io.RawIOBase):
    """A stream of UTF-8 from a stream in another encoding; what cannot be decoded becomes the byte 0xff."""

    def __init__(self, stream: IO[bytes], encoding: str) -> None:
        self._stream, self._buffer = stream, b""
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._buffer:
            block = self._stream.read(CHUNK_BYTES)
            text = self._decoder.decode(block, final=not block)
            self._buffer = text.encode().replace("\ufffd".encode(), b"\xff")
            if not block:
                break
        size = min(len(target), len(self._buffer))
        target[:size], self._buffer = self._buffer[:size], self._buffer[size:]
        return size


def transcode(stream: IO[bytes], encoding: str) -> IO[bytes]:
    """Return a stream of UTF-8 bytes for a stream in any encoding."""
    encoding = check_encoding(encoding)
    return stream if encoding == UTF8 else io.BufferedReader(_Transcoder(stream, encoding), CHUNK_BYTES)


@contextmanager
def open_text(path: str | PathLike[str], *, encoding: str = UTF8) -> Iterator[IO[bytes]]:
    """Open a text file as UTF-8 bytes, decompressed, without a byte order mark."""
    path, encoding = require_file(path), check_encoding(encoding)
    try:
        with io.BufferedReader(io.FileIO(path), SAMPLE_BYTES) as raw:
            stream: IO[bytes] = raw
            if raw.peek(2).startswith(b"\x1f\x8b"):
                stream = io.BufferedReader(gzip.GzipFile(fileobj=raw), CHUNK_BYTES)
            elif path.suffix == ".gz" and raw.peek(1):
                raise FileProblemError(path, "is named .gz but is not gzip")
            start = stream.peek(SAMPLE_BYTES)[:SAMPLE_BYTES]  # type: ignore[attr-defined]
            _check_is_text(path, start, encoding)
            if start.startswith(codecs.BOM_UTF8) and encoding == UTF8:
                stream.read(3)
            yield transcode(stream, encoding)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem = "is truncated" if isinstance(error, EOFError) else "is damaged"
        raise FileProblemError(path, f"{problem} (gzip)", hint="download or compress it again") from None
    except OSError as error:
        raise FileProblemError(path, f"cannot be read ({error.strerror or error})") from None


def _check_is_text(path: Path, start: bytes, encoding: str) -> None:
    if not start.removeprefix(codecs.BOM_UTF8):
        raise EmptyInputError(f"file {path}")
    for magic, what in _NOT_TEXT.items():
        if start.startswith(magic):
            raise FileProblemError(path, f"is {what}")
    if encoding != UTF8:
        return
    if guess := guess_encoding(start):
        raise FileProblemError(
            path, "is not UTF-8", hint=f"it reads well as {guess}: use --encoding or data.encoding={guess}"
        )
    if start.count(0) * 3 > len(start):
        raise FileProblemError(path, "is not text")


def guess_encoding(sample: bytes) -> str | None:
    """Guess the encoding of text that is not UTF-8; None for UTF-8 with at most a few damaged lines.

    sample: the first bytes of the text, at most SAMPLE_BYTES.

    >>> guess_encoding("좋은 영화\\n".encode("cp949")), guess_encoding("caf\u00e9".encode("cp1252"))
    ('cp949', 'cp1252')
    """
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    lines = sample.splitlines()
    bad = sum(not _decodes(line, UTF8) for line in lines)
    if bad <= MAX_BAD_SHARE * len(lines) or _decodes(sample, UTF8):
        return None
    for encoding, letters in _FREQUENT_LETTERS.items():
        if (text := _decodes(sample, encoding)) and letters.search(text):
            return encoding
    return None


def _decodes(sample: bytes, encoding: str) -> str | None:
    complete = len(sample) < SAMPLE_BYTES  # else the last character may be cut
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample, complete) or " "
    except UnicodeDecodeError:
        return None


# Encodings to suggest, with what must occur in a text: a word in Hangul, or an accent inside a word.
_FREQUENT_LETTERS = {"cp949": re.compile("[가-힣]{2}"), "cp1252": re.compile(r"[a-zA-Z][À-þ]|[À-þ][a-zA-Z]")}


def read_lines(
    path: str | PathLike[str], *, encoding: str = UTF8, max_bytes: int = MAX_LINE_BYTES
) -> Iterator[str | Invalid]:
    """Yield the lines without newlines; a line that is too long or cannot be decoded is `Invalid`."""
    with open_text(path, encoding=encoding) as stream:
        yield from decode_lines(stream, max_bytes=max_bytes, encoding=encoding)


def decode_lines(
    stream: IO[bytes], *, max_bytes: int = MAX_LINE_BYTES, encoding: str = UTF8
) -> Iterator[str | Invalid]:
    """Yield the lines of an open stream of UTF-8. encoding: that of the original file, for messages."""
    while line := stream.readline(max_bytes + 2):
        if len(line.removesuffix(b"\n")) > max_bytes:
            while line and not line.endswith(b"\n"):
                line = stream.readline(max_bytes)
            yield Invalid(f"is longer than {max_bytes:,} bytes")
            continue
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            byte = f" (byte 0x{line[error.start]:02x} at byte {error.start + 1})"
            yield Invalid(f"is not UTF-8{byte}" if encoding == UTF8 else f"is not {encoding}")


def read_pieces(
    path: str | PathLike[str], counter: RowCounter, *, encoding: str = UTF8, size: int = CHUNK_BYTES
) -> Iterator[str]:
    """Yield the text of a file in pieces of about `size` characters, with `\\n` line ends; skip bad lines.

    A piece ends after a line if possible, else after a space, else between two characters. So even a line of
    many gigabytes is read in bounded memory.
    """
    rest, number = "", 1
    with open_text(path, encoding=encoding) as stream:
        text = io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="")
        while chunk := text.read(size):
            block = rest + chunk
            end = block.rfind("\n") + 1 or block.rfind(" ") + 1 or len(block) - block.endswith("\r")
            piece, rest = block[:end].replace("\r\n", "\n"), block[end:]
            yield from _without_bad_lines(piece, number, counter)
            number += piece.count("\n")
        text.detach()
    yield from _without_bad_lines(rest, number, counter)


def _without_bad_lines(text: str, number: int, counter: RowCounter) -> Iterator[str]:
    if _NOT_UTF8.search(text):
        lines = text.split("\n")
        for n, line in enumerate(lines):
            if _NOT_UTF8.search(line):
                counter.add_error(number + n, "cannot be decoded")
        text = "\n".join(line for line in lines if not _NOT_UTF8.search(line))
    if text:
        counter.good += max(1, text.count("\n"))
        yield text


def file_format(path: str | PathLike[str]) -> FileFormat:
    """Return a file's format by its suffix, ignoring `.gz`; an unknown suffix is plain text.

    >>> file_format("train.tsv.gz"), file_format("train.en")
    ('tsv', 'plain')
    """
    path = Path(path)
    compressed = path.suffix.lower() == ".gz"
    file_type = _SUFFIXES.get(Path(path.stem if compressed else path.name).suffix.lower(), "plain")
    if file_type in ("parquet", "xlsx") and compressed:
        raise FileProblemError(path, f"is {file_type} inside gzip", hint="unpack it first")
    return file_type


def detect_delimiter(lines: Sequence[str]) -> str:
    """Return the character that separates the cells of CSV lines; a comma if none does.

    >>> detect_delimiter(["text;label", "Good, but long;pos"]), detect_delimiter(["text", "a;b"])
    (';', ',')
    """

    def share(delimiter: str) -> float:
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        return widths.count(widths[0]) / len(widths) if widths and widths[0] > 1 else 0.0

    try:
        return max(DELIMITERS, key=share)
    except csv.Error:
        return DELIMITERS[0]


def detect_decimal(cells: Iterable[str]) -> str:
    """Return the decimal separator of the numbers among the cells.

    >>> detect_decimal(["2024-01-01", "1,5", "10,844"]), detect_decimal(["1.5", "1,5"])
    (',', '.')
    """
    found = list(cells)
    has_comma = any(map(_DECIMAL_COMMA.fullmatch, found))
    return "," if has_comma and not any(map(_DECIMAL_POINT.fullmatch, found)) else "."


def with_point(cell: str) -> str:
    """Return a cell with a decimal point, if it is a number with a decimal comma."""
    return cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell


def looks_like_header(cells: Sequence[str]) -> bool:
    """Check if a first row is a header: every cell is a common column name, or two cells name a pair.

    >>> looks_like_header(["id", "document", "label"]), looks_like_header(["Hi.", "Hallo!"])
    (True, False)
    >>> looks_like_header(["source", "target", "checked by"])
    True
    """
    names = [cell.strip().lower() for cell in cells]
    return len(names) > 1 and (all(name in _COMMON_NAMES for name in names) or _pair_in(names) is not None)


def find_pair_columns(names: Sequence[str]) -> tuple[str, str] | None:
    """Find the columns of a pair: two common names that belong together, or the only two language codes."""
    lower = {name.split(".")[-1].lower(): name for name in names}
    if pair := _pair_in(lower):
        return lower[pair[0]], lower[pair[1]]
    languages = [name for short, name in lower.items() if short in LANGUAGE_NAMES]
    return (languages[0], languages[1]) if len(languages) == 2 else None


def find_text_pair_columns(names: Sequence[str]) -> tuple[str, str] | None:
    """Find the columns of two texts to classify together, e.g. premise and hypothesis."""
    lower = {name.lower(): name for name in names}
    pair = _pair_in(lower, TEXT_PAIR_NAMES)
    return None if pair is None else (lower[pair[0]], lower[pair[1]])


def _pair_in(names: Collection[str], pairs: Sequence[tuple[str, str]] = PAIR_NAMES) -> tuple[str, str] | None:
    return next((pair for pair in pairs if pair[0] in names and pair[1] in names), None)


def find_column(names: Sequence[str], common: Sequence[str]) -> str | None:
    """Find the column with the first of the common names that occurs."""
    lower = {name.lower(): name for name in names}
    return next((lower[name] for name in common if name in lower), None)


@dataclass(frozen=True, kw_only=True)
class TablePreview:
    """The first rows of a table. `names` is None if it is unknown whether the first line is a header."""

    names: tuple[str, ...] | None
    rows: list[tuple[object, ...]]

    def header(self) -> tuple[str, ...]:
        """Return the column names, or the cells of the first row if the names are unknown."""
        return self.names or tuple(str(cell).strip() for cell in self.rows[0])


def parse_columns(columns: Sequence[str]) -> list[Column]:
    """Parse columns as a user writes them: names, or numbers from 1.

    >>> parse_columns(["en", "2"])
    ['en', 2]
    """
    return [int(name) if name.isascii() and name.isdecimal() else name for name in columns]


class TableReader(ABC):
    """Interface of the table readers: the rows of one file."""

    unit = "line"

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        encoding: str = UTF8,
        delimiter: str | None = None,
        decimal: str | None = None,
    ) -> None:
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise InvalidValueError("delimiter", delimiter, "one character, e.g. ; or a tab")
        if decimal not in (None, ".", ","):
            raise InvalidValueError("decimal", decimal, ". or ,")
        self.path, self.encoding = require_file(path), check_encoding(encoding)
        self.separators = delimiter, decimal

    @property
    def note(self) -> str:
        """Describe separators that are not the usual ones, for a message."""
        return ""

    @abstractmethod
    def head(self, count: int = HEAD_ROWS) -> TablePreview:
        """Read the first `count` good rows."""

    @abstractmethod
    def rows(self, columns: Sequence[Column], counter: RowCounter) -> Iterator[tuple[int, Sequence[object]]]:
        """Yield the line number of each row, and its values in the order of `columns`."""


def open_table(path: str | PathLike[str], **text: Unpack[TableOptions]) -> TableReader:
    """Open the table in a file; plain text is read as TSV unless a delimiter is given."""
    match file_format(path):
        case "csv":
            return CsvReader(path, **text)
        case "jsonl":
            return JsonlReader(path, encoding=text.get("encoding", UTF8))
        case "parquet":
            return ParquetReader(path)
        case "xlsx":
            return ExcelReader(path)
        case _:
            return (TsvReader if text.get("delimiter") in (None, "\t") else CsvReader)(path, **text)


class DelimitedReader(TableReader):
    """Rows of cells; the first row is a header if columns are requested by name, or if it looks like one."""

    @abstractmethod
    def cells(self, counter: RowCounter) -> Iterator[tuple[int, list[str]]]:
        """Yield each row that is not blank, with its line number."""

    @cached_property
    def delimiter(self) -> str:
        return "\t"

    @cached_property
    def decimal(self) -> str:
        """The decimal separator: as given, else detected; with commas between cells it is a point."""
        if self.separators[1] is not None or self.delimiter == ",":
            return self.separators[1] or "."
        rows = islice(self.cells(RowCounter(str(self.path))), DETECTION_LINES)
        return detect_decimal(cell for _, row in rows for cell in row)

    @property
    def note(self) -> str:
        parts = [f"cells separated by {self.delimiter!r}"] if self.delimiter not in ",\t" else []
        parts += ["decimal commas"] if self.decimal == "," else []
        return " and ".join(parts)

    def head(self, count: int = HEAD_ROWS) -> TablePreview:
        counter = RowCounter(str(self.path))
        convert = with_point if self.decimal == "," else str
        rows: list[tuple[object, ...]] = [
            tuple(map(convert, row)) for _, row in islice(self.cells(counter), count)
        ]
        if not rows:
            counter.finish()
        return TablePreview(names=None, rows=rows)

    def rows(self, columns: Sequence[Column], counter: RowCounter) -> Iterator[tuple[int, Sequence[object]]]:
        rows = self.cells(counter)
        first = next(rows, None)
        if first is None:
            return
        names = [cell.strip() for cell in first[1]]
        indices = [self._index(column, names) for column in columns]
        needed = max(indices, default=0) + 1
        by_name = any(isinstance(column, str) for column in columns)
        has_header = by_name or looks_like_header(names)
        for line, row in rows if has_header else chain([first], rows):
            if len(row) < needed:
                counter.add_error(line, f"has {len(row)} {plural('column', len(row))}, needs {needed}")
            else:
                cells = [row[index] for index in indices]
                yield line, [with_point(cell) for cell in cells] if self.decimal == "," else cells

    def _index(self, column: Column, names: list[str]) -> int:
        if isinstance(column, int):
            if column < 1:
                raise InvalidValueError("column", column, "a column number of at least 1")
            return column - 1
        if names.count(column) > 1:
            raise FileProblemError(
                self.path, f"has more than one column '{column}'", hint="use its number instead"
            )
        if column not in names:
            hint = "" if looks_like_header(names) else "if the file has no header, use column numbers"
            raise UnknownNameError("column", column, names, hint, where=str(self.path))
        return names.index(column)


class TsvReader(DelimitedReader):
    """Cells separated by tabs; quotes have no meaning."""

    def cells(self, counter: RowCounter) -> Iterator[tuple[int, list[str]]]:
        for number, line in enumerate(read_lines(self.path, encoding=self.encoding), 1):
            if isinstance(line, Invalid):
                counter.add_error(number, line.reason)
            elif line and not line.isspace():
                yield number, line.split("\t")


class CsvReader(DelimitedReader):
    """Cells separated by commas or another delimiter, which may stand in a quoted cell, as may newlines.

    If a quote is never closed, or closed in the middle of a later row, only its own line is bad: the lines
    after it are read again, and count as rows if they have as many cells as the first row.
    """

    @cached_property
    def delimiter(self) -> str:
        lines = islice(read_lines(self.path, encoding=self.encoding), DETECTION_LINES)
        return self.separators[0] or detect_delimiter([line for line in lines if isinstance(line, str)])

    def cells(self, counter: RowCounter) -> Iterator[tuple[int, list[str]]]:
        source = read_lines(self.path, encoding=self.encoding)
        again: deque[str | Invalid] = deque()  # lines to read again
        record: list[str | Invalid] = []  # lines of the current row
        width = 0

        def lines() -> Iterator[str]:
            while (line := again.popleft() if again else next(source, None)) is not None:
                record.append(line)
                yield "\n" if isinstance(line, Invalid) else line + "\n"

        reader = csv.reader(lines(), strict=True, delimiter=self.delimiter)
        number = recovering = 0  # lines read; lines of a bad row that are left
        while True:
            record.clear()
            first_line, row, reason = number + 1, None, ""
            try:
                row = next(reader, None)
            except csv.Error as error:
                reader = csv.reader(lines(), strict=True, delimiter=self.delimiter)
                reason = f"is not CSV ({error})"
                if len(record) > 1:
                    reason = "opens a quote that is not closed correctly"
            if not record:
                return
            bad = next((line.reason for line in record if isinstance(line, Invalid)), "")
            if len(record) > 1 and (reason or (width and row is not None and len(row) != width)):
                reason = (
                    reason
                    or f"opens a quote that makes a row of {quantity(len(row or ()), 'cell')}, not {width}"
                )
                recovering = max(recovering, len(record))
                again.extendleft(reversed(record[1:]))
                del record[1:]
            number, recovering = number + len(record), recovering - len(record)
            if not reason and recovering >= 0 and row and len(row) != (width or len(row)):
                reason = f"has {quantity(len(row), 'cell')}, not {width}"
            if reason or bad:
                counter.add_error(first_line, reason or bad)
            elif row is not None and any(cell and not cell.isspace() for cell in row):
                width = width or len(row)
                yield first_line, row


class ExcelReader(DelimitedReader):
    """The cells of the first sheet of an Excel workbook, as text."""

    unit = "row"

    def cells(self, counter: RowCounter) -> Iterator[tuple[int, list[str]]]:
        try:
            import openpyxl
        except ModuleNotFoundError:
            raise MissingDependencyError("openpyxl", extra="excel") from None
        width = 0
        try:
            with zipfile.ZipFile(self.path) as archive:
                for part in archive.infolist():
                    if part.file_size > max(MAX_COLUMN_BYTES, MAX_EXCEL_EXPANSION * part.compress_size):
                        raise FileProblemError(
                            self.path, f"has a part that expands to {part.file_size:,} bytes"
                        )
            book = openpyxl.load_workbook(self.path, read_only=True, data_only=True)
            try:
                for number, row in enumerate(book.worksheets[0].iter_rows(values_only=True), 1):
                    cells = [_excel_text(value) for value in row]
                    while cells and not cells[-1]:  # rows end at the last column that was ever used
                        cells.pop()
                    width = width or len(cells)
                    if cells:
                        yield number, cells + [""] * (width - len(cells))
            finally:
                book.close()
        except GlassformerError:
            raise
        except Exception as error:  # a damaged workbook fails anywhere in the package
            problem = f"is not an Excel workbook, or is damaged ({error!s:.80})"
            raise FileProblemError(self.path, problem) from None


def _excel_text(value: object) -> str:
    """Return a cell as text: a whole number without a fraction, a date without midnight."""
    match value:
        case None:
            return ""
        case float() if value.is_integer():
            return str(int(value))
        case datetime():
            return str(value).removesuffix(" 00:00:00")
        case _:
            return str(value)


class JsonlReader(TableReader):
    """One JSON object per line; a key inside a nested object is written with a dot, `translation.en`."""

    def objects(self, counter: RowCounter) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield each line that is a JSON object, with its line number."""
        for number, line in enumerate(read_lines(self.path, encoding=self.encoding), 1):
            if isinstance(line, Invalid):
                counter.add_error(number, line.reason)
            elif line and not line.isspace():
                try:
                    value = parse_json(line)
                except ValueError as error:
                    if number == 1 and line.strip() in ("[", "{"):
                        raise FileProblemError(
                            self.path, "is JSON spread over several lines", hint="write one object per line"
                        ) from None
                    counter.add_error(number, f"is not JSON ({error})")
                    continue
                if isinstance(value, dict):
                    yield number, value
                else:
                    counter.add_error(number, "is JSON, but not an object")

    def head(self, count: int = HEAD_ROWS) -> TablePreview:
        counter = RowCounter(str(self.path))
        objects = [flatten_record(value) for _, value in islice(self.objects(counter), count)]
        if not objects:
            counter.finish()
        names = tuple(dict.fromkeys(key for flat in objects for key in flat))
        return TablePreview(names=names, rows=[tuple(flat.get(name) for name in names) for flat in objects])

    def rows(self, columns: Sequence[Column], counter: RowCounter) -> Iterator[tuple[int, Sequence[object]]]:
        for column in columns:
            if isinstance(column, int):
                raise InvalidValueError("column", column, f"the name of a key, because {self.path} is JSON")
        keys = [str(column) for column in columns]
        for number, value in self.objects(counter):
            flat = value if all(key in value for key in keys) else flatten_record(value)
            missing = [key for key in keys if key not in flat]
            if missing:
                counter.add_error(number, f"has no key '{missing[0]}'")
            else:
                yield number, [flat[key] for key in keys]


def flatten_record(value: Mapping[str, object]) -> dict[str, object]:
    """Flatten nested objects, one level deep, into keys with a dot."""
    flat: dict[str, object] = {}
    for key, inner in value.items():
        flat |= (
            {f"{key}.{name}": item for name, item in inner.items()}
            if isinstance(inner, dict)
            else {key: inner}
        )
    return flat


def import_pyarrow(extra: str = "parquet") -> Any:
    """Import pyarrow with its Parquet files; raise if the optional package is missing."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("pyarrow", extra) from None
    return pyarrow


class ParquetReader(TableReader):
    """The columns of a Parquet file; one inside a struct is written with a dot, `translation.en`."""

    unit = "row"

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path)
        pyarrow = import_pyarrow()
        self._errors = (OSError, UnicodeDecodeError, pyarrow.ArrowException)
        self._open, self._flatten = pyarrow.parquet.ParquetFile, pyarrow.Table.from_batches
        try:
            with self._open(self.path) as file:
                schema, metadata = file.schema_arrow, file.metadata
        except self._errors:
            raise FileProblemError(self.path, "is not a Parquet file, or is damaged") from None
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                size, stored = column.total_uncompressed_size, column.total_compressed_size
                if size > max(MAX_COLUMN_BYTES, MAX_EXPANSION * stored):
                    problem = (
                        f"has a column '{column.path_in_schema}' of {stored:,} bytes that expand to {size:,}"
                    )
                    raise FileProblemError(self.path, problem)
        self.schema = schema
        self.metadata: dict[bytes, bytes] = schema.metadata or {}
        self.names = tuple(schema.empty_table().flatten().column_names)

    def head(self, count: int = HEAD_ROWS) -> TablePreview:
        rows = [tuple(values) for _, values in islice(self._values(self.names), count)]
        if not rows:
            RowCounter(str(self.path)).finish()
        return TablePreview(names=self.names, rows=rows)

    def rows(self, columns: Sequence[Column], counter: RowCounter) -> Iterator[tuple[int, Sequence[object]]]:
        names = []
        for column in columns:
            if isinstance(column, int) and 1 <= column <= len(self.names):
                column = self.names[column - 1]
            if isinstance(column, int) or column not in self.names:
                raise UnknownNameError("column", str(column), self.names, where=str(self.path))
            names.append(column)
        return self._values(names)

    def records(self) -> Iterator[dict[str, object]]:
        """Yield all values of each row by column; structs are not flattened."""
        names = self.schema.names
        for _, batch in self._batches(names):
            columns = [_bounded_values(column) for column in batch.columns]
            yield from (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))

    def _values(self, names: Sequence[str]) -> Iterator[tuple[int, Sequence[object]]]:
        for done, batch in self._batches(names):
            table = self._flatten([batch]).flatten()
            columns = [_bounded_values(table.column(name)) for name in names]
            yield from enumerate(zip(*columns, strict=True), done + 1)

    def _batches(self, names: Sequence[str]) -> Iterator[tuple[int, Any]]:
        """Yield the number of rows before each batch, and the batch."""
        done = 0
        try:
            with self._open(self.path) as file:
                for batch in file.iter_batches(PARQUET_BATCH_ROWS, columns=list(names)):
                    yield done, batch
                    done += batch.num_rows
        except self._errors:
            raise FileProblemError(self.path, f"is damaged after row {done:,}") from None


def _bounded_values(column: Any) -> list[object]:
    """Return the values of a Parquet column; texts longer than a line may be are `Invalid`."""
    import pyarrow
    from pyarrow import compute

    kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        values: list[object] = column.to_pylist()
        return values
    too_long = compute.greater(compute.binary_length(column.cast(kind)), MAX_LINE_BYTES)
    values = compute.if_else(too_long, None, column).to_pylist()
    for n in compute.indices_nonzero(too_long).to_pylist():
        values[n] = Invalid(f"is longer than {MAX_LINE_BYTES:,} bytes")
    return values

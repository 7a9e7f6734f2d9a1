"""Streaming readers for plain text, TSV, CSV, JSON Lines (all also as .gz) and Parquet.

Memory use is bounded whatever the file size. Text is UTF-8; a byte order mark is dropped, and so is a
carriage return before a newline. A line that cannot be read is yielded as `Invalid`, so that line numbers
stay correct. Every table has a head, from which columns are chosen, and rows, each with its line number.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from glassformer.data.row_errors import Invalid, RowCounter
from glassformer.errors import (
    EmptyInputError,
    FileMissingError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    UnknownNameError,
)

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 20
HEAD_ROWS = 1000  # rows read to choose columns
PARQUET_BATCH_ROWS = 256
_NOT_TEXT = {
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"BZh": "compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "compressed with xz; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first",
    b"PAR1": "a Parquet file; rename it to end in .parquet",
}

Column = str | int  # a name, or a number counted from 1
FileFormat = Literal["plain", "tsv", "csv", "jsonl", "parquet"]
_SUFFIXES: dict[str, FileFormat] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}

# Common column names, so that most files need no options.
PAIR_NAMES = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("input", "output"),
    ("question", "answer"),
    ("q", "a"),
    ("document", "summary"),
    ("article", "highlights"),
    ("text", "summary"),
)
TEXT_NAMES = ("text", "sentence", "document", "review", "content", "body", "comment", "question", "q")
LABEL_NAMES = (
    "label",
    "labels",
    "class",
    "category",
    "sentiment",
    "target",
    "intent",
    "rating",
    "stars",
    "y",
)
LANGUAGE_NAMES = frozenset(
    "en de fr ko ja zh es it pt nl ru pl cs sv da fi tr uk ro hu el he ar hi vi th "
    "english german french korean japanese chinese spanish italian portuguese dutch russian".split()
)
LANGUAGE_COLUMN = "to"  # names the language of each target
_OTHER_NAMES = frozenset(
    {"id", "idx", "index", "no", "number", "package", "reference", "score", LANGUAGE_COLUMN}
)
_COMMON_NAMES = (
    frozenset(name for pair in PAIR_NAMES for name in pair)
    | {*TEXT_NAMES, *LABEL_NAMES}
    | LANGUAGE_NAMES
    | _OTHER_NAMES
)


def require_file(path: str | PathLike[str]) -> Path:
    """The path, if it is a regular file, which can be read more than once."""
    path = Path(path)
    if path.is_file():
        return path
    if path.is_dir():
        raise FileProblemError(path, "is a folder", hint="name the files in it")
    if path.exists():
        raise FileProblemError(path, "is not a regular file, so it cannot be read more than once")
    raise FileMissingError(path)


@contextmanager
def open_text(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """A text file's bytes, decompressed, without a byte order mark."""
    path = require_file(path)
    try:
        with path.open("rb") as raw:
            stream: IO[bytes] = raw
            if raw.peek(2).startswith(b"\x1f\x8b"):
                stream = io.BufferedReader(gzip.GzipFile(fileobj=raw), CHUNK_BYTES)
            elif path.suffix == ".gz" and raw.peek(1):
                raise FileProblemError(path, "is named .gz but is not gzip")
            start = stream.peek(4096)  # type: ignore[attr-defined]
            _check_is_text(path, start[:4096])
            if start.startswith(b"\xef\xbb\xbf"):
                stream.read(3)
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem = "is truncated" if isinstance(error, EOFError) else "is damaged"
        raise FileProblemError(
            path, f"the gzip file {problem}", hint="download or compress it again"
        ) from None
    except OSError as error:
        raise FileProblemError(path, f"cannot be read ({error.strerror or error})") from None


def _check_is_text(path: Path, start: bytes) -> None:
    if not start.removeprefix(b"\xef\xbb\xbf"):
        raise EmptyInputError(f"file {path}")
    for magic, what in _NOT_TEXT.items():
        if start.startswith(magic):
            raise FileProblemError(path, f"is {what}")
    if start.count(0) * 3 > len(start):
        raise FileProblemError(path, "is UTF-16 or not text", hint="save it as UTF-8")


def read_lines(path: str | PathLike[str], *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[str | Invalid]:
    """Every line without its newline; one that is too long or not UTF-8 is `Invalid`."""
    with open_text(path) as stream:
        yield from decode_lines(stream, max_bytes=max_bytes)


def decode_lines(stream: IO[bytes], *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[str | Invalid]:
    """The lines of an open stream, e.g. standard input."""
    while line := stream.readline(max_bytes + 2):
        if len(line.removesuffix(b"\n")) > max_bytes:
            while line and not line.endswith(b"\n"):
                line = stream.readline(max_bytes)
            yield Invalid(f"is longer than {max_bytes:,} bytes")
            continue
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            yield Invalid(f"is not UTF-8 (byte 0x{line[error.start]:02x} at byte {error.start + 1})")


def read_pieces(path: str | PathLike[str], counter: RowCounter, *, size: int = CHUNK_BYTES) -> Iterator[str]:
    """The text of a file in pieces of about `size` bytes, with `\\n` line ends; bad lines are skipped.

    A piece ends after a line if possible, else after a space, else between two characters, so that a line of
    many gigabytes needs no more memory than another.
    """
    rest, number = b"", 1
    with open_text(path) as stream:
        while chunk := stream.read(size):
            block = rest + chunk
            end = _piece_end(block)
            rest = block[end:]
            if end and (text := _decode_piece(block[:end], number, counter)):
                yield text
            number += block.count(b"\n", 0, end)
    if rest and (text := _decode_piece(rest, number, counter)):
        yield text


def _piece_end(block: bytes) -> int:
    end = block.rfind(b"\n") + 1 or block.rfind(b" ") + 1
    if end:
        return end
    last = len(block) - 1
    while last > 0 and len(block) - last < 4 and block[last] & 0xC0 == 0x80:
        last -= 1
    return last  # before the last character, which may be incomplete


def _decode_piece(block: bytes, number: int, counter: RowCounter) -> str:
    try:
        text = block.decode().replace("\r\n", "\n")
        counter.good += max(1, text.count("\n"))
        return text
    except UnicodeDecodeError:
        pass
    good = []
    for line_number, line in enumerate(io.BytesIO(block), number):
        (decoded,) = decode_lines(io.BytesIO(line), max_bytes=len(block))
        if isinstance(decoded, Invalid):
            counter.add_error(line_number, decoded.reason)
        else:
            counter.good += 1
            good.append(decoded + "\n" * line.endswith(b"\n"))
    return "".join(good)


def file_format(path: str | PathLike[str]) -> FileFormat:
    """A file's format by its suffix, `.gz` aside; anything unknown is plain text.

    >>> file_format("train.tsv.gz"), file_format("train.en")
    ('tsv', 'plain')
    """
    path = Path(path)
    compressed = path.suffix.lower() == ".gz"
    found = _SUFFIXES.get(Path(path.stem if compressed else path.name).suffix.lower(), "plain")
    if found == "parquet" and compressed:
        raise FileProblemError(path, "is Parquet inside gzip", hint="unpack it first")
    return found


def looks_like_header(cells: Sequence[str]) -> bool:
    """Whether a first row is a header: every cell is a common column name, or two of them name a pair.

    >>> looks_like_header(["id", "document", "label"]), looks_like_header(["Hi.", "Hallo!"])
    (True, False)
    >>> looks_like_header(["source", "target", "checked by"])
    True
    """
    names = [cell.strip().lower() for cell in cells]
    return len(names) > 1 and (all(name in _COMMON_NAMES for name in names) or _pair_in(names) is not None)


def find_pair_columns(names: Sequence[str]) -> tuple[str, str] | None:
    """The columns of a pair: two common names that belong together, or the only two that are languages."""
    lower = {name.split(".")[-1].lower(): name for name in names}
    if found := _pair_in(lower):
        return lower[found[0]], lower[found[1]]
    languages = [name for short, name in lower.items() if short in LANGUAGE_NAMES]
    return (languages[0], languages[1]) if len(languages) == 2 else None


def _pair_in(names: Collection[str]) -> tuple[str, str] | None:
    return next((pair for pair in PAIR_NAMES if pair[0] in names and pair[1] in names), None)


def find_column(names: Sequence[str], common: Sequence[str]) -> str | None:
    """The column with the first of the common names that is there."""
    lower = {name.lower(): name for name in names}
    return next((lower[name] for name in common if name in lower), None)


@dataclass(frozen=True, kw_only=True)
class Head:
    """The first rows. `names` is None if the first line may or may not be a header."""

    names: tuple[str, ...] | None
    rows: list[tuple[object, ...]]


def parse_columns(columns: Sequence[str]) -> list[Column]:
    """Columns as a user writes them.

    >>> parse_columns(["en", "2"])
    ['en', 2]
    """
    return [int(name) if name.isascii() and name.isdecimal() else name for name in columns]


class Table(ABC):
    """One file of rows."""

    unit = "line"

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = require_file(path)

    @abstractmethod
    def head(self, count: int = HEAD_ROWS) -> Head:
        """The first `count` good rows."""

    @abstractmethod
    def rows(self, columns: Sequence[Column], counter: RowCounter) -> Iterator[tuple[int, Sequence[object]]]:
        """Every row: its line, and its values in the order of `columns`."""

    def unknown_column(self, column: Column, names: Sequence[str]) -> GlassformerError:
        return UnknownNameError(f"column of {self.path}", str(column), names)


def open_table(path: str | PathLike[str]) -> Table:
    """The table in a file; plain text is read as TSV."""
    match file_format(path):
        case "csv":
            return CsvTable(path)
        case "jsonl":
            return JsonlTable(path)
        case "parquet":
            return ParquetTable(path)
        case _:
            return TsvTable(path)


class DelimitedTable(Table):
    """Rows of cells; the first row is a header if columns are requested by name, or if it looks like one."""

    @abstractmethod
    def cells(self, counter: RowCounter) -> Iterator[tuple[int, list[str]]]:
        """Every row that is not blank, with its line."""

    def head(self, count: int = HEAD_ROWS) -> Head:
        counter = RowCounter(str(self.path))
        rows: list[tuple[object, ...]] = [tuple(row) for _, row in islice(self.cells(counter), count)]
        if not rows:
            counter.finish()
        return Head(names=None, rows=rows)

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
                counter.add_error(line, f"has {len(row)} column{'s' * (len(row) != 1)}, needs {needed}")
            else:
                yield line, [row[index] for index in indices]

    def _index(self, column: Column, names: list[str]) -> int:
        if isinstance(column, int):
            if column < 1:
                raise InvalidValueError("column", column, "a number from 1")
            return column - 1
        if names.count(column) > 1:
            raise FileProblemError(
                self.path, f"has more than one column '{column}'", hint="use its number instead"
            )
        if column not in names:
            raise self.unknown_column(column, names)
        return names.index(column)


class TsvTable(DelimitedTable):
    """Cells separated by tabs; quotes have no meaning."""

    def cells(self, counter: RowCounter) -> Iterator[tuple[int, list[str]]]:
        for number, line in enumerate(read_lines(self.path), 1):
            if isinstance(line, Invalid):
                counter.add_error(number, line.reason)
            elif line and not line.isspace():
                yield number, line.split("\t")


class CsvTable(DelimitedTable):
    """Cells separated by commas; a quoted cell may contain commas, doubled quotes and newlines."""

    def cells(self, counter: RowCounter) -> Iterator[tuple[int, list[str]]]:
        number, reason = 0, ""

        def decoded() -> Iterator[str]:
            nonlocal number, reason
            for line in read_lines(self.path):
                number += 1
                if isinstance(line, Invalid):
                    reason = reason or line.reason
                yield "\n" if isinstance(line, Invalid) else line + "\n"

        reader = csv.reader(decoded(), strict=True)
        while True:
            begin, reason = number + 1, ""
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                counter.add_error(begin, f"is not CSV ({error})")
                continue
            if reason:
                counter.add_error(begin, reason)
            elif any(cell and not cell.isspace() for cell in row):
                yield begin, row


class JsonlTable(Table):
    """One JSON object per line; a key inside a nested object is written with a dot, `translation.en`."""

    def objects(self, counter: RowCounter) -> Iterator[tuple[int, dict[str, object]]]:
        """Every line that is an object."""
        for number, line in enumerate(read_lines(self.path), 1):
            if isinstance(line, Invalid):
                counter.add_error(number, line.reason)
            elif line and not line.isspace():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
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

    def head(self, count: int = HEAD_ROWS) -> Head:
        counter = RowCounter(str(self.path))
        objects = [dict(_flatten(value)) for _, value in islice(self.objects(counter), count)]
        if not objects:
            counter.finish()
        names = tuple(dict.fromkeys(key for each in objects for key in each))
        return Head(names=names, rows=[tuple(each.get(name) for name in names) for each in objects])

    def rows(self, columns: Sequence[Column], counter: RowCounter) -> Iterator[tuple[int, Sequence[object]]]:
        for column in columns:
            if isinstance(column, int):
                raise InvalidValueError("column", column, f"the name of a key, because {self.path} is JSON")
        keys = [str(column) for column in columns]
        for number, value in self.objects(counter):
            try:
                yield number, [_lookup(value, key) for key in keys]
            except KeyError as error:
                counter.add_error(number, f"has no key '{error.args[0]}'")


def _flatten(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, inner in value.items():
        if isinstance(inner, dict) and not prefix:  # one level
            yield from _flatten(inner, f"{key}.")
        else:
            yield prefix + key, inner


def _lookup(value: Mapping[str, object], key: str) -> object:
    if key in value:
        return value[key]
    outer, _, inner = key.partition(".")
    nested = value.get(outer)
    if inner and isinstance(nested, dict) and inner in nested:
        return nested[inner]
    raise KeyError(key)


class ParquetTable(Table):
    """The columns of a Parquet file; one inside a struct is written with a dot, `translation.en`."""

    unit = "row"

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path)
        import pyarrow
        import pyarrow.parquet

        self._errors = (OSError, UnicodeDecodeError, pyarrow.ArrowException)
        self._open = pyarrow.parquet.ParquetFile
        try:
            with self._open(self.path) as file:
                fields, self.metadata = list(file.schema_arrow), file.schema_arrow.metadata or {}
        except self._errors:
            raise FileProblemError(self.path, "is not a Parquet file, or is damaged") from None
        self._parents: dict[str, str] = {}  # the file's own column that holds each column
        for field in fields:
            inner = _struct_fields(field.type)
            names = [f"{field.name}.{part}" for part in inner] if inner else [field.name]
            self._parents |= dict.fromkeys(names, field.name)
        self.names = tuple(self._parents)

    def head(self, count: int = HEAD_ROWS) -> Head:
        rows = [tuple(values) for _, values in islice(self._values(self.names), count)]
        if not rows:
            RowCounter(str(self.path)).finish()
        return Head(names=self.names, rows=rows)

    def rows(self, columns: Sequence[Column], counter: RowCounter) -> Iterator[tuple[int, Sequence[object]]]:
        return self._values([self._name(column) for column in columns])

    def _name(self, column: Column) -> str:
        if isinstance(column, int) and 1 <= column <= len(self.names):
            return self.names[column - 1]
        if isinstance(column, int) or column not in self.names:
            raise self.unknown_column(column, self.names)
        return column

    def _values(self, names: Sequence[str]) -> Iterator[tuple[int, Sequence[object]]]:
        done = 0
        try:
            with self._open(self.path) as file:
                parents = dict.fromkeys(self._parents[name] for name in names)
                for batch in file.iter_batches(PARQUET_BATCH_ROWS, columns=list(parents)):
                    found: dict[str, pa.Array] = {}
                    for name, column in zip(batch.schema.names, batch.columns, strict=True):
                        inner = _struct_fields(column.type)
                        if inner:
                            parts = (f"{name}.{part}" for part in inner)
                            found |= dict(zip(parts, column.flatten(), strict=True))
                        else:
                            found[name] = column
                    columns = [found[name].to_pylist() for name in names]
                    yield from enumerate(zip(*columns, strict=True), done + 1)
                    done += batch.num_rows
        except self._errors:
            raise FileProblemError(self.path, f"is damaged after row {done:,}") from None


def _struct_fields(kind: pa.DataType) -> list[str]:
    from pyarrow import types

    return [field.name for field in kind.fields] if types.is_struct(kind) else []

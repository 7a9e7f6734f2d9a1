"""Sources of text rows that can be streamed repeatedly: documents, pairs and labeled texts.

Columns that are not named are chosen by their names and contents.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice, zip_longest
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Literal, Unpack

from glassformer.data.readers import (
    HEAD_ROWS,
    LABEL_NAMES,
    LANGUAGE_COLUMN,
    TEXT_NAMES,
    UTF8,
    Column,
    TableOptions,
    TablePreview,
    TableReader,
    file_format,
    find_column,
    find_pair_columns,
    find_text_pair_columns,
    looks_like_header,
    open_table,
    read_lines,
    read_pieces,
    require_file,
)
from glassformer.data.row_errors import Invalid, RowCounter, RowErrors
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
)
from glassformer.messages import quantity

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
Stamp = Callable[[Path], object]  # returns a value that identifies a file's content
SampleBy = Literal["line", "paragraph", "file"]
PAIR_FIELDS = ("source", "target")
_PIECE_CHARS = 1 << 16


def stamp_by_time(path: Path) -> object:
    """Identify a file by name, size and modification time."""
    stat = path.stat()
    return path.name, stat.st_size, stat.st_mtime_ns


def stamp_by_content(path: Path) -> object:
    """Identify a file by name and content digest, so that a copy or a changed mtime does not matter."""
    with path.open("rb") as file:
        return path.name, hashlib.file_digest(file, "blake2b").hexdigest()


class Source(ABC):
    """Interface of sources: rows with one string per field."""

    fields: tuple[str, ...]
    columns_by_field: Mapping[str, Column] | None = None  # of a table; None for plain text

    @abstractmethod
    def rows(self, errors: RowErrors) -> Iterator[tuple[str, ...]]:
        """Yield all good rows from the start; bad rows go to `errors`."""

    @abstractmethod
    def fingerprint(self, stamp: Stamp = stamp_by_time) -> str:
        """Return a hex digest that changes if a file or an option does, to detect outdated caches."""


class FileSource(Source):
    """A source of several files. options: settings that the rows depend on, for the fingerprint."""

    def __init__(self, paths: Sequence[Path], *options: object) -> None:
        self.paths, self._options = list(paths), options

    def fingerprint(self, stamp: Stamp = stamp_by_time) -> str:
        return fingerprint_files(self.paths, *self._options, stamp=stamp)


class TextSource(Source):
    """Documents of any length, read in pieces that fit in memory.

    `pieces` yields each piece with its document's number, `rows` yields the pieces alone (e.g. to train a
    tokenizer), and `documents` groups them by document.
    """

    fields = ("text",)

    @abstractmethod
    def pieces(self, errors: RowErrors) -> Iterator[tuple[int, str]]:
        """Yield each piece with the number of its document, in order."""

    def rows(self, errors: RowErrors) -> Iterator[tuple[str, ...]]:
        for _, piece in self.pieces(errors):
            yield (piece,)

    def documents(self, errors: RowErrors) -> Iterator[Iterator[str]]:
        """Yield an iterator over the pieces of each document; exhaust it before taking the next."""
        for _, pieces in groupby(self.pieces(errors), itemgetter(0)):
            yield map(itemgetter(1), pieces)


def list_paths(paths: Paths) -> list[Path]:
    """Return one or several paths as a list, and check that each is a regular file."""
    listed = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if not listed:
        raise EmptyInputError("list of files")
    return [require_file(path) for path in listed]


def fingerprint_files(paths: Sequence[Path], *options: object, stamp: Stamp = stamp_by_time) -> str:
    """Return a hex digest of the files' stamps and the options."""
    files = [stamp(path) for path in paths]
    return hashlib.blake2b(repr((files, options)).encode(), digest_size=16).hexdigest()


def clean_text(value: object) -> str | Invalid:
    """Convert a value to text without surrounding white space, or to `Invalid`."""
    if isinstance(value, Invalid):
        return value
    if not isinstance(value, str):
        return Invalid("is missing" if value is None else "is not text")
    text = value.strip()
    if not text:
        return Invalid("is empty")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON escapes can contain one
        return Invalid("contains a lone surrogate")
    return text


def clean_label(value: object) -> str | Invalid:
    """Convert a value to a label, or to `Invalid`; 1, 1.0 and " 1 " are the same label."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return Invalid(f"is {value}, which is not a class")
    return clean_text(value)


ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
LABEL_SEPARATOR = "\x1f"  # joins the labels of a row of a multi-label source
_CELL_SEPARATORS = "|;,"


def clean_labels(value: object, separator: str | None) -> str | Invalid:
    """Convert a list of labels, or a cell with a separator, to labels joined by LABEL_SEPARATOR.

    >>> clean_labels("warm| funny", "|").split(LABEL_SEPARATOR), clean_labels([], None)
    (['warm', 'funny'], '')
    """
    values = value if isinstance(value, list) else _split_cell(value, separator)
    labels = [clean_label(label) for label in values]
    bad = next((label for label in labels if isinstance(label, Invalid)), None)
    return bad or LABEL_SEPARATOR.join(dict.fromkeys(str(label) for label in labels))


def _split_cell(value: object, separator: str | None) -> list[object]:
    """Split a cell into labels; an empty cell has none."""
    if not isinstance(value, str):
        return [] if value is None else [value]
    return [part for part in value.split(separator or "\0") if part.strip()]


def clean_number(value: object) -> str | Invalid:
    """Convert a value to the text of a finite number, or to `Invalid`."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return Invalid("is not a number")
    return str(number) if math.isfinite(number) and abs(number) < 1e30 else Invalid(f"is {number}")


def detect_problem_type(values: Sequence[object]) -> ProblemType:
    """Detect the problem type from label values.

    Lists are multi-label, and so are cells such as "warm|funny" if splitting leaves fewer distinct labels.
    Numbers with a fractional part are regression targets. Everything else is one label per text.

    >>> detect_problem_type(["a|b", "a", "b"]), detect_problem_type(["3.5", "2"]), detect_problem_type(["1"])
    ('multi_label_classification', 'regression', 'single_label_classification')
    """
    if any(isinstance(value, list) for value in values):
        return "multi_label_classification"
    numbers = [clean_number(value) for value in values if value not in (None, "")]
    if numbers and not any(isinstance(number, Invalid) for number in numbers):
        whole = all(float(str(number)).is_integer() for number in numbers)
        return "single_label_classification" if whole else "regression"
    cells = {value.strip() for value in values if isinstance(value, str)} - {""}
    separator = _label_separator(values)
    parts = {str(part).strip() for cell in cells for part in _split_cell(cell, separator)}
    return "multi_label_classification" if len(parts) < len(cells) else "single_label_classification"


def _label_separator(values: Sequence[object]) -> str | None:
    """Return the first of the usual separators of labels that occurs in a cell."""
    cells = [value for value in values if isinstance(value, str)]
    return next((mark for mark in _CELL_SEPARATORS if any(mark in cell for cell in cells)), None)


class TableSource(Source):
    """Rows from columns of one or several tables. columns: the columns that were requested or chosen."""

    def __init__(
        self,
        fields: tuple[str, ...],
        tables: Sequence[TableReader],
        columns: Sequence[Column],
        clean: Sequence[Callable[[object], str | Invalid]],
    ) -> None:
        self.fields, self.tables, self.columns = fields, list(tables), tuple(columns)
        self.columns_by_field = dict(zip(fields, self.columns, strict=True))
        self._clean = list(clean)

    @property
    def description(self) -> str:
        """Describe which column each field is read from."""
        columns = [
            f"'{column}'" if isinstance(column, str) else f"column {column}" for column in self.columns
        ]
        return ", ".join(f"{field} from {column}" for field, column in zip(self.fields, columns, strict=True))

    @property
    def column_summary(self) -> str:
        """Describe which columns are read, and which are not."""
        unused = f"; ignored: {', '.join(map(repr, self.unused_columns))}" if self.unused_columns else ""
        return self.description + unused + (f"; {self.note}" if self.note else "")

    @property
    def note(self) -> str:
        """Describe separators that were detected."""
        return "" if any(self.tables[0].separators) else self.tables[0].note

    @property
    def unused_columns(self) -> list[Column]:
        """Return the columns of the first table that are not read."""
        head = self.tables[0].head(1)
        by_name = head.names is not None or any(isinstance(column, str) for column in self.columns)
        columns = head.header() if by_name else range(1, len(head.rows[0]) + 1)
        return [column for column in columns if column not in self.columns]

    def rows(self, errors: RowErrors) -> Iterator[tuple[str, ...]]:
        for table in self.tables:
            counter = errors.start_file(table.path, unit=table.unit)
            for line, values in table.rows(self.columns, counter):
                row = []
                for field, value, clean in zip(self.fields, values, self._clean, strict=True):
                    cleaned = clean(value)
                    if isinstance(cleaned, Invalid):
                        counter.add_error(line, f"{field} {cleaned.reason}")
                        break
                    row.append(cleaned)
                else:
                    counter.good += 1
                    yield tuple(row)
            counter.finish()

    def fingerprint(self, stamp: Stamp = stamp_by_time) -> str:
        return fingerprint_files(
            [table.path for table in self.tables],
            self.fields,
            self.columns,
            [table.encoding for table in self.tables],
            *(table.separators for table in self.tables if any(table.separators)),
            stamp=stamp,
        )


def columns_unclear(table: TableReader, names: Sequence[str], what: str) -> FileProblemError:
    known = f"it has {', '.join(names)}" if names else "it has no header, so use numbers from 1"
    return FileProblemError(table.path, f"cannot tell which columns are {what}", hint=f"name them: {known}")


# --- texts


def texts(
    paths: Paths,
    *,
    sample_by: SampleBy = "line",
    column: Column | None = None,
    **text: Unpack[TableOptions],
) -> TextFiles | TextColumn:
    """Open documents in plain files, or in a column of TSV, CSV, JSON Lines or Parquet files.

    sample_by: what one document is in a plain file: a line, a paragraph between blank lines, or the file.
    In a table each row is a document. text: how text files are written.
    """
    files = list_paths(paths)
    formats = {file_format(file) for file in files}
    if "plain" in formats and len(formats) > 1:
        raise ConflictError(sorted(formats), "plain text and tables cannot be mixed")
    if "plain" in formats:
        if column is not None:
            raise FileProblemError(files[0], f"is plain text and has no column '{column}'")
        return TextFiles(files, sample_by, text.get("encoding", UTF8))
    if sample_by != "line":
        raise InvalidValueError("sample_by", sample_by, f"'line', because {files[0]} is a table")
    tables = [open_table(file, **text) for file in files]
    return TextColumn(tables, column or text_column(tables[0]))


def text_column(table: TableReader) -> Column:
    """Choose the text column of a table: the one with a common name, else the only one with text."""
    head = table.head()
    names = head.names
    if names is None:
        cells = head.header()
        if len(cells) == 1:
            return cells[0] if cells[0].lower() in TEXT_NAMES else 1
        width = len(cells)
        rows = [row for row in head.rows[1:] if len(row) == width] or [("",) * width]
        textual = [n for n in range(width) if not all(_is_number(row[n]) for row in rows)]
        with_numbers = [n for n in range(width) if n not in textual]
        has_header = looks_like_header(cells) or any(not _is_number(cells[n]) for n in with_numbers)
        names = cells if has_header else ()
        found: Column | None = find_column(names, TEXT_NAMES)
        if found is None and len(textual) == 1:
            found = cells[textual[0]] if has_header else textual[0] + 1
    else:
        named = _textual_columns(head)
        found = find_column(named, TEXT_NAMES) or (named[0] if len(named) == 1 else None)
    if found is None:
        raise columns_unclear(table, names, "the text")
    return found


def _is_number(value: object) -> bool:
    try:
        float(str(value) or "nan")  # an empty cell is a missing number
    except ValueError:
        return False
    return True


def _textual_columns(head: TablePreview) -> list[str]:
    """Return the columns that contain only text and missing values."""
    columns = zip(head.names or (), zip(*head.rows, strict=True), strict=bool(head.rows))
    return [
        name for name, values in columns if {type(value) for value in values} - {type(None), Invalid} == {str}
    ]


class TextFiles(FileSource, TextSource):
    """Documents in plain files; blank lines are skipped."""

    def __init__(self, paths: list[Path], sample_by: SampleBy, encoding: str = UTF8) -> None:
        super().__init__(paths, sample_by, encoding)
        self.sample_by, self.encoding = sample_by, encoding

    def pieces(self, errors: RowErrors) -> Iterator[tuple[int, str]]:
        number = -1
        for path in self.paths:
            counter = errors.start_file(path)
            for starts_document, piece in self._read(path, counter):
                number += starts_document
                yield number, piece
            counter.finish()

    def _read(self, path: Path, counter: RowCounter) -> Iterator[tuple[bool, str]]:
        """Yield each piece, and whether it starts a document."""
        match self.sample_by:
            case "file":
                for n, piece in enumerate(read_pieces(path, counter, encoding=self.encoding)):
                    yield n == 0, piece
            case "line":
                for line in _good_lines(path, counter, self.encoding):
                    if line.strip():
                        counter.good += 1
                        yield True, line
            case "paragraph":
                yield from _paragraphs(_good_lines(path, counter, self.encoding), counter)


def _good_lines(path: Path, counter: RowCounter, encoding: str) -> Iterator[str]:
    for number, line in enumerate(read_lines(path, encoding=encoding), 1):
        if isinstance(line, Invalid):
            counter.add_error(number, line.reason)
        else:
            yield line


def _paragraphs(lines: Iterator[str], counter: RowCounter) -> Iterator[tuple[bool, str]]:
    """Join the lines of paragraphs into pieces; yield each piece, and whether it starts a paragraph.

    A newline between two pieces is at the start of the second piece.
    """
    pending: list[str] = []
    size, starts_document, inside = 0, True, False
    for line in lines:
        blank = not line.strip()
        if not blank:
            counter.good += 1
            pending.append("\n" + line if inside else line)
            size, inside = size + len(pending[-1]), True
        if pending and (size >= _PIECE_CHARS or blank):
            yield starts_document, "".join(pending)
            pending, size, starts_document = [], 0, False
        if blank:
            starts_document, inside = True, False
    if pending:
        yield starts_document, "".join(pending)


class TextColumn(TableSource, TextSource):
    """Documents in a column of a table, one per row."""

    def __init__(self, tables: list[TableReader], column: Column) -> None:
        super().__init__(("text",), tables, (column,), (clean_text,))
        self.column = column

    def pieces(self, errors: RowErrors) -> Iterator[tuple[int, str]]:
        for number, (text,) in enumerate(self.rows(errors)):
            yield number, text


# --- pairs


def pairs(
    paths: Paths,
    *,
    columns: Sequence[Column] | None = None,
    to: Column | None = None,
    **text: Unpack[TableOptions],
) -> TableSource | AlignedFiles:
    """Open pairs in two plain files, aligned by line, or in TSV, CSV, JSON Lines or Parquet files.

    columns: names or numbers (from 1) of the source and the target column. By default, columns with common
    names, else the only two columns of text, else the first two.
    to: the column with the target language of each pair, which becomes a third field, `to`.
    text: how text files are written. A single plain file is read as TSV.
    """
    files = list_paths(paths)
    formats = [file_format(file) for file in files]
    if formats == ["plain", "plain"] and columns is None and to is None:
        return AlignedFiles(files[0], files[1], text.get("encoding", UTF8))
    if "plain" in formats and len(set(formats)) > 1:
        raise ConflictError(sorted(set(formats)), "pass two plain text files, or only tables")
    if columns is not None and len(columns) != 2:
        raise InvalidValueError("columns", list(columns), "two columns, source and target")
    tables = [open_table(file, **text) for file in files]
    if to is None:
        return TableSource(PAIR_FIELDS, tables, columns or _pair_columns(tables[0]), (clean_text, clean_text))
    for table in tables:
        if isinstance(to, str) and to not in table.head(1).header():
            raise FileProblemError(
                table.path,
                f"has no column {to!r} with the language of each target",
                hint="add it, e.g. with de in every row if all targets are German",
            )
    if columns is None and isinstance(to, int):
        raise MissingValueError("columns", f"if the language is column {to}")
    chosen = (*(columns or _pair_columns(tables[0], to)), to)
    return TableSource((*PAIR_FIELDS, "to"), tables, chosen, (clean_text,) * 3)


_CLASS_NAMES = ("label", "labels", "class", "sentiment")  # of a table of labeled texts, not of pairs


def _pair_columns(table: TableReader, to: Column | None = None) -> tuple[Column, ...]:
    """Choose the source and the target column, other than the language column `to`."""
    head = table.head()
    if head.names is None:
        names = [name for name in head.header() if name != to]
        if to is not None or looks_like_header(names):
            found = find_pair_columns(names)
            if found is None and find_column(names, _CLASS_NAMES) is not None:
                raise columns_unclear(table, names, "source and target")
            return found or (names[0], names[1])
        return 1, 2
    textual = [name for name in _textual_columns(head) if name != to]
    if found := find_pair_columns(textual):
        return found
    if len(textual) != 2 or find_column(textual, _CLASS_NAMES) is not None:
        raise columns_unclear(table, head.names, "source and target")
    return textual[0], textual[1]


class AlignedFiles(FileSource):
    """Pairs of line n of one file and line n of another."""

    fields = PAIR_FIELDS

    def __init__(self, source: Path, target: Path, encoding: str = UTF8) -> None:
        super().__init__([source, target], "aligned", encoding)
        self.encoding = encoding

    def rows(self, errors: RowErrors) -> Iterator[tuple[str, ...]]:
        counter = errors.start_file(self.paths[0])
        sides = [read_lines(path, encoding=self.encoding) for path in self.paths]
        for number, lines in enumerate(zip_longest(*sides), 1):
            if None in lines:
                shorter, longer = self.paths if lines[0] is None else self.paths[::-1]
                raise FileProblemError(shorter, f"has {quantity(number - 1, 'line')}, but {longer} has more")
            if all(isinstance(line, str) and not line.strip() for line in lines):
                continue
            row = []
            for path, line in zip(self.paths, lines, strict=True):
                cleaned = line if isinstance(line, Invalid) else clean_text(line)
                if isinstance(cleaned, Invalid):
                    counter.add_error(number, cleaned.reason, file=path)
                    break
                row.append(cleaned)
            else:
                counter.good += 1
                yield tuple(row)
        counter.finish()


def write_pairs_with_language(
    paths: Paths,
    language: str,
    out: Path,
    *,
    columns: Sequence[Column] | None = None,
    errors: RowErrors,
    **text: Unpack[TableOptions],
) -> None:
    """Write pairs to `out` as JSON Lines, with `language` as the target language in a third column.

    text: how the files that are read are written.
    """
    source = pairs(paths, columns=columns, **text)
    if isinstance(source, TableSource) and columns is None:
        own = next((name for name in source.unused_columns if str(name).lower() == LANGUAGE_COLUMN), None)
        if own is not None:
            raise ConflictError(
                ["to", f"column '{own}'"],
                f"{source.tables[0].path} may name the language of each row itself",
                hint="leave `to` out to use it, else name the two columns to read",
            )
    with out.open("w", encoding="utf-8") as file:
        for row in source.rows(errors):
            record = dict(zip((*PAIR_FIELDS, LANGUAGE_COLUMN), (*row, language), strict=True))
            file.write(f"{json.dumps(record, ensure_ascii=False)}\n")


# --- labeled texts


class LabeledSource(TableSource):
    """Rows of text (or text and text_pair) and label.

    A row of a multi-label source has its labels joined by LABEL_SEPARATOR; a regression target is a number.
    """

    def __init__(
        self, tables: Sequence[TableReader], columns: Sequence[Column], problem_type: ProblemType | None
    ) -> None:
        fields = ("text", "label") if len(columns) == 2 else ("text", "text_pair", "label")
        values = [value for table in tables for value in _head_values(table, columns[-1])]
        self.problem_type = problem_type or detect_problem_type(values)
        clean_target: dict[ProblemType, Callable[[object], str | Invalid]] = {
            "single_label_classification": clean_label,
            "multi_label_classification": partial(clean_labels, separator=_label_separator(values)),
            "regression": clean_number,
        }
        texts = (clean_text,) * (len(fields) - 1)
        super().__init__(fields, tables, columns, (*texts, clean_target[self.problem_type]))

    def fingerprint(self, stamp: Stamp = stamp_by_time) -> str:
        return fingerprint_files([], super().fingerprint(stamp), self.problem_type)


def _head_values(table: TableReader, column: Column) -> list[object]:
    """Return the values of a column in the first rows of a table."""
    rows = table.rows((column,), RowCounter(str(table.path)))
    return [values[0] for _, values in islice(rows, HEAD_ROWS)]


def labeled_texts(
    paths: Paths,
    *,
    columns: Sequence[Column] | None = None,
    problem_type: ProblemType | None = None,
    **text: Unpack[TableOptions],
) -> LabeledSource:
    """Open rows of text and label, or of two texts and a label.

    columns: names or numbers (from 1) of the text, optionally the second text, and the label. By default the
    label is the column with a common name, else with the fewest distinct values. Two texts are read if their
    columns have common names, e.g. premise and hypothesis. Otherwise the text is the column with a common
    name, else with the longest texts. `columns` and `description` of the result name the chosen columns.
    problem_type: how to read labels; by default it is detected. text: how text files are written.
    """
    tables = [open_table(file, **text) for file in list_paths(paths)]
    if columns is not None and len(columns) not in (2, 3):
        raise InvalidValueError("columns", list(columns), "text and label, or text, text_pair and label")
    return LabeledSource(tables, columns or _label_columns(tables[0]), problem_type)


def _label_columns(table: TableReader) -> tuple[Column, ...]:
    head = table.head()
    width = Counter(map(len, head.rows)).most_common(1)[0][0] if head.rows else 0
    if width < 2:
        raise FileProblemError(table.path, "has one column; labeled text needs a text and a label")
    rows = [row for row in head.rows if len(row) == width]
    names = head.names
    if names is None:
        first = tuple(str(cell).strip() for cell in rows[0])
        if looks_like_header(first) or _has_header(rows):
            names, rows = first, rows[1:]
    columns = [_ColumnStats(n, values) for n, values in enumerate(zip(*rows, strict=True))]
    if not columns:
        raise EmptyInputError(f"file {table.path}", hint="it has a header and no rows")

    def by_name(common: Sequence[str], among: list[_ColumnStats]) -> _ColumnStats | None:
        found = find_column([names[column.index] for column in among], common) if names else None
        return None if found is None or names is None else columns[names.index(found)]

    named = by_name(LABEL_NAMES, columns)
    label = named or min(columns, key=_ColumnStats.label_rank)
    pair = find_text_pair_columns(names or ())
    if pair is not None and names is not None and names[label.index] not in pair:
        return *pair, names[label.index]
    rest = [column for column in columns if column is not label and column.is_text]
    text = by_name(TEXT_NAMES, rest) or max(rest, key=lambda column: column.mean_length, default=None)
    if text is None or (named is None and label.distinct == len(rows) > 10):  # no two rows share a label
        raise columns_unclear(table, names or (), "text and label")
    if names is not None:
        return names[text.index], names[label.index]
    return text.index + 1, label.index + 1


class _ColumnStats:
    """Statistics of a column's first rows."""

    def __init__(self, index: int, values: Sequence[object]) -> None:
        labels = [clean_labels(v, None) if isinstance(v, list) else clean_label(v) for v in values]
        good = [label for label in labels if not isinstance(label, Invalid)]
        self.index = index
        self.distinct = len(set(good)) or len(values) + 1  # an empty column is chosen last
        self.mean_length = sum(map(len, good)) / max(1, len(good))
        self.is_text = any(isinstance(value, str) for value in values)

    def label_rank(self) -> tuple[int, float]:
        return self.distinct, self.mean_length


def _has_header(rows: Sequence[Sequence[object]]) -> bool:
    """Guess if the first row is a header: its label cell is none of the few labels of the other rows."""
    if len(rows) < 4:
        return False
    rest = [_ColumnStats(n, values) for n, values in enumerate(zip(*rows[1:], strict=True))]
    label = min(rest, key=_ColumnStats.label_rank).index
    labels = {clean_label(row[label]) for row in rows[1:]}
    return len(labels) * 2 <= len(rows) - 1 and clean_label(rows[0][label]) not in labels


# --- pairs for embeddings

_EMBEDDING_NAMES = (
    ("anchor", "positive", "negative"),
    ("query", "positive", "negative"),
    ("sentence1", "sentence2", "score"),
    ("s1", "s2", "score"),
)
MAX_SCORE = 1000


def clean_score(value: object) -> str | Invalid:
    """Convert a value to the text of a number, or to `Invalid`."""
    number = clean_number(value)
    is_large = isinstance(number, str) and abs(float(number)) > MAX_SCORE
    return Invalid(f"is not between -{MAX_SCORE} and {MAX_SCORE}") if is_large else number


def embedding_pairs(
    paths: Paths, *, columns: Sequence[Column] | None = None, **text: Unpack[TableOptions]
) -> TableSource:
    """Open pairs of similar texts, with hard negatives or scores in a third column.

    columns: names or numbers (from 1) of two or three columns; by default those with common names, e.g.
    anchor, positive and negative, or sentence1, sentence2 and score. The third column contains scores if its
    first values are numbers. text: how text files are written.
    """
    tables = [open_table(file, **text) for file in list_paths(paths)]
    head = tables[0].head()
    if columns is None:
        names = head.header()
        lower = {name.lower(): name for name in names}
        found = next((known for known in _EMBEDDING_NAMES if {*known[:2]} <= lower.keys()), None)
        if found is None:
            raise columns_unclear(tables[0], names, "the two texts, and the negative or the score")
        columns = [lower[name] for name in found if name in lower]
    if len(columns) not in (2, 3):
        raise InvalidValueError("columns", list(columns), "two texts, and optionally a negative or a score")
    fields: tuple[str, ...] = ("anchor", "positive", "negative")[: len(columns)]
    if len(columns) == 3:
        values = [row[0] for _, row in islice(tables[0].rows(columns[2:], RowCounter("")), _SCORE_ROWS)]
        if values and all(not isinstance(clean_score(value), Invalid) for value in values):
            fields = ("anchor", "positive", "score")
    clean = [clean_score if field == "score" else clean_text for field in fields]
    return TableSource(fields, tables, columns, clean)


_SCORE_ROWS = 20
